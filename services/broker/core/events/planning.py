"""Plans: consistent cuts over the logs of several resource sets (DESIGN 7; histories 15 and 28).

Law: a cut is chosen by one commit time, lies between records in every log, and is *closed*: a transaction of our coordinator that
has committed at or below the cut in one set has ended at or below it in every set where it has a branch, and that set is one of
these where it has another one there. A branch holds its siblings until its set has any outcome; only the sets that it ties are
held. A set that nobody looked at has none.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from lockstep.core.branch_names import GlobalId, branch_name
from lockstep.core.epoch_table import UNKNOWN_REIGN, Reigns
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
    reign: int = field(default=UNKNOWN_REIGN, compare=False)
    """Whose epoch it is, where it has begun twice (`lockstep/core/epoch_table.py`); what does not say it is compared without."""


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
    resource_sets: tuple[str, ...] = ()
    """All in which the transaction has branches, each as often as it has some there; empty: not known."""
    events_before: int = 0
    """Between the last mark before it and itself."""
    is_empty: bool = False
    """It has no event: it holds nothing back, and says where the branch has ended, whose outcome may be forgotten."""


def joint_commit(
    xid: bytes,
    index: LogIndex,
    epoch: Epoch,
    time_ms: TimeMs,
    resource_sets: tuple[str, ...] = (),
    events_before: int = 0,
    *,
    is_empty: bool = False,
) -> JointCommit | None:
    """None for a branch of another transaction manager. `epoch`: of the record before, too, as no epoch begins with a commit."""
    try:
        name = branch_name(Xid.decode(xid))
    except ValueError:
        return None
    before = Offset(LogIndex(index - 1), epoch)
    return JointCommit(name.global_id, xid, index, before, time_ms, resource_sets, events_before, is_empty)


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
    reigns: Reigns = ()
    """Of the epochs from the start's on, as far as that broker knows them."""

    @property
    def end(self) -> Offset:
        return self.marks[-1].offset if self.marks else self.start

    @property
    def end_ms(self) -> int:
        """Commit time of the last mark; 0 without one."""
        return self.marks[-1].time_ms if self.marks else 0

    def joined(self, more: "LogView") -> "LogView":
        """With what the log offers behind this end."""
        return LogView(
            self.start,
            [*self.marks, *more.marks],
            [*self.joint_commits, *more.joint_commits],
            more.is_end,
            more.now_ms,
            tuple(sorted({**dict(self.reigns), **dict(more.reigns)}.items())),
        )

    def named(self, offset: Offset) -> Offset:
        """With its reign. What a reader has said of his own stays: it is his log that has to be this one."""
        if offset.reign:
            return offset
        return replace(offset, reign=dict(self.reigns).get(offset.epoch, UNKNOWN_REIGN))

    def events_up_to(self, end: Offset) -> int:
        """Behind the start. `end`: the start, a mark, or the place before a joint commit."""
        count = bisect_right(self.marks, end.index, key=lambda mark: mark.offset.index)
        events = sum([mark.events for mark in self.marks[:count]])
        place = bisect_right(self.joint_commits, end.index, key=lambda joint: joint.index)
        if place < len(self.joint_commits) and self.joint_commits[place].before == end:
            return events + self.joint_commits[place].events_before
        return events


Ends = Mapping[tuple[SetName, GlobalId], BranchEnd]
"""How transactions stand in each set; absent: there is no branch of it."""
_NO_BRANCH = BranchEnd()
_FOREVER = 1 << 62


@dataclass(slots=True)
class Cut:
    """One offset for each set."""

    ends: dict[SetName, Offset]
    time_ms: int = 0
    """Events behind the cut are later, as far as clocks agree, and but for what a backup that was asked did not know yet."""
    held_since_ms: dict[SetName, int] = field(default_factory=dict)
    """Of the first transaction that holds a set back."""
    split: list[GlobalId] = field(default_factory=list)
    is_short: bool = False
    """A set is held by what has ended behind what was looked at."""


class Held(NamedTuple):
    """A set that a transaction holds back."""

    end: Offset
    since_ms: int


