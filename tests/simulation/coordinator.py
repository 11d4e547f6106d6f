"""A coordinator process: the real core, the decision log in the simulated etcd, and sessions in all resource sets.

Law: as the real driver: effects in order, each call beside all others; the process may crash or be stopped between any two
effects. What a set's resource manager says goes through the real table (`services/coordinator/core/set_answers.py`).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from lockstep.core.branch_names import RANDOM_BYTES, SET_KIND, ParticipantName, new_global_id
from lockstep.core.commands import (
    AnyCommand,
    CommitBranchCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
)
from lockstep.core.ids import Incarnation, SetName
from lockstep.core.xa import BranchState, XaStatus
from lockstep.core.xid import Xid
from services.coordinator.core import set_answers
from services.coordinator.core.messages import (
    BeginAsked,
    BegunAnswer,
    Completed,
    Decide,
    DeleteTransaction,
    Effect,
    EnlistedAnswer,
    GivenUpAnswer,
    HeldAnswer,
    Input,
    KeepCommitted,
    ListLog,
    Note,
    OutcomeAnswer,
    Reached,
    ReadLog,
    RecoverAnswer,
    Refusal,
    RequestDropped,
    RequestId,
    TellBranch,
    Tick,
    Voted,
    WakeSoon,
    Woken,
    WriteParticipants,
)
from services.coordinator.core.steps import Step
from services.coordinator.core.votes import Completion, Verb, Vote
from tests.simulation.client import Client
from tests.simulation.clocks import Clocks
from tests.simulation.coordinator_calls import BeginCall, Begun, Call
from tests.simulation.coordinator_etcd import CoordinatorEtcd
from tests.simulation.history import Operation
from tests.simulation.loop import MS
from tests.simulation.network import Side

if TYPE_CHECKING:
    from tests.simulation.world import World

TICK_US = 100 * MS
WAKE_US = 1 * MS
CALL_US = 2_000 * MS
"""After which a branch's verb that was not answered is UNREACHABLE; the session goes on with it."""


