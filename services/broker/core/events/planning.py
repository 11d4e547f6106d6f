"""Plans: consistent cuts over the logs of several resource sets (DESIGN 7; histories 15 and 28).

Law: a cut is chosen by one commit time, lies between records in every log, and is *closed*: a transaction of our coordinator that
has committed at or below the cut in one set has ended at or below it in every set where it has a branch. A branch holds its
siblings until its set has any outcome; only the sets that it ties are held.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lockstep.core.branch_names import GlobalId, branch_name
from lockstep.core.ids import Epoch, LogIndex, SetName, TimeMs
from lockstep.core.server_messages import BranchEnd
from lockstep.core.xid import Xid

SPLIT_EVENTS = 20_000
"""A range of more events than this may be read in parts of about so many."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Everything at or below `index` of one log; `epoch`: of the record there, 0 for index 0."""

    index: LogIndex
    epoch: Epoch


class Mark(NamedTuple):
    """The end of a stretch of a log."""

    offset: Offset
    time_ms: TimeMs
    events: int
    """Behind the mark before."""


@dataclass(frozen=True, slots=True)
class JointCommit:
    """A branch that was prepared and committed: other sets may have siblings of it."""

    global_id: GlobalId
    xid: bytes
    index: LogIndex
    before: Offset
    """Where a cut is that has not got it."""
    time_ms: TimeMs


def joint_commit(xid: bytes, index: LogIndex, epoch: Epoch, time_ms: TimeMs) -> JointCommit | None:
    """None for a branch of another transaction manager. `epoch`: of the record before, too, as no epoch begins with a commit."""
    try:
        name = branch_name(Xid.decode(xid))
    except ValueError:
        return None
    before = Offset(LogIndex(index - 1), epoch)
    return JointCommit(name.global_id, xid, index, before, time_ms)


@dataclass(slots=True)
class LogView:
    """What one set's log offers behind the offset where the reader is."""

    start: Offset
    marks: Sequence[Mark] = ()
    """Ascending."""
    joint_commits: Sequence[JointCommit] = ()
    """Up to the last mark, ascending."""
    is_end: bool = True
    """Nothing is committed behind the last mark."""
    now_ms: int = 0
    """Clock of the broker that answered."""

    @property
    def end(self) -> Offset:
        return self.marks[-1].offset if self.marks else self.start

    @property
    def end_ms(self) -> int:
        """Commit time of the last mark; 0 without one."""
        return self.marks[-1].time_ms if self.marks else 0


Ends = Mapping[tuple[SetName, GlobalId], BranchEnd]
"""How transactions stand in each set; absent: there is no branch of it."""
_NO_BRANCH = BranchEnd()
_FOREVER = 1 << 62


@dataclass(slots=True)
class Cut:
    """One offset for each set."""

    ends: dict[SetName, Offset]
    time_ms: int = 0
    """No event behind the cut has an earlier commit time, as far as clocks agree."""
    held_since_ms: dict[SetName, int] = field(default_factory=dict)
    """Of the first transaction that holds a set back."""
    split: list[GlobalId] = field(default_factory=list)


def choose(logs: Mapping[SetName, LogView], max_events: int) -> Cut:
    """The latest cut by one commit time, with about `max_events` (0: any number) but at least one mark. Not closed yet."""
    # A log whose marks end before its end says nothing of what follows.
    time_ms = min((log.end_ms for log in logs.values() if not log.is_end), default=_FOREVER)
    marks = sorted((mark.time_ms, mark.events) for log in logs.values() for mark in log.marks)
    total = 0
    for place, (mark_ms, events) in enumerate(marks):
        total += events
        if mark_ms > time_ms:
            break
        if max_events and place and total > max_events:
            # What has the time of the mark before goes with it.
            time_ms = marks[place - 1][0]
            break
    ends = {}
    for name, log in logs.items():
        below = [mark for mark in log.marks if mark.time_ms <= time_ms]
        ends[name] = below[-1].offset if below else log.start
    # An idle set answers the present.
    present_ms = min((log.now_ms for log in logs.values() if log.is_end), default=time_ms)
    return Cut(ends, min(time_ms, present_ms))


def close(
    cut: Cut, logs: Mapping[SetName, LogView], ends: Ends, now_ms: int = 0, hold_ms_max: int = 0
) -> None:
    """Lower the cut until it is closed. `hold_ms_max` after its commit a transaction does not hold any more, and is listed as
    split; 0: it always does.
    """
    is_changed = True
    while is_changed:
        is_changed = False
        for name, log in logs.items():
            for joint in log.joint_commits:
                if joint.index > cut.ends[name].index:
                    break
                if _is_below_elsewhere(cut, logs, ends, name, joint.global_id):
                    continue
                if hold_ms_max and now_ms - joint.time_ms >= hold_ms_max:
                    if joint.global_id not in cut.split:
                        cut.split.append(joint.global_id)
                    continue
                cut.ends[name] = joint.before
                cut.held_since_ms[name] = min(joint.time_ms, cut.held_since_ms.get(name, joint.time_ms))
                cut.time_ms = min(cut.time_ms, joint.time_ms)
                is_changed = True
                break


def _is_below_elsewhere(
    cut: Cut, logs: Mapping[SetName, LogView], ends: Ends, here: SetName, global_id: GlobalId
) -> bool:
    for name in logs:
        end = ends.get((name, global_id), _NO_BRANCH)
        if name != here and (end.is_prepared or end.index > cut.ends[name].index):
            return False
    return True


class BranchStands(NamedTuple):
    """A branch's end, and the epoch of the record that ended it."""

    end: BranchEnd
    epoch: Epoch


def first_cut(
    floors: Mapping[SetName, Offset], stands: Mapping[GlobalId, Mapping[SetName, BranchStands]]
) -> dict[SetName, Offset] | None:
    """The lowest closed cut at or above `floors`: where a new group begins. None while a transaction that lies partly below it is
    still to end.

    `stands`: all branches of every transaction of our coordinator that has one which is prepared, or ended behind a floor.
    """
    cut = dict(floors)
    is_changed = True
    while is_changed:
        is_changed = False
        for branches in stands.values():
            if not any(0 < stand.end.index <= cut[name].index for name, stand in branches.items()):
                continue
            for name, stand in branches.items():
                if stand.end.is_prepared:
                    return None
                if stand.end.index > cut[name].index:
                    cut[name], is_changed = Offset(stand.end.index, stand.epoch), True
    return cut


def split_points(start: Offset, end: Offset, marks: Sequence[Mark]) -> list[Offset]:
    """Marks inside a range, about `SPLIT_EVENTS` apart."""
    found: list[Offset] = []
    events = 0
    for mark in marks:
        if not start.index < mark.offset.index < end.index:
            continue
        events += mark.events
        if events >= SPLIT_EVENTS:
            found.append(mark.offset)
            events = 0
    return found
