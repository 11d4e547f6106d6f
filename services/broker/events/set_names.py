"""Names of all resource sets, for whoever makes something that holds for all of them.

Law: this broker's view of etcd may lag: a set that it lacks may be there. Where that would break a promise, etcd is asked, and
the view is waited for: only then can the sets be reached, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Set

from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import SetName
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.etcd import Entry

VIEW_WAIT_SECONDS = 2.0
"""The watch brings news in milliseconds, or it is lost."""
VIEW_LOOK_SECONDS = 0.02


class SetNames:
    """Lives as long as the process."""

    def __init__(
        self,
        view: ClusterView,
        read: Callable[[str], Awaitable[tuple[list[Entry], int]]],
        wait_seconds: float = VIEW_WAIT_SECONDS,
    ) -> None:
        """`read`: all of etcd below a prefix, as it is now; raises `EtcdRejected`. `wait_seconds`: for the view."""
        self._view = view
        self._read = read
        self._wait_seconds = wait_seconds

    def known(self) -> list[SetName]:
        """Those in this broker's view, sorted."""
        return [name for name in sorted(self._view.sets) if self._view.set_map(name) is not None]

    async def all(self) -> list[SetName]:
        """All that there were at some moment of this call, or more, the oldest first. Raises `Rejected` UNAVAILABLE if etcd does
        not answer, or the view does not get as far.
        """
        entries, revision = await self._read(self._view.keys.sets)
        there = {
            name: entry.create_revision for entry in entries if (name := self._set_of(entry.key)) is not None
        }
        deadline = asyncio.get_running_loop().time() + self._wait_seconds
        while missing := there.keys() - set(self.known()):
            if asyncio.get_running_loop().time() >= deadline:
                name = min(missing)
                text = f"this broker has not heard of resource set {name!r} yet, which etcd has"
                raise Rejected(ErrorCode.UNAVAILABLE, text, set_name=name)
            await asyncio.sleep(VIEW_LOOK_SECONDS)
        # What the view has beyond that came behind it.
        return sorted(self.known(), key=lambda name: (there.get(name, revision + 1), name))

    async def missing(self, names: Set[str]) -> set[str]:
        """Those that no resource set had at some moment of this call: none is ever deleted, so none had before. Where etcd does
        not answer, or was set back and may lack one, nobody can tell, and none is missing.
        """
        asked_at = self._view.etcd_revision
        try:
            entries, revision = await self._read(self._view.keys.sets)
        except LockstepError:
            return set()
        if revision < asked_at or self._view.is_set_back or self._view.is_stamp_lost:
            return set()
        return set(names) - {self._set_of(entry.key) for entry in entries} - set(self.known())

    def _set_of(self, key: str) -> SetName | None:
        """Whose map entry this is; None: a key of another kind."""
        name = SetName(key.removeprefix(self._view.keys.sets).partition("/")[0])
        return name if key == self._view.keys.set_map(name) else None
