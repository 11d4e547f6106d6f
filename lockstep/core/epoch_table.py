"""Epoch table: at which index every epoch of a log began. Two logs match up to an index when both have the same epoch there.

Law: epochs and their first indexes both strictly ascend. It is derived from frame headers alone, so it is the same for every
copy of the log, and a few bytes for every change of primary: nothing needs to prune it for its size.
"""

from bisect import bisect_right

from lockstep.core.ids import Epoch, LogIndex


class EpochTable:
    """The epochs of one log, in a state or over a journal. Lives as long as what it describes, which alone changes it."""

    __slots__ = ("_epochs", "_firsts")

    def __init__(self, entries: list[tuple[Epoch, LogIndex]] | None = None) -> None:
        self._epochs: list[Epoch] = []
        self._firsts: list[LogIndex] = []
        for epoch, first in entries or ():
            self.observe(epoch, first)

    @property
    def last(self) -> Epoch:
        """The highest epoch seen; 0 before the first frame."""
        return self._epochs[-1] if self._epochs else Epoch(0)

    @property
    def entries(self) -> list[tuple[Epoch, LogIndex]]:
        """All (epoch, first index), ascending."""
        return list(zip(self._epochs, self._firsts, strict=True))

    def observe(self, epoch: Epoch, index: LogIndex) -> bool:
        """Told of a record or frame at `index`; answers whether a new epoch began with it. A lower epoch is our own bug."""
        if self._epochs:
            if epoch == self._epochs[-1]:
                return False
            assert epoch > self._epochs[-1], f"epoch {epoch} at {index} behind epoch {self._epochs[-1]}"
            assert index > self._firsts[-1], (
                f"epoch {epoch} at {index} overlaps the one from {self._firsts[-1]}"
            )
        self._epochs.append(epoch)
        self._firsts.append(index)
        return True

    def epoch_at(self, index: LogIndex) -> Epoch | None:
        """The epoch of the record at `index`; 0 for index 0, None before the table's first epoch.

        Of an index behind the log's end it says what a record of the last epoch would have: the caller knows the end.
        """
        if index == 0:
            return Epoch(0)
        place = bisect_right(self._firsts, index)
        return self._epochs[place - 1] if place else None

    def first_of(self, epoch: Epoch) -> LogIndex | None:
        """The first index of `epoch`, None if it is not in the table."""
        return next(
            (first for known, first in zip(self._epochs, self._firsts, strict=True) if known == epoch), None
        )

    def cut(self, last: LogIndex) -> None:
        """The log was cut behind `last`: forget epochs that began after it."""
        place = bisect_right(self._firsts, last)
        del self._epochs[place:], self._firsts[place:]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EpochTable):
            return NotImplemented
        return self._epochs == other._epochs and self._firsts == other._firsts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"EpochTable({self.entries!r})"
