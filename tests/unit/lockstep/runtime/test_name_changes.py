"""What a broker writes into the directory of names: many claims in one transaction, each answered by itself."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from lockstep.core.cluster_map import Keys
from lockstep.core.effects import ClaimName, ReleaseName
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Incarnation, SetName
from lockstep.core.inputs import AnyInput, NameClaimed, Verdict
from lockstep.runtime.etcd import OPERATIONS_MAX, EtcdClient, EtcdInDoubt
from lockstep.runtime.etcd_values import Compare, Operation, TransactionResult
from lockstep.runtime.name_changes import NameChanges
from tests.unit.services.etcd_in_memory import EtcdInMemory

SET, OTHER = SetName("s"), SetName("other")
KEYS = Keys("c")
LEADER, DEPOSED = Incarnation("leader"), Incarnation("deposed")


class Counting(EtcdInMemory):
    """Knows how many operations each transaction had; does not answer as often as told, though it has done it."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.answers_lost = 0

    async def transact(
        self,
        compares: Sequence[Compare],
        on_success: Sequence[Operation],
        on_failure: Sequence[Operation] = (),
    ) -> TransactionResult:
        self.sizes.append(len(on_success))
        result = await super().transact(compares, on_success, on_failure)
        if self.answers_lost:
            self.answers_lost -= 1
            raise EtcdInDoubt(ErrorCode.UNAVAILABLE, "no answer")
        return result


class Scene:
    """A set that LEADER leads, and what its replica hears."""

    def __init__(self) -> None:
        self.etcd = Counting()
        self.etcd.put(KEYS.set_lease(SET), LEADER.encode())
        self.heard: asyncio.Queue[AnyInput] = asyncio.Queue()
        self.changes = NameChanges(cast(EtcdClient, self.etcd), KEYS, self.heard.put_nowait)

    def claim(self, request: int, name: str, incarnation: Incarnation = LEADER) -> None:
        self.changes.perform(ClaimName(SET, request, "queue", name, incarnation))

    def release(self, name: str, incarnation: Incarnation = LEADER) -> None:
        self.changes.perform(ReleaseName(SET, "queue", name, incarnation))

    async def answered(self, count: int) -> dict[int, tuple[Verdict, SetName]]:
        """The next so many answers, by request."""
        found = {}
        async with asyncio.timeout(10):
            for _ in range(count):
                answer = await self.heard.get()
                assert isinstance(answer, NameClaimed)
                found[answer.request] = answer.verdict, answer.owner
        return found

    def owner(self, name: str) -> bytes | None:
        entry = self.etcd.entries.get(KEYS.directory("queue", name))
        return entry.value if entry is not None else None


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.changes.close()


async def test_claims_that_come_together_go_to_etcd_together(scene: Scene) -> None:
    count = 2 * OPERATIONS_MAX + 1
    for number in range(count):
        scene.claim(number, f"q{number}")
    answers = await scene.answered(count)
    assert set(answers.values()) == {(Verdict.DONE, SET)}
    assert scene.etcd.sizes == [OPERATIONS_MAX, OPERATIONS_MAX, 1]
    assert all(scene.owner(f"q{number}") == SET.encode() for number in range(count))


async def test_each_claim_is_answered_by_itself(scene: Scene) -> None:
    scene.etcd.put(KEYS.directory("queue", "theirs"), OTHER.encode())
    scene.etcd.put(KEYS.directory("queue", "ours"), SET.encode())
    for request, name in enumerate(("new", "theirs", "ours")):
        scene.claim(request, name)
    assert await scene.answered(3) == {
        0: (Verdict.DONE, SET),
        1: (Verdict.FAILED, OTHER),
        2: (Verdict.DONE, SET),
    }
    assert scene.owner("theirs") == OTHER.encode()
    assert len(scene.etcd.sizes) == 1


async def test_whoever_does_not_lead_claims_nothing(scene: Scene) -> None:
    scene.etcd.put(KEYS.directory("queue", "theirs"), OTHER.encode())
    scene.claim(1, "new", DEPOSED)
    scene.claim(2, "theirs", DEPOSED)
    answers = await scene.answered(2)
    assert answers[1] == (Verdict.IN_DOUBT, ""), "it is asked again, by whoever leads"
    assert answers[2] == (Verdict.FAILED, OTHER)
    assert scene.owner("new") is None


async def test_claims_without_an_answer_are_in_doubt_and_found_done_when_they_are_made_again(
    scene: Scene,
) -> None:
    scene.etcd.answers_lost = 1
    scene.claim(1, "a")
    scene.claim(2, "b")
    assert await scene.answered(2) == {1: (Verdict.IN_DOUBT, ""), 2: (Verdict.IN_DOUBT, "")}
    scene.claim(3, "a")
    assert await scene.answered(1) == {3: (Verdict.DONE, SET)}


async def test_claims_and_releases_of_a_name_keep_their_order(scene: Scene) -> None:
    scene.claim(1, "q")
    scene.release("q")
    scene.claim(2, "q")
    scene.claim(3, "q")
    scene.release("other")
    assert set((await scene.answered(3)).values()) == {(Verdict.DONE, SET)}
    assert scene.owner("q") == SET.encode()
    scene.release("q", DEPOSED)
    scene.claim(4, "last")
    await scene.answered(1)
    assert scene.owner("q") == SET.encode(), "only who leads gives it back"


async def test_claims_of_two_lives_of_a_process_do_not_go_together(scene: Scene) -> None:
    scene.claim(1, "a", DEPOSED)
    scene.claim(2, "b")
    assert await scene.answered(2) == {1: (Verdict.IN_DOUBT, ""), 2: (Verdict.DONE, SET)}
