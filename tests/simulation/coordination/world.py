"""A world of coordinators, participants, clients and a decision log: everything that can go wrong is drawn from one seed.

Law: a safety phase in which messages are lost, late or doubled, processes die at any effect or stand still, and etcd's answers
fail to come; then everything heals, and whatever is not finished soon is stuck. The checker reads what branches became and
clients were told.
"""

import random
from dataclasses import dataclass, field

from lockstep.core.branch_names import (
    SET_KIND,
    GlobalId,
    ParticipantName,
    branch_xid,
    generation_tag,
    new_global_id,
)
from lockstep.core.clock import Now
from lockstep.core.ids import Incarnation
from lockstep.core.xid import Xid
from services.coordinator.core.coordinator import Coordinator
from services.coordinator.core.messages import (
    BeginAsked,
    BegunAnswer,
    CloseAsked,
    CommitAsked,
    Completed,
    Decide,
    DeleteTransaction,
    Effect,
    EnlistAsked,
    EnlistedAnswer,
    HeldAnswer,
    HoldAsked,
    Input,
    KeepCommitted,
    ListLog,
    LogInDoubt,
    Note,
    OutcomeAnswer,
    OutcomeAsked,
    Reached,
    ReadLog,
    RecoverAnswer,
    Refusal,
    RequestDropped,
    RequestId,
    RollbackAsked,
    State,
    TellBranch,
    Tick,
    Voted,
    WakeSoon,
    Woken,
    WriteParticipants,
)
from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.core.steps import Step
from services.coordinator.core.votes import Completion, Verb, Vote
from tests.simulation.coordination.decision_log import GENERATION, AnyLogEffect, DecisionLog
from tests.simulation.coordination.participant import BranchState, Participant
from tests.simulation.loop import MS, SECOND, Loop

LIMITS = CoordinatorLimits(
    prepare_ms=1_500,
    answer_ms=500,
    doubt_ms=3_000,
    closed_ms=3_000,
    elsewhere_ms=6_000,
    recovery_every_ms=400,
    hold_ms_max=250,
    retry_ms_max=400,
    open_ms=2_000,
    open_ms_max=4_000,
    clock_ms=3_500,
    outcome_ms=10_500,
)
LEASE_MS = 1_500
CALL_MS = 400
"""After which a call that was not answered is UNREACHABLE, and a change of the log in doubt."""
TAG = generation_tag(GENERATION)


@dataclass
class Faults:
    """Probabilities; all of it ends with the safety phase."""

    lost: float = 0.06
    doubled: float = 0.05
    late: float = 0.06
    crash_at_effect: float = 0.004
    pause_at_effect: float = 0.01
    log_in_doubt: float = 0.06


HARSH = Faults(
    lost=0.1, doubled=0.05, late=0.1, crash_at_effect=0.008, pause_at_effect=0.03, log_in_doubt=0.1
)
"""Under which rare coincidences come sooner."""


@dataclass
class Process:
    """One coordinator process at a time, under one name."""

    name: str
    core: Coordinator | None = None
    incarnation: Incarnation = field(default_factory=lambda: Incarnation(""))
    presence: int = 0
    is_paused: bool = False
    inbox: list[Input] = field(default_factory=list)
    lives: int = 0


@dataclass
class Wish:
    """One transaction of a client, and all that it was ever told of it."""

    global_id: GlobalId
    names: tuple[ParticipantName, ...]
    xids: tuple[Xid, ...]
    told: list[State] = field(default_factory=list)
    is_closed: bool = False
    is_done: bool = False


