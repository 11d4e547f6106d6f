"""Etcd watcher: a full read of very many keys goes in turns, and is one view all the same."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import cast

from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName
from lockstep.core.inputs import AnyInput, MapSeen
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.etcd import Entry, EtcdClient, WatchBatch
from lockstep.runtime.etcd_watcher import ENTRIES_AT_ONCE, EtcdWatcher

KEYS = Keys("test")
ORDERS = SetName("orders")
NAMES = 5 * ENTRIES_AT_ONCE


class Etcd:
    """Has many names, and nothing ever changes."""

    def __init__(self) -> None:
        names = [Entry(KEYS.directory("queue", f"q{number}"), b"orders", 1, 1, 0) for number in range(NAMES)]
        entry = SetMap(
            ORDERS, Epoch(0), BrokerId(""), Incarnation(""), (), (), (BrokerId("B1"),), 1, 1, Incarnation("p")
        )
        self.entries = [*names, Entry(KEYS.set_map(ORDERS), entry.encode(), 5, 5, 0)]

    async def get_prefix(self, prefix: str) -> tuple[list[Entry], int]:
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
        self, entries: Iterable[Entry], revision: int, names: dict[tuple[str, str], SetName] | None = None
    ) -> list[AnyInput]:
        found = list(entries)
        self.looked_at.append(len(found))
        return super().read_all(found, revision, names)


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
