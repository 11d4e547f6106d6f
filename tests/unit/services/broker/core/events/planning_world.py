"""A world of resource sets with their logs, transactions over them, and observers that lag behind: what plans are made of.

Law: as our coordinator does it, a transaction is prepared in all of its sets before it is committed in any. What is true of the
world is known to it alone; plans are made of what it shows.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from lockstep.core.branch_names import GLOBAL_ID_BYTES, GlobalId, branch_xid, generation_tag
from lockstep.core.ids import Epoch, LogIndex, SetName, TimeMs
from lockstep.core.server_messages import BranchEnd
from services.broker.core.events.first_cut import BranchStands
from services.broker.core.events.planning import Cut, Cutting, LogView, Mark, Offset, joint_commit

START = Offset(LogIndex(0), Epoch(0))
EPOCH = Epoch(1)
TAG = generation_tag("a1b2c3d4-0000")
LOOKED_AT_MAX = 1_000


def global_id(number: int) -> GlobalId:
    return GlobalId(number.to_bytes(GLOBAL_ID_BYTES, "big"))


def xid_of(name: GlobalId) -> bytes:
    return branch_xid(name, 0, TAG).encode()


def at(index: int) -> Offset:
    return Offset(LogIndex(index), EPOCH) if index else START


@dataclass(frozen=True)
class Entry:
    """One record of a log."""

    time_ms: int
    events: int = 0
    joint: GlobalId | None = None
    """It commits a branch of this transaction."""


@dataclass
class Joint:
    """A transaction over several sets."""

    name: GlobalId
    to_prepare: list[SetName]
    prepared: list[SetName] = field(default_factory=list)
    ended: dict[SetName, int] = field(default_factory=dict)
    """Index of the record that ended the branch."""
    committed: dict[SetName, int] = field(default_factory=dict)
    sets: list[SetName] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sets = sorted([*self.to_prepare, *self.prepared])

    @property
    def is_over(self) -> bool:
        return not self.to_prepare and not self.prepared


class World:
    """Goes on step by step. `random` is hypothesis's, so that failures shrink."""

    def __init__(self, random: Random, sets: int) -> None:
        self.random = random
        self.now_ms = 1_000_000
        self.logs: dict[SetName, list[Entry]] = {SetName(f"set{number}"): [] for number in range(sets)}
        self.skews = {name: random.randint(-300, 300) for name in self.logs}
        """Of the clocks of the primaries."""
        self.joints: list[Joint] = []
        self._sets: dict[GlobalId, list[SetName]] = {}
        self.working: list[Joint] = []
        """Of `work`: under way."""
        self.forgotten: dict[SetName, int] = {}
        """Outcomes of records up to here are not known any more."""
        self.says_sets = True
        """The logs tell in which sets a transaction has branches."""

    # --- what happens -------------------------------------------------------------------------------------------------

    def append(self, name: SetName, events: int = 0, joint: GlobalId | None = None) -> int:
        log = self.logs[name]
        last = log[-1].time_ms if log else 0
        log.append(Entry(max(last, self.now_ms + self.skews[name]), events, joint))
        return len(log)

    def step(self) -> None:
        self.now_ms += self.random.choice((0, 1, 1, 5))
        running = [joint for joint in self.joints if not joint.is_over]
        if running and self.random.random() < 0.6:
            self.go_on(self.random.choice(running))
        elif self.random.random() < 0.4:
            names = self.random.sample(sorted(self.logs), self.random.randint(2, len(self.logs)))
            self.joints.append(Joint(global_id(len(self.joints) + 1), names))
        else:
            self.append(self.random.choice(sorted(self.logs)), self.random.choice((0, 1, 1, 4)))

    def go_on(self, joint: Joint, heuristic: float = 0.1) -> None:
        """The next thing that happens to a transaction; `heuristic`: share of branches that operators end."""
        if joint.to_prepare:
            name = joint.to_prepare.pop()
            joint.prepared.append(name)
            self.append(name)
        else:
            name = joint.prepared.pop(self.random.randrange(len(joint.prepared)))
            is_heuristic = self.random.random() < heuristic
            index = self.append(name, 1, None if is_heuristic else joint.name)
            joint.ended[name] = index
            if not is_heuristic:
                joint.committed[name] = index

    def work(self, many: int) -> None:
        """A step of a world with always so many transactions over two sets under way, which go on in any order."""
        self.now_ms += self.random.choice((0, 1, 3))
        self.working = [joint for joint in self.working if not joint.is_over]
        if len(self.working) < many:
            names = self.random.sample(sorted(self.logs), 2)
            joint = Joint(global_id(len(self.joints) + 1), names)
            self.joints.append(joint)
            self.working.append(joint)
        else:
            self.go_on(self.random.choice(self.working), heuristic=0)

    def make_quiet(self) -> None:
        """As coordinators hold their commits: what has begun to be committed gets through, and nothing else begins."""
        for joint in self.working:
            while joint.ended and joint.prepared:
                self.go_on(joint, heuristic=0)

    def finish(self) -> None:
        """Everything that runs ends."""
        for joint in self.joints:
            while not joint.is_over:
                self.go_on(joint)

    # --- what is seen -------------------------------------------------------------------------------------------------

    def view(
        self, name: SetName, start: Offset, max_events: int = 0, lag: int = 0, block: int = 3
    ) -> LogView:
        """Of a broker that knows all but the last `lag` records to be committed."""
        log = self.logs[name]
        committed = max(len(log) - lag, start.index)
        view = LogView(start, marks := [], joints := [], False, self.now_ms)
        total = events = 0
        for index in range(start.index + 1, committed + 1):
            entry = log[index - 1]
            if entry.joint is not None:
                found = joint_commit(
                    xid_of(entry.joint),
                    LogIndex(index),
                    EPOCH,
                    TimeMs(entry.time_ms),
                    tuple(self.sets_of(entry.joint)) if self.says_sets else (),
                    events,
                )
                assert found is not None
                joints.append(found)
            events += entry.events
            if (index - start.index) % block == 0 or index == committed:
                marks.append(Mark(at(index), TimeMs(entry.time_ms), events))
                total, events = total + events, 0
                if max_events and total >= max_events:
                    break
        view.is_end = view.end.index >= committed
        return view

    def stands(self, names: Iterable[GlobalId]) -> dict[GlobalId, dict[SetName, BranchStands]]:
        """As the primaries know it now."""
        wanted = set(names)
        found: dict[GlobalId, dict[SetName, BranchStands]] = {}
        for joint in self.joints:
            if joint.name in wanted:
                found[joint.name] = {name: BranchStands(self._end(joint, name), EPOCH) for name in self.logs}
        return found

    def ends(self, names: Iterable[GlobalId]) -> dict[tuple[SetName, GlobalId], BranchEnd]:
        return {
            (name, joint): stand.end
            for joint, branches in self.stands(names).items()
            for name, stand in branches.items()
        }

    def answers(
        self, asked: Mapping[SetName, Iterable[GlobalId]]
    ) -> dict[tuple[SetName, GlobalId], BranchEnd]:
        """Of the sets that were asked, and of no other."""
        ends = self.ends(joint for joints in asked.values() for joint in joints)
        return {(name, joint): ends[name, joint] for name, joints in asked.items() for joint in joints}

    def sets_of(self, joint: GlobalId) -> list[SetName]:
        if joint not in self._sets:
            self._sets |= {one.name: one.sets for one in self.joints}
        return self._sets[joint]

    def _end(self, joint: Joint, name: SetName) -> BranchEnd:
        is_old = name not in joint.to_prepare and self._begun(joint) <= self._horizon(name)
        forgotten = LogIndex(self.forgotten.get(name, 0))
        if name not in joint.prepared and joint.ended.get(name, 0) <= forgotten:
            return BranchEnd(forgotten_up_to=forgotten, may_be_forgotten=is_old)
        return BranchEnd(
            name in joint.prepared,
            LogIndex(joint.ended.get(name, 0)),
            name in joint.committed,
            may_be_forgotten=is_old,
        )

    def _begun(self, joint: Joint) -> int:
        return int.from_bytes(joint.name, "big")

    def _horizon(self, name: SetName) -> int:
        """When the youngest transaction was begun whose end a set has forgotten."""
        forgotten = self.forgotten.get(name, 0)
        return max(
            (self._begun(joint) for joint in self.joints if 0 < joint.ended.get(name, 0) <= forgotten),
            default=0,
        )

    # --- what is true -------------------------------------------------------------------------------------------------

    def torn(self, ends: Mapping[SetName, Offset]) -> Iterator[GlobalId]:
        """Transactions of which a cut has a part and not the rest."""
        for joint in self.joints:
            has_part = any(index <= ends[name].index for name, index in joint.committed.items())
            is_over = joint.is_over and all(index <= ends[name].index for name, index in joint.ended.items())
            if has_part and not is_over:
                yield joint.name

    def events(self, name: SetName, start: Offset, end: Offset) -> int:
        return sum(entry.events for entry in self.logs[name][start.index : end.index])


def make_plan(
    world: World,
    known: Mapping[SetName, Offset],
    max_events: int = 0,
    lags: Mapping[SetName, int] | None = None,
) -> tuple[Cut, dict[SetName, LogView]]:
    """As the planner of a broker does it."""
    while True:
        logs = {
            name: world.view(name, start, max_events, (lags or {}).get(name, 0))
            for name, start in known.items()
        }
        cutting = Cutting(logs, max_events, world.now_ms)
        while asked := cutting.questions():
            cutting.learn(world.answers(asked))
        is_stuck = not any(log.events_up_to(cutting.cut.ends[name]) for name, log in logs.items())
        if not (is_stuck and max_events and cutting.cut.is_short and max_events < LOOKED_AT_MAX):
            return cutting.cut, logs
        max_events *= 2
