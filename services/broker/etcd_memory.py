"""Has the own disk remember how far etcd was (DESIGN R1): decisions of transactions are in etcd, in no entry of the map, so that
a restored etcd may have the map as it was, and lack decisions.

Law: cheap, whatever is decided meanwhile: one set's store writes its small meta file, every few seconds, and only when etcd has
gone on. One disk that remembers is enough: when it comes back to an etcd that has less, it has etcd say so to all.
"""

from collections.abc import Callable

from lockstep.core.ids import SetName
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver

REMEMBERED_EVERY_MS = 5_000
"""What is decided in the last moment before everybody dies is known to no disk; but backups of etcd are older than that."""


class EtcdMemory:
    """Lives as long as the broker process; told of every answer that has etcd's revision, on the event loop."""

    def __init__(self, view: ClusterView, driver: Driver, now_ms: Callable[[], int]) -> None:
        self._view = view
        self._driver = driver
        self._now_ms = now_ms
        self._told = 0
        self._next_ms = 0
        self._last: SetName | None = None

    def saw(self, revision: int) -> None:
        """etcd was at `revision` when it answered."""
        view, now_ms = self._view, self._now_ms()
        view.saw(revision)
        if view.etcd_revision == self._told or now_ms < self._next_ms:
            return
        names = sorted(self._driver.set_names)
        if not names:
            return
        # In turns, so that no disk of a set that rests remembers too little for ever.
        self._last = next((name for name in names if self._last is None or name > self._last), names[0])
        self._told, self._next_ms = view.etcd_revision, now_ms + REMEMBERED_EVERY_MS
        self._driver.feed(view.map_seen(self._last))
