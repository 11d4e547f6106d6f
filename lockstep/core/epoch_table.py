"""Epoch table: at which index every epoch of a log began. Two logs match up to an index when both have the same epoch there.

Law: epochs and their first indexes both strictly ascend. It is derived from frame headers alone, so it is the same for every
copy of the log, and a few bytes for every change of primary: nothing needs to prune it for its size.

An epoch is begun once, by one primary. Where an etcd that was set back lets another begin it once more, *reigns* tell the two
apart: a frame says which primary wrote it, in a number made of that one's incarnation. A table knows them from the frames that it
was told of, and from tables of others; a log of an earlier version has none. So they are no part of the state, and what has no
reign is compared without.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from lockstep.core.ids import Epoch, Incarnation, LogIndex

EpochStarts = tuple[tuple[Epoch, LogIndex], ...]
"""(epoch, first index), ascending."""
Reigns = tuple[tuple[Epoch, int], ...]
"""(epoch, reign) of those that are known, ascending."""
UNKNOWN_REIGN = 0
REIGN_MAX = 0xFFFF


def reign_of(incarnation: Incarnation) -> int:
    """The reign of a primary, from 1 to `REIGN_MAX`: two that began the same epoch have the same one once in so many times."""
    return zlib.crc32(incarnation.encode()) % REIGN_MAX + 1


class LogOutline(NamedTuple):
    """What tells of one log where it is another one, too (`agreement`)."""

    epochs: EpochStarts
    end: LogIndex
    reigns: Reigns = ()


class EpochTable:
    """The epochs of one log, in a state or over a journal. Lives as long as what it describes, which alone changes it."""

    __slots__ = ("_epochs", "_firsts", "_reigns", "last", "last_reign")

    def __init__(self, entries: Iterable[tuple[Epoch, LogIndex]] = (), reigns: Reigns = ()) -> None:
        self._epochs: list[Epoch] = []
        self._firsts: list[LogIndex] = []
        self._reigns: dict[Epoch, int] = {}
        self.last = Epoch(0)
        """The highest epoch seen; 0 before the first frame."""
        self.last_reign = UNKNOWN_REIGN
        """Of that one."""
        for epoch, first in entries:
            self.observe(epoch, first)
        self.learn(reigns)

    @property
    def entries(self) -> list[tuple[Epoch, LogIndex]]:
        """All (epoch, first index), ascending."""
        return list(zip(self._epochs, self._firsts, strict=True))

    @property
    def reigns(self) -> Reigns:
        return tuple(sorted(self._reigns.items()))

    def outline(self, end: LogIndex) -> LogOutline:
        """Of the log, which ends at `end`."""
        return LogOutline(tuple(self.entries), end, self.reigns)

    def observe(self, epoch: Epoch, index: LogIndex, reign: int = UNKNOWN_REIGN) -> bool:
        """Told of a record or frame at `index`; answers whether a new epoch began with it. A lower epoch is our own bug."""
        if self._epochs:
            if epoch == self.last:
                if reign != self.last_reign and not self.last_reign:
                    self._reigns[epoch] = self.last_reign = reign
                return False
            assert epoch > self.last, f"epoch {epoch} at {index} behind epoch {self.last}"
            assert index > self._firsts[-1], (
                f"epoch {epoch} at {index} overlaps the one from {self._firsts[-1]}"
            )
        self._epochs.append(epoch)
        self._firsts.append(index)
        self.last, self.last_reign = epoch, reign
        if reign:
            self._reigns[epoch] = reign
        return True

    def learn(self, reigns: Reigns) -> None:
        """Told of reigns by whoever has this very log, or more of it."""
        known = set(self._epochs)
        for epoch, reign in reigns:
            if epoch in known:
                self._reigns.setdefault(epoch, reign)
        self.last_reign = self._reigns.get(self.last, UNKNOWN_REIGN)

    def epoch_at(self, index: LogIndex) -> Epoch | None:
        """The epoch of the record at `index`; 0 for index 0, None before the table's first epoch.

        Of an index behind the log's end it says what a record of the last epoch would have: the caller knows the end.
        """
        if index == 0:
            return Epoch(0)
        place = bisect_right(self._firsts, index)
        return self._epochs[place - 1] if place else None

    def reign_in(self, epoch: Epoch) -> int:
        """Whose epoch it is here; `UNKNOWN_REIGN` where that is not known, or there is none."""
        return self._reigns.get(epoch, UNKNOWN_REIGN)

    def first_of(self, epoch: Epoch) -> LogIndex | None:
        """The first index of `epoch`, None if it is not in the table."""
        return next(
            (first for known, first in zip(self._epochs, self._firsts, strict=True) if known == epoch), None
        )

    def cut(self, last: LogIndex) -> None:
        """The log was cut behind `last`: forget epochs that began after it."""
        place = bisect_right(self._firsts, last)
        for epoch in self._epochs[place:]:
            self._reigns.pop(epoch, None)
        del self._epochs[place:], self._firsts[place:]
        self.last = self._epochs[-1] if self._epochs else Epoch(0)
        self.last_reign = self._reigns.get(self.last, UNKNOWN_REIGN)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EpochTable):
            return NotImplemented
        return self._epochs == other._epochs and self._firsts == other._firsts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"EpochTable({self.entries!r})"


def rival_epoch(one: LogOutline, other: LogOutline) -> Epoch | None:
    """The first epoch that has begun twice, once in each of two logs; None: there is none, as far as their tables tell."""
    firsts = dict(one.epochs[1:])
    moved = {epoch for epoch, first in other.epochs[1:] if firsts.get(epoch, first) != first}
    return min(moved | _under_two(one, other), default=None)


def agreement(one: LogOutline, other: LogOutline) -> LogIndex:
    """The highest index up to which two logs are the same.

    `(index, epoch)` names one content for ever (DESIGN 3), so the logs agree at an index where both have the same epoch, if they
    do before it: where an etcd that was set back let an epoch begin twice, its two logs agree no further than what they began
    behind, as far as their tables tell. A table may begin late where a snapshot replaced the log's beginning; below that its
    owner agrees with whoever agrees at it.
    """
    rivals = _under_two(one, other)
    late, early = _spans(one.epochs, one.end), _spans(other.epochs, other.end)
    if not late or not early:
        return LogIndex(0)
    if late[0][1] < early[0][1]:
        late, early = early, late
    epoch, begin, _ = late[0]
    place = next((place for place, span in enumerate(early) if span[0] == epoch and span[1] <= begin), None)
    if place is None or epoch in rivals:
        return LogIndex(0)
    agreed = min(late[0][2], early[place][2])
    for ours, theirs in zip(late[1:], early[place + 1 :], strict=False):
        if ours[:2] != theirs[:2] or ours[0] in rivals:
            break
        agreed = min(ours[2], theirs[2])
    return agreed


def _under_two(one: LogOutline, other: LogOutline) -> set[Epoch]:
    """Epochs that each of two logs has from another primary, as far as both reigns are known."""
    reigns = dict(one.reigns)
    return {epoch for epoch, reign in other.reigns if reigns.get(epoch, reign) != reign}


def _spans(starts: EpochStarts, end: LogIndex) -> list[tuple[Epoch, LogIndex, LogIndex]]:
    """(epoch, first index, last index) for each epoch of a table."""
    ends = [LogIndex(first - 1) for _, first in starts[1:]] + [end]
    return [(epoch, first, last) for (epoch, first), last in zip(starts, ends[: len(starts)], strict=True)]
