"""Which set has a name: asked of etcd together, as of after the question, and not without limit."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.etcd import OPERATIONS_MAX, EtcdClient, EtcdRejected
from lockstep.runtime.etcd_values import Entry
from services.broker import name_lookups
from services.broker.name_lookups import NameLookups
from tests.unit.services.etcd_in_memory import EtcdInMemory


class Held(EtcdInMemory):
    """Answers a read when it is let go; what it answers is of that moment's beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.is_away = False

    async def get_many(self, keys: Sequence[str]) -> dict[str, Entry]:
        self.reads.append(list(keys))
        found = await super().get_many(keys)
        await self.may_answer.wait()
        if self.is_away:
            raise EtcdRejected(ErrorCode.UNAVAILABLE, "no answer to a read")
        return found


class Scene:
    def __init__(self) -> None:
        self.etcd = Held()
        self.lookups = NameLookups(cast(EtcdClient, self.etcd))

    async def ask(self, *keys: str) -> "list[asyncio.Task[bytes | None]]":
        """All at once; the first read, if there is none yet, is under way when it returns."""
        asked = [asyncio.create_task(self.lookups.value(key)) for key in keys]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return asked


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.lookups.close()


async def test_what_is_asked_for_while_a_read_is_under_way_goes_with_the_next(scene: Scene) -> None:
    scene.etcd.put("k0", b"s")
    first = await scene.ask("k0")
    others = await scene.ask(*(f"k{number}" for number in range(1, 2 * OPERATIONS_MAX + 1)))
    scene.etcd.may_answer.set()
    assert await asyncio.gather(*first) == [b"s"]
    assert await asyncio.gather(*others) == [None] * len(others)
    assert [len(keys) for keys in scene.etcd.reads] == [1, OPERATIONS_MAX, OPERATIONS_MAX]


async def test_who_asks_for_the_same_name_waits_for_the_same_answer(scene: Scene) -> None:
    await scene.ask("busy")
    asked = await scene.ask("k", "k", "k")
    scene.etcd.may_answer.set()
    await asyncio.gather(*asked)
    assert scene.etcd.reads == [["busy"], ["k"]]


async def test_an_answer_is_of_a_read_that_began_after_the_question(scene: Scene) -> None:
    """The name was claimed, and its client told so, while an earlier read was on its way back."""
    (early,) = await scene.ask("k")
    scene.etcd.put("k", b"s")
    (late,) = await scene.ask("k")
    scene.etcd.may_answer.set()
    assert (await early, await late) == (None, b"s")


async def test_whoever_gives_up_takes_the_answer_from_nobody_else(scene: Scene) -> None:
    await scene.ask("busy")
    first, second = await scene.ask("k", "k")
    first.cancel()
    scene.etcd.may_answer.set()
    assert await second is None


async def test_without_etcd_nobody_is_told_that_a_name_is_free(scene: Scene) -> None:
    asked = await scene.ask("k", "l")
    scene.etcd.is_away = True
    scene.etcd.may_answer.set()
    for one in asked:
        with pytest.raises(Rejected) as error:
            await one
        assert error.value.code is ErrorCode.UNAVAILABLE
    scene.etcd.is_away = False
    assert await scene.lookups.value("k") is None, "and the next question is asked"


async def test_questions_beyond_the_limit_are_told_to_come_again_and_are_a_line(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.ask("busy")
    asked = await scene.ask(*(f"k{number}" for number in range(name_lookups.WAITING_MAX)))
    for key in ("one more", "and another"):
        with pytest.raises(Rejected, match="ask again") as error:
            await scene.lookups.value(key)
        assert error.value.code is ErrorCode.UNAVAILABLE
    assert len([line for line in caplog.messages if "limit=name_lookups_max " in line]) == 1
    scene.etcd.may_answer.set()
    await asyncio.gather(*asked)