class Coordinator(Client):
    """One incarnation of a coordinator; its sessions end with it, by their time-out."""

    def __init__(self, world: "World", place: str, life: int) -> None:
        """`place`: the name under which clients reach it, and its host."""
        assert world.options.coordination is not None, "a world with coordinators"
        self.place = place
        self.incarnation = Incarnation(f"{place}-{world.random.getrandbits(32):08x}")
        self.limits = world.options.coordination.limits
        self.core = world.parts.make_coordinator(self.incarnation, self.limits)
        self.fuse: int | None = None
        """The process crashes in the place of the effect that is so many effects away."""
        self.step_fuse: Step | None = None
        """It crashes when it reaches this step next."""
        self._effects: deque[tuple[Effect, int]] = deque()
        """Each with when it was asked for, by the process's own clock."""
        self._last_request = 0
        self._callers: dict[RequestId, Side] = {}
        self.clocks = Clocks(
            world.loop,
            world.random.uniform(-1, 1) * world.options.rate_error_max,
            world.random.randrange(10_000_000),
            world.random.randrange(-500, 500),
        )
        super().__init__(world, f"{place}.{life}", world.set_names, world.visitor_settings, host=place)
        self.etcd = CoordinatorEtcd(self)
        world.network.listen(f"coordinator:{place}", place, self._accept)
        world.loop.after(world.random.randrange(TICK_US), self._tick_again)

    @property
    def boottime_ms(self) -> int:
        """By the process's own clock."""
        return self.clocks.now().boottime_ms

    # --- inputs -------------------------------------------------------------------------------------------------------

    def feed(self, given: Input) -> None:
        """An input reaches this process."""
        self.post(self._handle, given)

    def _handle(self, given: Input) -> None:
        now = self.clocks.now()
        self._effects.extend((effect, now.boottime_ms) for effect in self.core.handle(given, now))

    def _tick_again(self) -> None:
        if self.is_alive:
            self.world.loop.after(TICK_US, self._tick_again)
            if not self.is_paused:
                self.feed(Tick())

    def _accept(self, side: Side) -> None:
        side.on_message = lambda message: self.post(self._asked, side, message)

    def _asked(self, side: Side, message: Call) -> None:
        self._last_request += 1
        request = RequestId(self._last_request)
        self._callers[request] = side
        side.on_close = lambda: self.post(self._dropped, request)
        if isinstance(message, BeginCall):
            self._begin(request, message)
        else:
            self._handle(replace(message, request=request))

    def _dropped(self, request: RequestId) -> None:
        if self._callers.pop(request, None) is not None:
            self._handle(RequestDropped(request))

    def _begin(self, request: RequestId, message: BeginCall) -> None:
        side, generation = self._callers[request], self.etcd.generation
        if generation is None:  # it has not reached etcd yet
            del self._callers[request]
            side.close()
            return
        chance = self.world.random.getrandbits(8 * RANDOM_BYTES).to_bytes(RANDOM_BYTES, "big")
        global_id = new_global_id(self.clocks.now().wall_ms, chance)
        self._handle(BeginAsked(request, global_id, generation, message.open_ms))
        side.send(Begun(global_id, generation))

    # --- effects ------------------------------------------------------------------------------------------------------

    def finish_begun(self) -> bool:
        while self._effects:
            if self.fuse is not None:
                self.fuse -= 1
                if self.fuse <= 0:
                    self.world.coordinators.crash(self.place, "between effects")
                    return False
            effect, asked_ms = self._effects[0]
            if self.step_fuse is not None and isinstance(effect, Reached) and effect.step is self.step_fuse:
                self.world.coordinators.crash_at_step(self.place)
                return False
            before = self.world.coordinators.before_effect
            if before is not None:
                before(self, effect)
                if not self.is_alive or self.is_paused:
                    return False
            self._effects.popleft()
            self._do(effect, asked_ms)
        return True

    def _do(self, effect: Effect, asked_ms: int) -> None:
        match effect:
            case (
                WriteParticipants() | Decide() | KeepCommitted() | DeleteTransaction() | ReadLog() | ListLog()
            ):
                self.etcd.perform(effect, asked_ms, self._handle)
            case TellBranch():
                self._tell_branch(effect)
            case GivenUpAnswer():
                raise AssertionError("nobody gives a participant up here")
            case BegunAnswer() | EnlistedAnswer() | OutcomeAnswer() | Refusal() | RecoverAnswer():
                side = self._callers.pop(effect.request, None)
                if side is not None:
                    side.send(effect)
            case HeldAnswer():
                # The hold is its caller's until the stream ends.
                side = self._callers.get(effect.request)
                if side is not None:
                    side.send(effect)
            case Reached():
                self.world.branches.reach(f"step: {effect.step.value}")
                self.world.trace(None, f"{self.name}: {effect.global_id.hex()[-8:]} {effect.step.value}")
            case Note():
                self.world.branches.reach(f"coordinator: {effect.event}")
                self.world.trace(
                    None, f"{self.name}: {effect.global_id.hex()[-8:]} {effect.event} {effect.details}"
                )
                if effect.event == "hazard":
                    self.world.coordinators.hazards.append(f"{effect.global_id.hex()}: {effect.details}")
            case WakeSoon():
                self.world.loop.after(WAKE_US, self.feed, Woken())
            case _:
                assert_never(effect)

    # --- resource sets ------------------------------------------------------------------------------------------------

    def _tell_branch(self, effect: TellBranch) -> None:
        """One verb of the set's resource manager; what is not answered in time is told as `UNREACHABLE`, once."""
        session = self.sessions[SetName(effect.participant.removeprefix(SET_KIND))]
        promise = session.submit(_command(effect.verb, effect.xid, effect.together))
        is_answered: list[bool] = []

        def answer() -> None:
            if not is_answered:
                is_answered.append(True)
                self._handle(_answer(effect, promise.operation if promise.is_done else None))

        promise.when_done(lambda: self.post(answer))
        self.world.loop.after(CALL_US, self.post, answer)

    def die(self) -> None:
        super().die()
        self._effects.clear()
        self.world.network.listen(f"coordinator:{self.place}", self.place, None)
        self.etcd.close()
        for side in self._callers.values():
            side.break_off()


def _command(verb: Verb, xid: Xid, together: tuple[ParticipantName, ...]) -> AnyCommand:
    match verb:
        case Verb.PREPARE:
            return PrepareBranchCommand(0, xid.encode(), set_answers.sets_among(together))
        case Verb.COMMIT | Verb.COMMIT_ONE_PHASE:
            return CommitBranchCommand(0, xid.encode(), verb is Verb.COMMIT_ONE_PHASE)
        case Verb.ROLL_BACK:
            return RollbackBranchCommand(0, xid.encode())


def _answer(effect: TellBranch, operation: Operation | None) -> Voted | Completed:
    """What became of the verb; `operation` None: it has not ended."""
    is_prepare = effect.verb is Verb.PREPARE
    if operation is None or operation.code is None:
        said: Vote | Completion = Vote.UNREACHABLE if is_prepare else Completion.UNREACHABLE
    elif operation.is_ok:
        status = XaStatus(operation.value)
        asked = Completion.ROLLED_BACK if effect.verb is Verb.ROLL_BACK else Completion.COMMITTED
        said = set_answers.vote(status) if is_prepare else set_answers.completion(status, asked)
    else:
        refused: Callable[..., Vote | Completion] = (
            set_answers.refused_vote if is_prepare else set_answers.refused_completion
        )
        said = refused(operation.code, BranchState(operation.value))
    if isinstance(said, Vote):
        return Voted(effect.ticket, said)
    return Completed(effect.ticket, said)
