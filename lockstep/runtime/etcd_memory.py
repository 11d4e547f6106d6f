"""Has the own disk remember how far etcd was (DESIGN R1): decisions of transactions are in etcd, in no entry of the map, so that
a restored etcd may have the map as it was, and lack decisions.

Law: cheap, whatever is decided meanwhile: one set's store writes its small meta file, every few seconds, and only when etcd has
gone on. One disk that remembers is enough: when it comes back to an etcd that has less, it has etcd say so to all. So does a
process that lives through it.
"""

from collections.abc import Callable

from lockstep.core.effects import MarkSetBack
from lockstep.core.ids import DiskId, SetName
from lockstep.core.stamps import Stamp
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver

REMEMBERED_EVERY_MS = 5_000
"""Where etcd's revision alone is news. A stamp is remembered at once: they are as rare."""


class EtcdMemory:
    """Lives as long as the process; told of every answer that has etcd's revision, and of every change of the view, on the event
    loop.
    """

    def __init__(
        self,
        view: ClusterView,
        driver: Driver,
        now_ms: Callable[[], int],
        mark: Callable[[MarkSetBack], None],
    ) -> None:
        """`mark` has etcd say that it was set back."""
        self._view = view
        self._driver = driver
        self._now_ms = now_ms
        self._mark = mark
        self._told = 0
        self._told_stamp: Stamp | None = None
        self._next_ms = 0
        self._last: SetName | None = None
        self._marked_in = ""

    def saw(self, revision: int) -> None:
        """etcd was at `revision` when it answered."""
        self._view.saw(revision)
        self.look()

    def look(self) -> None:
        """The view has changed: what is new is remembered."""
        view = self._view
        if view.is_stamp_lost:
            self._have_it_told()
            return
        self._marked_in = ""
        now_ms = self._now_ms()
        is_revision_due = view.etcd_revision != self._told and now_ms >= self._next_ms
        if view.stamp == self._told_stamp and not is_revision_due:
            return
        names = sorted(self._driver.set_names)
        if not names:
            return
        # In turns, so that no disk of a set that rests remembers too little for ever.
        self._last = next((name for name in names if self._last is None or name > self._last), names[0])
        self._told, self._told_stamp = view.etcd_revision, view.stamp
        self._next_ms = now_ms + REMEMBERED_EVERY_MS
        self._driver.feed(view.map_seen(self._last))

    def _have_it_told(self) -> None:
        """This process has seen what etcd lacks now."""
        view, names = self._view, self._driver.set_names
        if view.is_set_back or not names or self._marked_in == view.generation:
            return
        self._marked_in = view.generation
        self._mark(MarkSetBack(min(names), 0, DiskId(""), view.stamp, view.generation))
