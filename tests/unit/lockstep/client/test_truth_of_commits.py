"""What a commit tells is what is in the log, whatever happens to the set at whichever moment."""

import asyncio
import random
from collections.abc import Callable

import pytest

from lockstep.client import InDoubt, Rejected, Session, Transaction
from lockstep.core import commands as c
from tests.unit.lockstep.client.at_wait import AtWait, run
from tests.unit.lockstep.client.fake_broker import FakeBroker
from tests.unit.lockstep.client.fake_primary import Entry, FakeSet

ROUNDS = 3
"""At each place where the work waits."""


def lose_session(world: FakeSet, _chance: random.Random) -> None:
    """Its time-out; what it had open is rolled back."""
    world.ended.update(index for index, entry in enumerate(world.log, 1) if entry.session_id)  # type: ignore[misc]
    world.hand_over()
    world.kept_from = world.epoch


FAULTS: dict[str, Callable[[FakeSet, random.Random], object]] = {
    "fail over": lambda world, chance: world.fail_over(chance.randint(0, 6)),
    "restart": lambda world, _: world.restart(),
    "hand over": lambda world, _: world.hand_over(),
    "loss of the session": lose_session,
    "loss of the stream": lambda _world, _chance: None,
}


def check(world: FakeSet, transaction: Transaction, error: BaseException | None) -> str:
    """What was told; fails where the log says otherwise."""
    key = transaction._key
    log = world.log[: world.commit_index]
    commits = [one.command for one in log if _is_commit(one) and one.command.transaction == key]  # type: ignore[union-attr]
    assert len(commits) <= 1
    if error is None:
        assert commits, "told that it committed"
    elif isinstance(error, Rejected):
        assert not commits, "told that it did not"
    else:
        assert isinstance(error, InDoubt)
    for commit in commits:
        assert isinstance(commit, c.CommitCommand)
        published = [
            one for one in world.executed() if isinstance(one, c.PublishCommand) and one.transaction == key
        ]
        assert commit.operations == len(published), "none is lacking, and none was done twice"
        assert sum(len(one.messages) for one in published) == 3
    return type(error).__name__


def _is_commit(entry: Entry) -> bool:
    return isinstance(entry.command, c.CommitCommand) and not entry.code


@pytest.mark.parametrize("takes_last_publish", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
async def test_what_a_commit_tells_is_true(
    broker: FakeBroker, session: Session, fault: str, takes_last_publish: bool
) -> None:
    world, chance = broker.worlds["one"], random.Random(fault)
    world.takes_last_publish = takes_last_publish
    await session.publish("a", b"warm")
    told: set[str] = set()
    place, ended = 0, False
    while not ended:
        place += 1
        for number in range(ROUNDS):
            transaction = session.transaction(timeout_ms=0 if number % 2 else 5_000)

            async def work(transaction: Transaction = transaction) -> None:
                async with transaction:
                    await transaction.publish("a", b"1")
                    await transaction.publish("b", b"2")
                    await transaction.publish("a", b"3")

            def strike() -> None:
                FAULTS[fault](world, chance)
                broker.is_holding = False
                broker.hang_up()

            def act() -> None:
                # Held, what it waits for comes into the log first, and its answer is lost.
                if broker.is_holding:
                    asyncio.get_running_loop().call_later(0.02, strike)
                else:
                    strike()

            broker.is_holding = number > 0
            working = AtWait(work(), place, act)
            if broker.is_holding:
                broker.let_go_after(0.1)
            told.add(check(world, transaction, await run(working)))
            ended = working.waits < place
    assert place > 2, "it waits somewhere"
    assert "NoneType" in told
