"""Etcd watcher: a full read of very many keys goes in turns, and is one view all the same."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import replace
from typing import cast

from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName
from lockstep.core.inputs import AnyInput, MapSeen
from lockstep.core.stamps import NO_STAMPS, Stamp
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.etcd import Entry, EtcdClient, PutEvent, WatchBatch, WatchLost
from lockstep.runtime.etcd_watcher import ENTRIES_AT_ONCE, EtcdWatcher

KEYS = Keys("test")
ORDERS = SetName("orders")
NAMES = 5 * ENTRIES_AT_ONCE


class Etcd:
    """Has many names, and nothing ever changes."""

    def __init__(self, while_read: Callable[[], None] = lambda: None) -> None:
        """`while_read` happens between a read and its answer."""
        self.while_read = while_read
        names = [Entry(KEYS.directory("queue", f"q{number}"), b"orders", 1, 1, 0) for number in range(NAMES)]
        entry = SetMap(
            ORDERS, Epoch(0), BrokerId(""), Incarnation(""), (), (), (BrokerId("B1"),), 1, 1, Incarnation("p")
        )
        self.entries = [*names, Entry(KEYS.set_map(ORDERS), entry.encode(), 5, 5, 0)]

    async def get_prefix(self, prefix: str) -> tuple[list[Entry], int]:
        self.while_read()
        return self.entries, 9

    async def watch_prefix(self, prefix: str, start: int) -> AsyncGenerator[WatchBatch, None]:
        assert start == 10
        await asyncio.Event().wait()
        yield WatchBatch((), 0, 0)


class View(ClusterView):
    """Counts what is looked at in one go."""

    def __init__(self) -> None:
        super().__init__(KEYS)
        self.looked_at: list[int] = []

    def names_in(self, entries: Iterable[Entry], names: dict[tuple[str, str], SetName]) -> list[Entry]:
        found = list(entries)
        self.looked_at.append(len(found))
        return super().names_in(found, names)

    def read_all(
        self,
        entries: Iterable[Entry],
        revision: int,
        names: dict[tuple[str, str], SetName] | None = None,
        stamps_before: int | None = None,
        seen_before: int = 0,
    ) -> list[AnyInput]:
        found = list(entries)
        self.looked_at.append(len(found))
        return super().read_all(found, revision, names, stamps_before, seen_before)


async def test_very_many_names_are_read_in_turns() -> None:
    view, heard = View(), list[AnyInput]()
    watcher = EtcdWatcher(cast(EtcdClient, Etcd()), view, heard.extend)
    turns = 0
    running = asyncio.ensure_future(watcher.run())
    while not heard:
        turns += 1
        assert not view.directory, "nobody sees a part"
        await asyncio.sleep(0)
    await watcher.has_read()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert turns >= NAMES // ENTRIES_AT_ONCE
    assert max(view.looked_at) <= ENTRIES_AT_ONCE
    assert len(view.directory) == NAMES and view.directory["queue", "q7"] == ORDERS
    assert isinstance(heard[0], MapSeen) and view.set_map(ORDERS) is not None


async def read(etcd: Etcd, view: ClusterView) -> None:
    """All of it, once."""
    watcher = EtcdWatcher(cast(EtcdClient, etcd), view, lambda _: None)
    running = asyncio.ensure_future(watcher.run())
    await watcher.has_read()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_stamp_that_was_put_while_all_is_read_stays() -> None:
    view, stamps = ClusterView(KEYS), NO_STAMPS.stamped(Stamp("p", 1, 9))
    await read(Etcd(lambda: view.stamps_put(stamps.encode(), 10)), view)
    assert (view.stamps, view.stamps_revision, view.is_stamp_lost) == (stamps, 10, False)


async def test_a_stamp_that_was_put_before_all_is_read_and_is_not_there_was_lost() -> None:
    view, stamps = ClusterView(KEYS), NO_STAMPS.stamped(Stamp("p", 1, 9))
    view.stamps_put(stamps.encode(), 10)
    await read(Etcd(), view)
    assert view.is_stamp_lost


async def test_an_etcd_that_answers_with_less_than_was_seen_before_was_set_back_and_is_taken_as_it_is() -> (
    None
):
    view, etcd = ClusterView(KEYS), Etcd()
    (entry,) = (one for one in etcd.entries if one.key == KEYS.set_map(ORDERS))
    later = Entry(entry.key, replace(SetMap.decode(entry.value), epoch=Epoch(2)).encode(), 40, 40, 0)
    view.apply([PutEvent(later)])
    await read(etcd, view)
    assert view.sets[ORDERS].map_revision == 5


async def test_a_set_of_which_more_is_heard_while_all_is_read_stays_as_it_was_heard() -> None:
    view = ClusterView(KEYS)
    (entry,) = (one for one in Etcd().entries if one.key == KEYS.set_map(ORDERS))
    later = Entry(entry.key, replace(SetMap.decode(entry.value), epoch=Epoch(2)).encode(), 40, 40, 0)

    def hear() -> None:
        view.apply([PutEvent(later)])

    await read(Etcd(hear), view)
    assert view.sets[ORDERS].map_revision == 40


class Flickering(Etcd):
    """Its watch ends, and it is away for a moment, once."""

    batches: tuple[WatchBatch, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.comes_back = asyncio.Event()
        self.goes = asyncio.Event()
        self.is_away = False

    async def get_prefix(self, prefix: str) -> tuple[list[Entry], int]:
        if self.is_away:
            await self.comes_back.wait()
        return await super().get_prefix(prefix)

    async def watch_prefix(self, prefix: str, start: int) -> AsyncGenerator[WatchBatch, None]:
        await self.goes.wait()
        self.goes.clear()
        self.is_away = True
        for batch in self.batches:
            yield batch
        raise WatchLost(ErrorCode.UNAVAILABLE, "it went away")


async def test_since_when_nothing_is_heard_of_etcd_is_known_until_it_is_back() -> None:
    etcd, view = Flickering(), ClusterView(KEYS)
    watcher = EtcdWatcher(cast(EtcdClient, etcd), view, lambda _: None)
    running = asyncio.ensure_future(watcher.run())
    await watcher.has_read()
    assert view.silent_from_ms == 0
    before = boottime_ms()
    etcd.goes.set()
    async with asyncio.timeout(30):
        while not view.silent_from_ms:
            await asyncio.sleep(0.01)
        assert before <= view.silent_from_ms <= boottime_ms()
        etcd.comes_back.set()
        while view.silent_from_ms:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
