"""The Coordinator service: clients' calls to the core's inputs, its answers back (DESIGN T3-T5).

Law: COMMITTED and ROLLED_BACK are answered as they are, to whoever says that he reads the answer; to all others whatever is not
what they asked for is an error. What is not known is an error *in doubt*, never an outcome.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence

import grpc

from lockstep.client.distributed_outcome import outcome_of
from lockstep.client.heuristics import check_committed, check_rolled_back
from lockstep.core.branch_names import (
    GENERATION_TAG_CHARACTERS,
    GLOBAL_ID_BYTES,
    PARTICIPANTS_MAX,
    RANDOM_BYTES,
    GenerationTag,
    GlobalId,
    ParticipantName,
    new_global_id,
)
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.runtime.etcd import EtcdInDoubt, EtcdRejected
from lockstep.runtime.rpc import Context, service, unary, unary_stream
from lockstep.runtime.tracing import tracing
from lockstep.runtime.wire import parse
from lockstep.runtime.xid_codec import encode_xid
from lockstep.wire.v1 import coordinator_pb2 as pb
from services.coordinator.core.messages import (
    BeginAsked,
    CloseAsked,
    CommitAsked,
    EnlistAsked,
    EnlistedAnswer,
    GivenUpAnswer,
    GiveUpAsked,
    HeldAnswer,
    HoldAsked,
    Input,
    OutcomeAnswer,
    OutcomeAsked,
    RecoverAnswer,
    RecoverAsked,
    RequestDropped,
    RequestId,
    RollbackAsked,
    State,
)
from services.coordinator.driver import Answer, CoordinatorDriver
from services.coordinator.log_pages import LogPages, hazards_of
from services.coordinator.log_port import LogPort
from services.coordinator.participant_ports import ParticipantPorts
from services.coordinator.presence import Presence
from services.coordinator.traced_commits import traced

SHOWN_BYTES = 40
"""Of what a caller gave as an id, in an error."""
STATES = {
    State.NOT_KNOWN: pb.DISTRIBUTED_STATE_NOT_KNOWN,
    State.UNDECIDED: pb.DISTRIBUTED_STATE_UNDECIDED,
    State.COMMITTED: pb.DISTRIBUTED_STATE_COMMITTED,
    State.ROLLED_BACK: pb.DISTRIBUTED_STATE_ROLLED_BACK,
}


class CoordinatorService:
    """Lives as long as the process; hosted by its gRPC server."""

    def __init__(
        self,
        driver: CoordinatorDriver,
        presence: Presence,
        ports: ParticipantPorts,
        log: LogPort,
        pages: LogPages,
    ) -> None:
        self._driver = driver
        self._presence = presence
        self._ports = ports
        self._log = log
        self._pages = pages

    def handlers(self) -> grpc.GenericRpcHandler:
        traces = tracing()
        return service(
            "Coordinator",
            {
                "Begin": unary(pb.BeginDistributedRequest, self._begin),
                "Enlist": unary(pb.EnlistParticipantRequest, self._enlist),
                "Close": unary(pb.CloseDistributedRequest, self._close),
                "Commit": unary(
                    pb.CommitDistributedRequest, traced(traces, "coordinator commit", self._commit)
                ),
                "Rollback": unary(
                    pb.RollbackDistributedRequest, traced(traces, "coordinator rollback", self._rollback)
                ),
                "GetOutcome": unary(pb.GetDistributedOutcomeRequest, self._get_outcome),
                "List": unary(pb.ListDistributedRequest, self._pages.page),
                "Recover": unary(pb.RecoverDistributedRequest, self._recover),
                "Forget": unary(pb.ForgetDistributedRequest, self._forget),
                "GiveUp": unary(pb.GiveUpParticipantRequest, self._give_up),
                "HoldCommits": unary_stream(self._hold_commits),
            },
        )

    async def _begin(self, request: pb.BeginDistributedRequest) -> pb.BeginDistributedResponse:
        generation = self._presence.generation
        if generation is None:
            raise Rejected(ErrorCode.UNAVAILABLE, "this coordinator has not reached etcd yet")
        names = await self._names(request.participants)
        global_id = new_global_id(time.time_ns() // 1_000_000, secrets.token_bytes(RANDOM_BYTES))
        await self._ask(
            global_id, lambda number: BeginAsked(number, global_id, generation, request.timeout_ms)
        )
        xids = [await self._enlisted(global_id, generation, *each) for each in enumerate(names)]
        return pb.BeginDistributedResponse(transaction_id=global_id, generation=generation, xids=xids)

    async def _enlist(self, request: pb.EnlistParticipantRequest) -> pb.EnlistParticipantResponse:
        global_id, generation = _id(request.transaction_id), _generation(request.generation)
        (participant,) = await self._names([request.participant])
        xid = await self._enlisted(global_id, generation, request.number, participant)
        return pb.EnlistParticipantResponse(xid=xid)

    async def _enlisted(
        self, global_id: GlobalId, generation: GenerationTag, place: int, participant: ParticipantName
    ) -> pb.BranchXid:
        answer = await self._ask(
            global_id, lambda number: EnlistAsked(number, global_id, generation, place, participant)
        )
        assert isinstance(answer, EnlistedAnswer), "the answer to an enlistment"
        return encode_xid(answer.xid)

    async def _close(self, request: pb.CloseDistributedRequest) -> pb.CloseDistributedResponse:
        global_id, generation = _id(request.transaction_id), _generation(request.generation)
        names = await self._names(request.participants)
        answer = await self._ask(global_id, lambda number: CloseAsked(number, global_id, generation, names))
        if isinstance(answer, OutcomeAnswer):
            raise InDoubt(ErrorCode.UNAVAILABLE, "the list may be in the log", transaction=global_id.hex())
        return pb.CloseDistributedResponse()

    async def _commit(self, request: pb.CommitDistributedRequest) -> pb.CommitDistributedResponse:
        global_id, generation = _id(request.transaction_id), _generation(request.generation)
        # It may be the second call, and etcd have been set back since the first: what it lacks says nothing of that.
        names = self._named(request.participants)
        answer = await self._ask(
            global_id, lambda number: CommitAsked(number, global_id, generation, names, request.is_closed)
        )
        ended = _ended(answer, global_id)
        response = pb.CommitDistributedResponse(
            state=STATES[ended.state],
            hazards=hazards_of(ended.hazards),
            pending=ended.pending,
            heuristic=ended.heuristic,
        )
        if not request.reads_state:
            check_committed(outcome_of(global_id.hex(), response), ended.pending)
        return response

    async def _rollback(self, request: pb.RollbackDistributedRequest) -> pb.RollbackDistributedResponse:
        global_id, generation = _id(request.transaction_id), _generation(request.generation)
        names = self._named(request.participants)
        answer = await self._ask(
            global_id, lambda number: RollbackAsked(number, global_id, generation, names, request.is_closed)
        )
        ended = _ended(answer, global_id)
        response = pb.RollbackDistributedResponse(
            state=STATES[ended.state],
            hazards=hazards_of(ended.hazards),
            pending=ended.pending,
            heuristic=ended.heuristic,
        )
        if not request.reads_state:
            check_rolled_back(outcome_of(global_id.hex(), response), ended.pending)
        return response

    async def _get_outcome(
        self, request: pb.GetDistributedOutcomeRequest
    ) -> pb.GetDistributedOutcomeResponse:
        global_id = _id(request.transaction_id)
        answer = await self._ask(global_id, lambda number: OutcomeAsked(number, global_id, request.fence))
        assert isinstance(answer, OutcomeAnswer), "the answer to a question for an outcome"
        return pb.GetDistributedOutcomeResponse(
            transaction_id=global_id,
            state=STATES[answer.state],
            hazards=hazards_of(answer.hazards),
            heuristic=answer.heuristic,
        )

    async def _recover(self, request: pb.RecoverDistributedRequest) -> pb.RecoverDistributedResponse:
        answer = await self._driver.ask(RecoverAsked)
        assert isinstance(answer, RecoverAnswer), "the answer to a recovery"
        return pb.RecoverDistributedResponse(transaction_ids=answer.taken_up)

    async def _forget(self, request: pb.ForgetDistributedRequest) -> pb.ForgetDistributedResponse:
        global_id = _id(request.transaction_id)
        try:
            is_known = await self._log.forget(global_id)
        except (EtcdRejected, EtcdInDoubt) as error:
            text = f"it may be forgotten: repeat it ({error.message})"
            raise InDoubt(ErrorCode.UNAVAILABLE, text, transaction=global_id.hex()) from error
        if not is_known:
            text = f"no heuristic outcome of {global_id.hex()} is kept"
            raise Rejected(ErrorCode.NOT_FOUND, text, transaction=global_id.hex())
        return pb.ForgetDistributedResponse()

    async def _give_up(self, request: pb.GiveUpParticipantRequest) -> pb.GiveUpParticipantResponse:
        global_id, participant = _id(request.transaction_id), ParticipantName(request.participant)
        answer = await self._ask(global_id, lambda number: GiveUpAsked(number, global_id, participant))
        assert isinstance(answer, GivenUpAnswer), "the answer to a participant's end"
        return pb.GiveUpParticipantResponse(state=STATES[answer.state])

    async def _hold_commits(self, data: bytes, context: Context) -> None:
        parse(pb.HoldCommitsRequest(), data)
        held = await self._driver.ask(HoldAsked)
        assert isinstance(held, HeldAnswer), "the answer to a hold"
        try:
            await context.write(pb.HoldCommitsResponse(left_ms=held.left_ms).SerializeToString())
            await asyncio.sleep(held.left_ms / 1000)
        finally:
            self._driver.feed(RequestDropped(held.request))

    async def _ask(self, global_id: GlobalId, make: Callable[[RequestId], Input]) -> Answer:
        """What the core answers; a refusal carries the transaction's id."""
        try:
            return await self._driver.ask(make)
        except Rejected as refused:
            details = {**refused.details, "transaction": global_id.hex()}
            raise Rejected(refused.code, refused.message, **details) from refused

    async def _names(self, names: Sequence[str]) -> tuple[ParticipantName, ...]:
        """Raises `Rejected` (INVALID_ARGUMENT) for one that nobody can be called by, or that nobody has: it would never end."""
        listed = self._named(names)
        for name in listed:
            await self._ports.of(name).check_there(name)
        return listed

    def _named(self, names: Sequence[str]) -> tuple[ParticipantName, ...]:
        """The same of what is to be ended, whoever has it. Of too many there is one more than may be: the core refuses these."""
        listed = tuple(ParticipantName(name) for name in names[: PARTICIPANTS_MAX + 1])
        for name in listed:
            self._ports.of(name)
        return listed


