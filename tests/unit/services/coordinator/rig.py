"""A coordinator's core over the in-memory decision log and scripted participants, step by step.

Law: nothing happens by itself. What a core wants done waits until the test performs it, drops it or loses its answer.
"""

from collections import deque
from collections.abc import Callable, Iterable

from lockstep.core.branch_names import (
    GenerationTag,
    GlobalId,
    ParticipantName,
    branch_name,
    generation_tag,
    new_global_id,
)
from lockstep.core.clock import Now
from lockstep.core.ids import Incarnation
from services.coordinator.core.coordinator import Coordinator
from services.coordinator.core.messages import (
    CloseAsked,
    CommitAsked,
    Completed,
    Decide,
    DeleteTransaction,
    Effect,
    Input,
    KeepCommitted,
    ListLog,
    LogInDoubt,
    LogSeen,
    Note,
    OutcomeAnswer,
    OutcomeAsked,
    Reached,
    ReadLog,
    RequestId,
    RollbackAsked,
    State,
    TellBranch,
    Tick,
    Ticket,
    Voted,
    WakeSoon,
    WriteParticipants,
)
from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.core.votes import Completion, Verb, Vote
from tests.simulation.coordination.decision_log import GENERATION, AnyLogEffect, DecisionLog

ID = new_global_id(1_000_000, bytes(10))
TAG: GenerationTag = generation_tag(GENERATION)
LIMITS = CoordinatorLimits()
AnyLog = (WriteParticipants, Decide, KeepCommitted, DeleteTransaction, ReadLog, ListLog)


def names(count: int) -> tuple[ParticipantName, ...]:
    return tuple(ParticipantName(f"grpc://host:1/p{number}") for number in range(count))


class Participants:
    """What each branch votes, and what it was told: by number."""

    def __init__(self, votes: Iterable[Vote]) -> None:
        self.votes = list(votes)
        self.told: list[list[Verb]] = [[] for _ in self.votes]
        self.ends: dict[int, Completion] = {}
        """Scripted answers to the end; the others end as they are told."""

    def tell(self, effect: TellBranch) -> Voted | Completed:
        number = branch_name(effect.xid).number
        self.told[number].append(effect.verb)
        if effect.verb is Verb.PREPARE:
            return Voted(effect.ticket, self.votes[number])
        ended = Completion.ROLLED_BACK if effect.verb is Verb.ROLL_BACK else Completion.COMMITTED
        return Completed(effect.ticket, self.ends.get(number, ended))

    def verbs(self) -> list[Verb | None]:
        """The last end that each was told; None: none."""
        return [
            next((verb for verb in reversed(told) if verb is not Verb.PREPARE), None) for told in self.told
        ]


class Rig:
    """One coordinator. Several may share a log, participants and a clock."""

    def __init__(
        self,
        name: str = "C1",
        log: DecisionLog | None = None,
        participants: Participants | None = None,
        limits: CoordinatorLimits = LIMITS,
    ) -> None:
        self.process = Incarnation(name)
        self.log = log or DecisionLog()
        self.participants = participants or Participants([Vote.OK, Vote.OK])
        self.core = Coordinator(self.process, limits)
        self.presence = self.log.register(self.process)
        self.now_ms = 1_000_000
        self.wall_ahead_ms = 0
        """Of the other clock."""
        self.is_blind = False
        """It has nothing of etcd but answers to what it asks of the log."""
        self.waiting: deque[Effect] = deque()
        self.steps: list[str] = []
        self.notes: list[Note] = []
        self.wakes = 0
        """Turns that were asked for."""
        self.answers: dict[RequestId, Effect] = {}
        self._last_request = 0

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms + self.wall_ahead_ms)

    # What is asked

    def commit(self, count: int = 2, *, is_closed: bool = False, tag: GenerationTag = TAG) -> RequestId:
        request = self._request()
        self.feed(CommitAsked(request, ID, tag, names(count), is_closed))
        return request

    def rollback(self, count: int = 2, *, is_closed: bool = False) -> RequestId:
        request = self._request()
        self.feed(RollbackAsked(request, ID, TAG, names(count), is_closed))
        return request

    def close(self, count: int = 2) -> RequestId:
        request = self._request()
        self.feed(CloseAsked(request, ID, TAG, names(count)))
        return request

    def outcome(self, *, fence: bool = False, global_id: GlobalId = ID) -> RequestId:
        request = self._request()
        self.feed(OutcomeAsked(request, global_id, fence))
        return request

    def state(self, request: RequestId) -> State | None:
        """What was answered; None: nothing yet. Anything but an outcome fails."""
        answer = self.answers.get(request)
        assert answer is None or isinstance(answer, OutcomeAnswer), answer
        return answer.state if answer is not None else None

    # What happens

    def feed(self, given: Input) -> None:
        for effect in self.core.handle(given, self.now):
            match effect:
                case Reached():
                    self.steps.append(effect.step.value)
                case Note():
                    self.notes.append(effect)
                case WakeSoon():
                    self.wakes += 1
                case TellBranch() | WriteParticipants() | Decide() | KeepCommitted() | DeleteTransaction():
                    self.waiting.append(effect)
                case ReadLog() | ListLog():
                    self.waiting.append(effect)
                case _:
                    assert effect.request not in self.answers, "a request is answered once"
                    self.answers[effect.request] = effect

    def perform(self, effect: Effect) -> None:
        """Does it, and hands the answer back."""
        if isinstance(effect, TellBranch):
            self.feed(self.participants.tell(effect))
        else:
            assert isinstance(effect, AnyLog)
            self.feed(self.do_log(effect))

    def do_log(self, effect: AnyLogEffect) -> Input:
        """Does it in the log, and keeps the answer."""
        return self.log.perform(effect, self.process, self.presence)

    def doubt(self, ticket: Ticket) -> None:
        """No answer came."""
        self.feed(LogInDoubt(ticket))

    def run(self, holds: Callable[[Effect], bool] = lambda effect: False) -> list[Effect]:
        """Performs all that waits, but what `holds` says; returns that."""
        held: list[Effect] = []
        while self.waiting:
            effect = self.waiting.popleft()
            if holds(effect):
                held.append(effect)
            else:
                self.perform(effect)
        return held

    def pass_time(
        self, milliseconds: int, holds: Callable[[Effect], bool] = lambda effect: False
    ) -> list[Effect]:
        """In steps of a tick, performing what comes; returns what was held."""
        held: list[Effect] = []
        for _ in range(0, milliseconds, 50):
            self.now_ms += 50
            if not self.is_blind:
                self.feed(LogSeen(self.now_ms))
            self.feed(Tick())
            held += self.run(holds)
        return held

    def _request(self) -> RequestId:
        self._last_request += 1
        return RequestId(self._last_request)
