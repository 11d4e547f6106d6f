"""Parting: a replica that has handed its set over, and waits until those who followed it have heard so (DESIGN 2, T8).

Law: its lease key goes only then, or after a while: who hears of the free key before the word of the hand-over would be promoted
without what goes with it. A backup that has heard it ends its subscription.
"""

from collections.abc import Iterable

from lockstep.core.clock import Now
from lockstep.core.ids import Epoch
from lockstep.core.inputs import AnyInput, BackupStreamClosed, LeaseLost, MapSeen, StoreLost


class Parting:
    """Lives from the hand-over to the end of the lease key; driven by the replica."""

    def __init__(self, epoch: Epoch, streams: Iterable[int], now: Now) -> None:
        """`streams`: of backups that are to be told, from now on."""
        self.streams = set(streams)
        """Of those that have not heard yet, as far as is known."""
        self._epoch = epoch
        self._begun_ms = now.boottime_ms
        self._until_ms: int | None = None
        """How long it waits for them, on CLOCK_BOOTTIME; None: they are not told yet."""
        self._is_cut_short = False

    def is_over(self, now: Now) -> bool:
        """Everybody has heard, or was given the time to, or nothing is left to wait for."""
        if self._is_cut_short:
            return True
        return self._until_ms is not None and (not self.streams or now.boottime_ms >= self._until_ms)

    def told(self, patience_ms: int, now: Now) -> None:
        """The word of the hand-over is said. What took long to be gathered takes as long to be heard, and so much more."""
        self._until_ms = 2 * now.boottime_ms - self._begun_ms + patience_ms

    def take(self, given: AnyInput) -> None:
        match given:
            case BackupStreamClosed():
                self.streams.discard(given.stream)
            case LeaseLost() | StoreLost():
                self._is_cut_short = True
            case MapSeen() if given.set_map is None or given.set_map.epoch != self._epoch:
                self._is_cut_short = True
            case _:
                pass