def _id(data: bytes) -> GlobalId:
    if len(data) != GLOBAL_ID_BYTES:
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT,
            f"a transaction id has {GLOBAL_ID_BYTES} bytes, not {len(data)}",
            transaction=data[:SHOWN_BYTES].hex(),
        )
    return GlobalId(data)


def _generation(text: str) -> GenerationTag:
    if len(text) != GENERATION_TAG_CHARACTERS or not text.isascii():
        shown = text[:SHOWN_BYTES]
        message = f"not a generation, as Begin answers it: {shown!r}"
        raise Rejected(ErrorCode.INVALID_ARGUMENT, message, generation=shown)
    return GenerationTag(text)


def _ended(answer: object, global_id: GlobalId) -> OutcomeAnswer:
    """Raises `InDoubt` for what is no outcome."""
    assert isinstance(answer, OutcomeAnswer), "the answer to an end"
    match answer.state:
        case State.NOT_KNOWN:
            raise InDoubt(
                ErrorCode.UNKNOWN_TRANSACTION,
                "the log has nothing of this transaction: ask its participants",
                transaction=global_id.hex(),
            )
        case State.UNDECIDED:
            raise InDoubt(
                ErrorCode.UNAVAILABLE, "not decided yet: ask for the outcome", transaction=global_id.hex()
            )
        case State.COMMITTED | State.ROLLED_BACK:
            return answer