def choose(
    logs: Mapping[SetName, LogView], max_events: int, stuck: Mapping[SetName, Held] | None = None
) -> Cut:
    """The latest cut by one commit time, with about `max_events` (0: any number) but at least one mark. Not closed yet.

    `stuck`: sets that stay where they are held, and so hold nobody by their times.
    """
    stuck = stuck or {}
    free = {name: log for name, log in logs.items() if name not in stuck}
    # A log whose marks end before its end says nothing of what follows.
    time_ms = min((log.end_ms for log in free.values() if not log.is_end), default=_FOREVER)
    marks = sorted((mark.time_ms, mark.events) for log in free.values() for mark in log.marks)
    total = 0
    for place, (mark_ms, events) in enumerate(marks):
        total += events
        if mark_ms > time_ms:
            break
        if max_events and total > max_events and total > events:
            # What has the time of the mark before goes with it.
            time_ms = marks[place - 1][0]
            break
    ends = {name: log.start for name, log in logs.items()} | {name: held.end for name, held in stuck.items()}
    for name, log in free.items():
        below = [mark for mark in log.marks if mark.time_ms <= time_ms]
        ends[name] = below[-1].offset if below else log.start
    # An idle set answers the present.
    present_ms = min((log.now_ms for log in logs.values() if log.is_end), default=time_ms)
    since_ms = {name: held.since_ms for name, held in stuck.items()}
    return Cut(ends, min([time_ms, present_ms, *since_ms.values()]), since_ms)


def close(
    cut: Cut,
    logs: Mapping[SetName, LogView],
    ends: Ends,
    now_ms: int = 0,
    hold_ms_max: int = 0,
    nowhere: Set[str] = frozenset(),
) -> None:
    """Lower the cut until it is closed. `hold_ms_max` after its commit a transaction does not hold any more, and is listed as
    split; 0: it always does. `nowhere`: names that no set has.
    """
    seen = joint_indexes(logs)
    counts = Counter((name, joint.global_id) for name, log in logs.items() for joint in log.joint_commits)
    branches: dict[GlobalId, list[tuple[SetName, JointCommit]]] = {}
    for name, log in logs.items():
        for joint in log.joint_commits:
            if not joint.is_empty:
                branches.setdefault(joint.global_id, []).append((name, joint))
    ended: dict[SetName, list[tuple[LogIndex, GlobalId]]] = {name: [] for name in logs}
    for (name, global_id), index in [*seen.items(), *((key, end.index) for key, end in ends.items())]:
        if name in ended and index <= cut.ends[name].index:
            ended[name].append((index, global_id))
    for found in ended.values():
        found.sort()
    unseen = deque(branch for joints in branches.values() for branch in joints)
    split: list[tuple[SetName, JointCommit]] = []
    while unseen:
        name, joint = unseen.popleft()
        if joint.index > cut.ends[name].index:
            continue
        siblings = _siblings(cut, logs, ends, seen, counts, nowhere, name, joint)
        if siblings is Siblings.BELOW:
            continue
        if siblings is Siblings.IN_DOUBT and hold_ms_max and now_ms - joint.time_ms >= hold_ms_max:
            split.append((name, joint))
            continue
        cut.ends[name] = joint.before
        cut.held_since_ms[name] = min(joint.time_ms, cut.held_since_ms.get(name, joint.time_ms))
        cut.time_ms = min(cut.time_ms, joint.time_ms)
        # What has ended in the part that is lost holds its siblings.
        while ended[name] and ended[name][-1][0] > joint.before.index:
            unseen.extend(branches.get(ended[name].pop()[1], ()))
    for name, joint in split:
        if joint.index <= cut.ends[name].index and joint.global_id not in cut.split:
            cut.split.append(joint.global_id)


def joint_indexes(logs: Mapping[SetName, LogView]) -> dict[tuple[SetName, GlobalId], LogIndex]:
    """Of all commits that were looked at."""
    return {(name, joint.global_id): joint.index for name, log in logs.items() for joint in log.joint_commits}


class Siblings(Enum):
    """Where the other branches of a transaction are, that has committed below a cut in one set."""

    BELOW = "below"
    BEYOND = "beyond"
    """One has ended, or may have, beyond the cut."""
    IN_DOUBT = "in doubt"
    """One has no outcome, or is in a set that is not looked at."""


