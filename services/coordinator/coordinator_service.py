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
    RANDOM_BYTES,
    GenerationTag,
    GlobalId,
    ParticipantName,
    begun_ms,
    branch_xid,
    new_global_id,
)
from lockstep.core.decision_log import OutcomeEntry, Verdict
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.runtime.etcd import EtcdInDoubt, EtcdRejected
from lockstep.runtime.rpc import Context, service, unary, unary_stream
from lockstep.runtime.tracing import tracing
from lockstep.runtime.wire import parse
from lockstep.runtime.xid_codec import encode_xid
from lockstep.wire.v1 import coordinator_pb2 as pb
from services.coordinator.core.branches import Branch
from services.coordinator.core.coordinator import AnyTransaction
from services.coordinator.core.messages import (
    BeginAsked,
    CloseAsked,
    CommitAsked,
    EnlistAsked,
    EnlistedAnswer,
    HeldAnswer,
    HoldAsked,
    Input,
    ListLog,
    LoggedTransaction,
    LogListed,
    OutcomeAnswer,
    OutcomeAsked,
    RecoverAnswer,
    RecoverAsked,
    RequestDropped,
    RequestId,
    RollbackAsked,
    State,
    Ticket,
)
from services.coordinator.core.transaction import Transaction
from services.coordinator.driver import Answer, CoordinatorDriver
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
_DECIDED = {
    None: pb.DISTRIBUTED_STATE_UNDECIDED,
    Verdict.COMMIT: pb.DISTRIBUTED_STATE_COMMITTED,
    Verdict.ABORT: pb.DISTRIBUTED_STATE_ROLLED_BACK,
}


class CoordinatorService:
    """Lives as long as the process; hosted by its gRPC server."""

    def __init__(
        self, driver: CoordinatorDriver, presence: Presence, ports: ParticipantPorts, log: LogPort
    ) -> None:
        self._driver = driver
        self._presence = presence
        self._ports = ports
        self._log = log

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
                "List": unary(pb.ListDistributedRequest, self._list),
                "Recover": unary(pb.RecoverDistributedRequest, self._recover),
                "Forget": unary(pb.ForgetDistributedRequest, self._forget),
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
            hazards=_hazards(ended.hazards),
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
            hazards=_hazards(ended.hazards),
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
            hazards=_hazards(answer.hazards),
            heuristic=answer.heuristic,
        )

    async def _recover(self, request: pb.RecoverDistributedRequest) -> pb.RecoverDistributedResponse:
        answer = await self._driver.ask(RecoverAsked)
        assert isinstance(answer, RecoverAnswer), "the answer to a recovery"
        return pb.RecoverDistributedResponse(transaction_ids=answer.taken_up)

    async def _list(self, request: pb.ListDistributedRequest) -> pb.ListDistributedResponse:
        # Nobody waits for this ticket in the core: what is shown decides nothing.
        listed = await self._log.perform(ListLog(Ticket(0)))
        if not isinstance(listed, LogListed):
            raise Rejected(ErrorCode.UNAVAILABLE, "etcd does not answer")
        try:
            kept = await self._log.heuristics()
        except (EtcdRejected, EtcdInDoubt) as error:
            raise Rejected(ErrorCode.UNAVAILABLE, f"etcd does not answer: {error.message}") from error
        held = self._driver.core.transactions
        shown = [_logged(one, listed, held.pop(one.global_id, None)) for one in listed.transactions]
        shown += [_held(one) for one in held.values()]
        shown.sort(key=lambda one: -one.age_ms)
        heuristics = sorted((_heuristic(*one) for one in kept), key=lambda one: -one.age_ms)
        return pb.ListDistributedResponse(transactions=shown, heuristics=heuristics)

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
        """The same of what is to be ended, whoever has it."""
        listed = tuple(ParticipantName(name) for name in names)
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


def _hazards(hazards: Sequence[tuple[ParticipantName, str]]) -> list[pb.Hazard]:
    return [pb.Hazard(participant=name, ended=ended) for name, ended in hazards]


def _heuristic(global_id: GlobalId, outcome: OutcomeEntry) -> pb.ListDistributedResponse.Heuristic:
    return pb.ListDistributedResponse.Heuristic(
        transaction_id=global_id,
        age_ms=_age_ms(global_id),
        state=_DECIDED[outcome.verdict],
        heuristic=outcome.heuristic,
        hazards=_hazards(outcome.hazards),
    )


def _logged(
    one: LoggedTransaction, listed: LogListed, held: AnyTransaction | None
) -> pb.ListDistributedResponse.Transaction:
    entry = one.entry
    branches = (
        _branches(held.branches.all)
        if held is not None
        else [
            pb.ListDistributedResponse.Branch(
                participant=name, xid=encode_xid(branch_xid(one.global_id, number, entry.generation))
            )
            for number, name in enumerate(entry.participants)
        ]
    )
    return pb.ListDistributedResponse.Transaction(
        transaction_id=one.global_id,
        age_ms=_age_ms(one.global_id),
        generation=entry.generation,
        state=_DECIDED[one.decision],
        owner=entry.owner,
        is_owner_alive=entry.owner in listed.owners,
        is_closed=entry.is_closed,
        phase=_phase(held),
        branches=branches,
    )


def _held(held: AnyTransaction) -> pb.ListDistributedResponse.Transaction:
    return pb.ListDistributedResponse.Transaction(
        transaction_id=held.global_id,
        age_ms=_age_ms(held.global_id),
        generation=held.generation,
        phase=_phase(held),
        branches=_branches(held.branches.all),
    )


def _phase(held: AnyTransaction | None) -> str:
    if held is None:
        return ""
    return held.phase.value if isinstance(held, Transaction) else "one phase"


def _branches(branches: list[Branch]) -> list[pb.ListDistributedResponse.Branch]:
    return [
        pb.ListDistributedResponse.Branch(
            participant=branch.participant,
            xid=encode_xid(branch.xid),
            vote=branch.vote.value if branch.vote else "",
            ended=branch.completion.value if branch.completion else "",
        )
        for branch in branches
    ]


def _age_ms(global_id: GlobalId) -> int:
    return max(0, time.time_ns() // 1_000_000 - begun_ms(global_id))
