"""Etcd watcher: keeps a `ClusterView` current and tells a listener what each set should hear.

Law: nothing is missed for good. Every start, and every end of a watch, is followed by a full read at one revision, from which the
next watch goes on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from lockstep.core.ids import SetName
from lockstep.core.inputs import AnyInput
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.etcd import Entry, EtcdClient, EtcdRejected

_log = logging.getLogger("lockstep.etcd_watcher")

RETRY_PAUSE_SECONDS = 0.1
ENTRIES_AT_ONCE = 1000
"""Of those that are read before others have their turn, some milliseconds: each name of a queue is one."""


class EtcdWatcher:
    """Lives as long as the process; `run` is a task of it. `heard` gets inputs in order, the view being current."""

    def __init__(self, etcd: EtcdClient, view: ClusterView, heard: Callable[[list[AnyInput]], None]) -> None:
        self._etcd = etcd
        self._view = view
        self._heard = heard
        self._has_read = asyncio.Event()

    async def has_read(self) -> None:
        """Returns after the first full read."""
        await self._has_read.wait()

    async def run(self) -> None:
        is_reachable = True
        while True:
            try:
                revision = await self._read_all()
                if not is_reachable:
                    _log.info("event=etcd_reached revision=%d", revision)
                is_reachable, self._view.silent_from_ms = True, 0
                async with contextlib.aclosing(
                    self._etcd.watch_prefix(self._view.keys.prefix, revision + 1)
                ) as batches:
                    async for batch in batches:
                        self._heard(self._view.apply(batch.events))
            except EtcdRejected as error:
                if is_reachable:
                    _log.warning("event=etcd_watch_lost %s", error.message)
                    self._view.silent_from_ms = boottime_ms()
                is_reachable = False
                await asyncio.sleep(RETRY_PAUSE_SECONDS)

    async def _read_all(self) -> int:
        stamps_before, seen_before = self._view.stamps_revision, self._view.etcd_revision
        entries, revision = await self._etcd.get_prefix(self._view.keys.prefix)
        others: list[Entry] = []
        names: dict[tuple[str, str], SetName] = {}
        for at in range(0, len(entries), ENTRIES_AT_ONCE):
            others += self._view.names_in(entries[at : at + ENTRIES_AT_ONCE], names)
            await asyncio.sleep(0)
        self._heard(self._view.read_all(others, revision, names, stamps_before, seen_before))
        self._has_read.set()
        return revision

    async def read_set(self, set_name: SetName) -> None:
        """Reads one set's keys again, as long as it takes, and tells the listener."""
        while True:
            try:
                prefix = f"{self._view.keys.sets}{set_name}/"
                entries, revision = await self._etcd.get_prefix(prefix)
            except EtcdRejected:
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
                continue
            self._heard(self._view.read_set(set_name, entries, revision))
            return