def _siblings(
    cut: Cut,
    logs: Mapping[SetName, LogView],
    ends: Ends,
    seen: Mapping[tuple[SetName, GlobalId], LogIndex],
    counts: Mapping[tuple[SetName, GlobalId], int],
    nowhere: Set[str],
    here: SetName,
    joint: JointCommit,
) -> Siblings:
    # A set that whoever plans has not heard of yet: nobody could say how it stands there.
    are_known = all(name in logs or name in nowhere for name in joint.resource_sets)
    found = Siblings.BELOW if are_known else Siblings.IN_DOUBT
    for name, log in logs.items():
        if not _has_sibling(joint, here, name):
            continue
        key = name, joint.global_id
        end = ends.get(key, _NO_BRANCH)
        # An outcome may be forgotten while its commit is still to be read, here or behind what was looked at.
        index = max(end.index, seen.get(key, 0))
        is_lacking = joint.resource_sets.count(name) > counts.get(key, 0)
        if not end.index and is_lacking and log.end.index < end.forgotten_up_to:
            index = end.forgotten_up_to
        if end.is_prepared:
            found = Siblings.IN_DOUBT
        elif index > cut.ends[name].index:
            cut.is_short |= not log.is_end and index > log.end.index
            found = Siblings.BEYOND if found is Siblings.BELOW else found
    return found


def _has_sibling(joint: JointCommit, here: SetName, name: SetName) -> bool:
    """Whether its transaction has a branch in a set, or may have one, beside this one, which is `here`."""
    return not joint.resource_sets or joint.resource_sets.count(name) > (name == here)


class Cutting:
    """Makes one plan. Whoever drives it answers its questions about transactions until there are none."""

    def __init__(
        self, logs: Mapping[SetName, LogView], max_events: int, now_ms: int = 0, hold_ms_max: int = 0
    ) -> None:
        self.cut = Cut({name: log.start for name, log in logs.items()})
        """The plan, once there are no questions."""
        self._logs = logs
        self._max_events = max_events
        self._now_ms = now_ms
        self._hold_ms_max = hold_ms_max
        self._seen = joint_indexes(logs)
        self._ends: dict[tuple[SetName, GlobalId], BranchEnd] = {}
        self._unknown: dict[SetName, dict[GlobalId, bytes]] = {}
        self.unheard: set[str] = set()
        """Names of sets that have no log here: one that came since, or none."""
        self._nowhere: set[str] = set()

    def questions(self) -> dict[SetName, dict[GlobalId, bytes]]:
        """Transactions that one has to know next, by the set that has to be asked, each with the xid of a branch of it."""
        self._unknown = {}
        self.cut = self._make()
        return self._unknown

    def learn(self, ends: Ends) -> None:
        """How branches stand that were asked for."""
        self._ends.update(ends)

    def are_nowhere(self, names: Iterable[str]) -> None:
        """There are no sets of these names, and there were none when the logs were read: whoever prepared a branch by hand made
        them up, and nobody holds another one there."""
        self._nowhere.update(names)

    def _make(self) -> Cut:
        cut = self._closed(choose(self._logs, self._max_events))
        stuck = self._stuck(cut)
        if not stuck or self._unknown:
            return cut
        # What lets a set go may be later than what was looked at of its log: then no one time does.
        far = self._closed(Cut({name: log.end for name, log in self._logs.items()}, cut.time_ms))
        if self._unknown or any(self._logs[name].events_up_to(far.ends[name]) for name in stuck):
            return far
        # What was looked at of a set that stays must not hold the sets that it is not tied to.
        found = 0
        while found < len(stuck) and not self._unknown:
            found = len(stuck)
            cut = self._closed(choose(self._logs, self._max_events, stuck))
            stuck |= self._stuck(cut)
        cut.is_short = far.is_short
        return cut

    def _closed(self, cut: Cut) -> Cut:
        for name, log in self._logs.items():
            for joint in log.joint_commits:
                if joint.index > cut.ends[name].index:
                    break
                if not joint.is_empty:
                    self._look(name, joint)
        if not self._unknown:
            close(cut, self._logs, self._ends, self._now_ms, self._hold_ms_max, self._nowhere)
        return cut

    def _look(self, here: SetName, joint: JointCommit) -> None:
        """What has committed in the sets that it is in, once in each, needs not be asked for."""
        for name in joint.resource_sets or self._logs:
            if name not in self._logs:
                self.unheard.add(name)
                continue
            if not _has_sibling(joint, here, SetName(name)):
                continue
            other, key = SetName(name), (SetName(name), joint.global_id)
            is_seen = key in self._seen and joint.resource_sets.count(name) == 1
            if not is_seen and key not in self._ends:
                self._unknown.setdefault(other, {})[joint.global_id] = joint.xid

    def _stuck(self, cut: Cut) -> dict[SetName, Held]:
        """Sets that are held in front of their first event."""
        return {
            name: Held(cut.ends[name], since_ms)
            for name, since_ms in cut.held_since_ms.items()
            if not self._logs[name].events_up_to(cut.ends[name])
        }


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