class World:
    """One seed's run. The classes are weak ones in mutations."""

    def __init__(
        self,
        seed: int,
        coordinator_class: type[Coordinator] = Coordinator,
        log_class: type[DecisionLog] = DecisionLog,
        faults: Faults | None = None,
        long_outages: int = 0,
        transactions: int = 30,
    ) -> None:
        self.random = random.Random(seed)
        self.loop = Loop()
        self.log = log_class()
        self.faults = faults or Faults()
        self.steps: set[Step] = set()
        self.notes: list[Note] = []
        self.crashes = 0
        self.moments = 0
        """Holds in which nothing was being committed."""
        self._holds = random.Random(f"holds {seed}")
        self._coordinator_class = coordinator_class
        self._last_request = 0
        self._replies: dict[RequestId, tuple[Wish, str]] = {}
        self.processes = [Process(f"C{number}") for number in (1, 2, 3)]
        self.participants = {
            name: Participant(name, keeps_outcomes)
            for name, keeps_outcomes in (
                (ParticipantName("set:east"), True),
                (ParticipantName("set:west"), True),
                (ParticipantName("grpc://db/one"), False),
                (ParticipantName("grpc://db/two"), False),
            )
        }
        self.wishes: list[Wish] = []
        for process in self.processes:
            self._start(process)
            self._later(50, self._tick, process)
            self._later(self._holds.randrange(900), self._hold, process)
        for participant in self.participants.values():
            self._later(700, self._ask_log, participant)
        for number in range(transactions):
            self._later(self.random.randrange(0, 18_000), self._begin, number)
        for _ in range(self.random.randrange(6, 20)):
            self._later(self.random.randrange(0, 20_000), self._strike)

        for _ in range(long_outages):
            participant = self.participants[self.random.choice(sorted(self.participants))]
            self._later(self.random.randrange(0, 18_000), self._lose, participant, 14_000)

    def run(self) -> None:
        """The safety phase, the healing, and the time in which all has to end."""
        self.loop.run_until(22 * SECOND)
        self.faults = Faults(0, 0, 0, 0, 0, 0)
        for process in self.processes:
            self._wake(process)
            if process.core is None:
                self._start(process)
        for participant in self.participants.values():
            participant.is_up = True
        self.loop.run_until(50 * SECOND)

    @property
    def now(self) -> Now:
        return Now(self.loop.now_us // MS, 1_000_000 + self.loop.now_us // MS)

    # Clients

    def _begin(self, number: int) -> None:
        global_id = new_global_id(self.now.wall_ms, self.random.randbytes(10))
        count = self.random.choice((1, 2, 2, 2, 3, 3))
        names = tuple(self.random.sample(sorted(self.participants), count))
        wish = Wish(global_id, names, tuple(branch_xid(global_id, n, TAG) for n in range(count)))
        self.wishes.append(wish)
        for name, xid in zip(names, wish.xids, strict=True):
            chance = self.random.random()
            participant = self.participants[name]
            participant.open(xid, is_read_only=chance < 0.12, refuses=0.12 <= chance < 0.18)
            self._later(5_000, participant.time_out, xid)
        if self.random.random() < 0.5:
            self._hint(wish)
        pause = self.random.randrange(0, 300)
        databases = [name for name in names if name.startswith("grpc:")]
        if databases and self.random.random() < 0.6:
            self._later(pause, self._ask, wish, "close", 0)
        elif self.random.random() < 0.1:
            self._later(pause, self._ask, wish, "rollback", 0)
        else:
            self._later(pause, self._ask, wish, "commit", 0)

    def _hint(self, wish: Wish) -> None:
        """Begin and enlist, with any coordinators: they may roll back what takes too long, and nothing else comes of it."""
        names = wish.names
        if len(names) == 1 and wish.global_id[-1] % 2:
            # One more, by a call that its client has given up: it goes on without.
            names += (next(name for name in sorted(self.participants) if name not in names),)
        for number, name in enumerate(names):
            process = self.random.choice(self.processes)
            begin = BeginAsked(RequestId(0), wish.global_id, TAG, self.random.choice((0, 200, 3_000)))
            self._send(self._feed, process, begin)
            enlist = EnlistAsked(RequestId(0), wish.global_id, TAG, number, name)
            self._send(self._feed, self.random.choice((process, self.processes[0])), enlist)

    def _ask(self, wish: Wish, what: str, tries: int) -> None:
        """A call to any coordinator; again, to any, when nothing came of it."""
        if wish.is_done or tries > 40:
            return
        self._last_request += 1
        request = RequestId(self._last_request)
        fixed = (request, wish.global_id, TAG, wish.names)
        given: Input
        match what:
            case "close":
                given = CloseAsked(*fixed)
            case "commit":
                given = CommitAsked(*fixed, is_closed=wish.is_closed)
            case "rollback":
                given = RollbackAsked(*fixed, is_closed=wish.is_closed)
            case _:
                given = OutcomeAsked(request, wish.global_id, is_fence=self.random.random() < 0.7)
        self._replies[request] = (wish, what)
        self._send(self._feed, self.random.choice(self.processes), given)
        self._later(self.random.choice((700, 2_000, 4_500)), self._no_answer, request, tries)

    def _no_answer(self, request: RequestId, tries: int) -> None:
        """The client hangs up and asks elsewhere: commits again, or asks what became of it."""
        waiting = self._replies.pop(request, None)
        if waiting is None:
            return
        wish, what = waiting
        if what == "close":
            what = self.random.choice(("close", "rollback"))
        elif what == "commit":
            what = self.random.choice(("commit", "outcome", "outcome", "rollback"))
        self._ask(wish, what, tries + 1)

    def _hear(self, effect: BegunAnswer | EnlistedAnswer | OutcomeAnswer | Refusal) -> None:
        waiting = self._replies.pop(effect.request, None)
        if waiting is None:
            return
        wish, what = waiting
        match effect:
            case BegunAnswer():
                self._prepare_databases(wish)
                self._later(self.random.randrange(0, 200), self._ask, wish, "commit", 0)
            case OutcomeAnswer(state=State.COMMITTED | State.ROLLED_BACK):
                wish.told.append(effect.state)
                # Now and then it asks once more: the answer must stay the same.
                if self.random.random() < 0.8:
                    wish.is_done = True
                else:
                    self._later(300, self._ask, wish, self.random.choice(("commit", "outcome")), 30)
            case OutcomeAnswer():
                self._later(500, self._ask, wish, "outcome" if what != "close" else "rollback", 20)
            case _:
                self._later(500, self._ask, wish, "outcome" if what != "close" else "rollback", 20)

    def _prepare_databases(self, wish: Wish) -> None:
        wish.is_closed = True
        for name, xid in zip(wish.names, wish.xids, strict=True):
            if name.startswith("grpc:") and self.random.random() < 0.95:
                late = self.random.random() < 0.1
                self._later(2_000 if late else 0, self.participants[name].prepare_by_client, xid)

    # Coordinators

    def _start(self, process: Process) -> None:
        process.lives += 1
        process.incarnation = Incarnation(f"{process.name}.{process.lives}")
        process.core = self._coordinator_class(process.incarnation, LIMITS)
        process.is_paused = False
        process.inbox.clear()
        process.presence = self.log.register(process.incarnation)

    def _feed(self, process: Process, given: Input) -> None:
        if process.is_paused:
            process.inbox.append(given)
            return
        core = process.core
        if core is None:
            return
        for effect in core.handle(given, self.now):
            if self.random.random() < self.faults.crash_at_effect:
                self._crash(process)
            if process.core is not core:
                return
            self._perform(process, effect)
            if self.random.random() < self.faults.pause_at_effect:
                self._pause(process)

    def _feed_life(self, process: Process, incarnation: Incarnation, given: Input) -> None:
        """An answer to one life of a process is nothing to the next."""
        if process.incarnation == incarnation:
            self._feed(process, given)

    def _tick(self, process: Process) -> None:
        self._later(50, self._tick, process)
        if process.core is None or process.is_paused:
            return
        process.presence = self.log.register(process.incarnation)
        self._feed(process, Tick())

    def _hold(self, process: Process) -> None:
        """A planner of events wants a moment without commits; it may be gone before it has let go."""
        self._later(self._holds.randrange(100, 900), self._hold, process)
        self._last_request += 1
        request = RequestId(self._last_request)
        self._feed(process, HoldAsked(request))
        if self._holds.random() < 0.7:
            self._later(self._holds.randrange(1, 400), self._feed, process, RequestDropped(request))

    def _crash(self, process: Process) -> None:
        self.crashes += 1
        process.core = None
        self._end_lease(process)
        self._later(self.random.randrange(100, 4_000), self._restart, process, process.incarnation)

    def _restart(self, process: Process, incarnation: Incarnation) -> None:
        if process.core is None and process.incarnation == incarnation:
            self._start(process)

    def _end_lease(self, process: Process) -> None:
        self._later(LEASE_MS, self._end_presence, process, process.incarnation)

    def _end_presence(self, process: Process, incarnation: Incarnation) -> None:
        if process.incarnation != incarnation or process.core is None or process.is_paused:
            self.log.presences.pop(incarnation, None)

    def _pause(self, process: Process) -> None:
        """What it was performing is performed: the moment behind is as good as any."""
        if not process.is_paused:
            process.is_paused = True
            self._end_lease(process)
            # Many end about when others take its transactions up.
            about_a_lease = self.random.randrange(LEASE_MS, LEASE_MS + 900)
            self._later(
                self.random.choice((30, 100, about_a_lease, about_a_lease, 6_000)), self._wake, process
            )

    def _wake(self, process: Process) -> None:
        """First it handles what had come; only then does it learn that its presence is gone."""
        if not process.is_paused:
            return
        process.is_paused = False
        inbox, process.inbox = process.inbox, []
        for given in inbox:
            self._feed(process, given)

    def _strike(self) -> None:
        if self.faults.lost == 0:
            return
        process = self.random.choice(self.processes)
        participant = self.random.choice(sorted(self.participants.values(), key=lambda one: one.name))
        match self.random.choice(("kill", "pause", "participant")):
            case "kill" if process.core is not None:
                self._crash(process)
            case "pause" if process.core is not None:
                self._pause(process)
            case _:
                self._lose(participant, self.random.choice((200, 2_000, 5_000, 14_000)))

    def _lose(self, participant: Participant, outage_ms: int) -> None:
        participant.crash()
        self._later(outage_ms, setattr, participant, "is_up", True)

    # Effects

    def _perform(self, process: Process, effect: Effect) -> None:
        match effect:
            case (
                WriteParticipants() | Decide() | KeepCommitted() | DeleteTransaction() | ReadLog() | ListLog()
            ):
                self._call_log(process, effect)
            case TellBranch():
                self._call_participant(process, effect)
            case BegunAnswer() | EnlistedAnswer() | OutcomeAnswer() | Refusal():
                self._send(self._hear, effect)
            case Reached():
                self.steps.add(effect.step)
            case Note():
                self.notes.append(effect)
            case HeldAnswer():
                self.moments += 1
            case RecoverAnswer():
                pass
            case WakeSoon():
                self._later(1, self._feed, process, Woken())

    def _call_log(self, process: Process, effect: AnyLogEffect) -> None:
        incarnation, presence = process.incarnation, process.presence
        doubt = LogInDoubt(effect.ticket)
        if self.random.random() >= self.faults.log_in_doubt:
            self._later(
                self.random.randrange(1, 10), self._execute, process, incarnation, presence, effect, True
            )
            return
        self._later(CALL_MS, self._feed_life, process, incarnation, doubt)
        match self.random.choice(("lost", "answer lost", "late")):
            case "answer lost":
                self._later(5, self._execute, process, incarnation, presence, effect, False)
            case "late":
                late = self.random.randrange(5, 3_000)
                self._later(late, self._execute, process, incarnation, presence, effect, False)
            case _:
                pass

    def _execute(
        self, process: Process, incarnation: Incarnation, presence: int, effect: AnyLogEffect, answers: bool
    ) -> None:
        answer = self.log.perform(effect, incarnation, presence)
        if isinstance(effect, DeleteTransaction):
            # As etcd does, when the lease of the outcomes ends.
            self._later(LIMITS.outcome_ms, self.log.outcomes.pop, effect.global_id, None)
        if answers:
            self._later(self.random.randrange(1, 10), self._feed_life, process, incarnation, answer)

    def _call_participant(self, process: Process, effect: TellBranch) -> None:
        answered: list[bool] = []
        is_prepare = effect.verb is Verb.PREPARE

        def answer(given: Vote | Completion) -> None:
            if not answered:
                answered.append(True)
                ticket = effect.ticket
                reply = Voted(ticket, given) if isinstance(given, Vote) else Completed(ticket, given)
                self._feed_life(process, incarnation, reply)

        def arrive() -> None:
            participant = self.participants[effect.participant]
            if participant.is_up:
                given = participant.tell(effect.xid, effect.verb)
                if given is not None:
                    self._send(answer, given)

        incarnation = process.incarnation
        self._send(arrive)
        self._later(CALL_MS, answer, Vote.UNREACHABLE if is_prepare else Completion.UNREACHABLE)

    def _ask_log(self, participant: Participant) -> None:
        self._later(700, self._ask_log, participant)
        if not participant.is_up:
            return
        for xid in participant.asking():
            self._later(self.random.randrange(1, 30), self._read_for, participant, xid)

    def _read_for(self, participant: Participant, xid: Xid) -> None:
        is_lost = self.random.random() < self.faults.log_in_doubt
        view = None if is_lost else self.log.view(GlobalId(xid.global_id))
        self._later(self.random.randrange(1, 60), participant.hear, xid, view)

    # The network

    def _later(self, delay_ms: int, callback: object, *arguments: object) -> None:
        self.loop.after(delay_ms * MS, callback, *arguments)  # type: ignore[arg-type]

    def _send(self, callback: object, *arguments: object) -> None:
        """Lost, or delivered once or twice, now or late."""
        if self.random.random() < self.faults.lost:
            return
        for _ in range(2 if self.random.random() < self.faults.doubled else 1):
            is_late = self.random.random() < self.faults.late
            self._later(self.random.randrange(1, 2_500 if is_late else 15), callback, *arguments)


def violations(world: World) -> list[str]:
    """What is wrong at the end of a run; P1, P2 and P7 for transactions of several participants, and hazards that are none."""
    found: list[str] = []
    for wish in world.wishes:
        states = {
            xid: world.participants[name].branches[xid].state
            for name, xid in zip(wish.names, wish.xids, strict=True)
        }
        ends = set(states.values()) - {BranchState.READ_ONLY}
        label = wish.global_id.hex()[:8]
        if ends & {BranchState.OPEN, BranchState.PREPARED}:
            found.append(f"{label} stuck: {[state.value for state in states.values()]}")
        if {BranchState.COMMITTED, BranchState.ROLLED_BACK} <= ends:
            found.append(f"{label} torn: {[state.value for state in states.values()]}")
        if len(set(wish.told)) > 1:
            found.append(f"{label} told both: {wish.told}")
        if State.COMMITTED in wish.told and BranchState.ROLLED_BACK in ends:
            found.append(f"{label} told committed, and was not")
        if State.ROLLED_BACK in wish.told and BranchState.COMMITTED in ends:
            found.append(f"{label} told rolled back, and was not")
    for note in world.notes:
        # Databases here forget how a branch ended at once; sets know it, and none ends otherwise than was decided.
        if note.event == "hazard" and f"participant={SET_KIND}" in note.details:
            found.append(f"{note.global_id.hex()[:8]} hazard: {note.details}")
    for global_id in world.log.participants.keys() | world.log.decisions.keys():
        found.append(f"{global_id.hex()[:8]} is still in the log")
    for process in world.processes:
        if process.core is not None and process.core.transactions:
            found.append(f"{process.name} still has {len(process.core.transactions)} in hand")
    return found
