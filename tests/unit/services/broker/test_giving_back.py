"""A set is given back to its first broker in a turn, which nobody else has meanwhile, and which ends when it lacks nobody."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest

from lockstep.core.cluster_map import Keys, Member
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId
from lockstep.core.inputs import AnyInput, HandOver
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.etcd_values import DeleteEvent, Entry, EtcdRejected, LeaseGranted, PutEvent
from services.broker import giving_back
from services.broker.giving_back import GivesBack
from services.broker.turn import GIVING_BACK, Turn
from tests.unit.services.etcd_in_memory import EtcdInMemory
from tests.unit.services.replicas import SET, entry, leading, member

OWN, FIRST = BrokerId("a"), BrokerId("b")
KEYS = Keys("c")
TURN = f"{KEYS.prefix}stepping-down"
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_SECONDS", "WATCH_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(giving_back, name, 0.01)


class FirstCameBack:
    """Broker a serves the set in epoch 2, whose first broker b is there again; a driver that keeps what it is fed."""

    def __init__(self) -> None:
        self.etcd, self.view = EtcdInMemory(), ClusterView(KEYS)
        self.replica = leading().replica
        self.fed: list[AnyInput] = []
        self.set_names = [SET]
        self._revision = 10
        self.members = [member("a"), member("b")]
        for one in self.members:
            self.come(one)
        self.lead(2, member("a"))

    def core(self, _: object) -> object:
        return self.replica

    def feed(self, given: AnyInput) -> None:
        self.fed.append(given)

    def lead(self, epoch: int, primary: Member, *lacking: Member) -> None:
        """The map shows this broker to lead."""
        others = [one for one in self.members if one != primary and one not in lacking]
        set_map = replace(entry(epoch, primary, *others), brokers=(FIRST, OWN))
        self._put(KEYS.set_map(SET), set_map.encode())

    def come(self, one: Member) -> None:
        self._put(KEYS.presence(SET, one.broker), one.incarnation.encode())

    def go(self, one: Member) -> None:
        self._revision += 1
        self.view.apply([DeleteEvent(KEYS.presence(SET, one.broker), self._revision)])

    def _put(self, key: str, value: bytes) -> None:
        self._revision += 1
        self.view.apply([PutEvent(Entry(key, value, self._revision, self._revision, 0))])

    @contextlib.asynccontextmanager
    async def giving(self, wait_seconds: float = 0) -> AsyncIterator[None]:
        gives = GivesBack(OWN, cast(EtcdClient, self.etcd), self.view, cast(Driver, self), wait_seconds)
        running = asyncio.ensure_future(gives.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert TURN not in self.etcd.entries or not self.has_turn, "whoever stops has no turn"

    @property
    def has_turn(self) -> bool:
        held = self.etcd.entries.get(TURN)
        return held is not None and held.value == (OWN + GIVING_BACK).encode()

    async def until(self, what: str) -> None:
        async with asyncio.timeout(10):
            while not (self.fed if what == "fed" else not self.has_turn):
                await asyncio.sleep(0.01)


async def test_it_is_handed_over_once_and_the_turn_ends_when_it_lacks_nobody() -> None:
    came = FirstCameBack()
    async with came.giving():
        await came.until("fed")
        assert came.fed == [HandOver(SET, FIRST)] and came.has_turn
        came.lead(3, member("b"), member("a"))
        await asyncio.sleep(0.1)
        assert came.has_turn, "this broker has not come back to it yet"
        came.lead(3, member("b"))
        await came.until("turn ended")
        await asyncio.sleep(0.05)
        assert len(came.fed) == 1


async def test_a_hand_over_that_nobody_takes_is_waited_for_and_not_repeated_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(giving_back, "WHOLE_SECONDS", 0.05)
    came = FirstCameBack()
    async with came.giving(wait_seconds=1):
        await came.until("fed")
        await came.until("turn ended")
        await asyncio.sleep(1.2)
        assert came.fed == [HandOver(SET, FIRST)], "twice the time has to pass"


@pytest.mark.parametrize("holder", [b"b", b"a", b"b" + GIVING_BACK.encode()])
async def test_nothing_is_given_while_somebody_is_about_to_stop_or_gives_back(holder: bytes) -> None:
    """This broker itself may be the one that is about to stop."""
    came = FirstCameBack()
    came.etcd.put(TURN, holder)
    async with came.giving():
        await asyncio.sleep(0.2)
        assert came.fed == []
        assert came.etcd.entries[TURN].value == holder
        del came.etcd.entries[TURN]
        await came.until("fed")


async def test_what_changed_while_the_turn_was_taken_is_seen() -> None:
    came = FirstCameBack()
    taken = came.etcd.transact

    async def transact(*arguments: object) -> object:
        came.go(member("b"))
        return await taken(*arguments)  # type: ignore[arg-type]

    came.etcd.transact = transact  # type: ignore[method-assign, assignment]
    async with came.giving():
        await asyncio.sleep(0.1)
        assert came.fed == [] and not came.has_turn


async def test_without_etcd_it_is_tried_again_later() -> None:
    came = FirstCameBack()
    granted, failures = came.etcd.lease_grant, [EtcdRejected(ErrorCode.UNAVAILABLE, "an election")] * 3

    async def lease_grant(*arguments: int) -> LeaseGranted:
        if failures:
            raise failures.pop()
        return await granted(*arguments)

    came.etcd.lease_grant = lease_grant  # type: ignore[method-assign, assignment]
    async with came.giving():
        await came.until("fed")
        assert not failures


async def test_who_is_about_to_stop_waits_for_who_gives_back_and_says_so() -> None:
    came = FirstCameBack()
    async with came.giving():
        await came.until("fed")
        for broker in (OWN, FIRST):
            turn = Turn(cast(EtcdClient, came.etcd), KEYS.prefix, broker)
            assert await turn.take() == "a, which gives a set back"
            await turn.end()
        assert came.has_turn, "what did not have it cannot end it"


async def test_a_turn_is_its_own_brokers_again_and_nobody_elses() -> None:
    etcd = cast(EtcdClient, EtcdInMemory())
    turn, again, other = (Turn(etcd, KEYS.prefix, BrokerId(name)) for name in ("a", "a", "b"))
    assert (await turn.take(), turn.is_new) == ("", True)
    assert (await again.take(), again.is_new) == ("", False)
    assert await other.take() == "a is about to stop"
    await turn.end()
    assert await other.take() == "a is about to stop", "it hangs on the lease under which it was put last"
    await again.end()
    assert (await other.take(), other.is_new) == ("", True)
