"""Participants as a coordinator calls them: one port for each kind of participant, chosen by its name.

Law: a port answers what the participant has said, and `UNREACHABLE` for everything else: no connection, no answer in time, an
error. It never raises for what a participant does, and never calls twice by itself: the core repeats.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from lockstep.core.branch_names import ParticipantName
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.xid import Xid
from lockstep.runtime.channels import Channels
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.xid_codec import encode_xid
from lockstep.wire.v1 import participant_pb2 as pb
from services.coordinator.core.votes import Completion, Vote

_log = logging.getLogger("lockstep.coordinator")
_failures = LimitLog(_log)
"""Of all participants, whom clients name."""

VOTES = {
    pb.PARTICIPANT_VOTE_UNKNOWN_BRANCH: Vote.UNKNOWN_BRANCH,
    pb.PARTICIPANT_VOTE_OK: Vote.OK,
    pb.PARTICIPANT_VOTE_READ_ONLY: Vote.READ_ONLY,
    pb.PARTICIPANT_VOTE_NO: Vote.NO,
    pb.PARTICIPANT_VOTE_COMMITTED: Vote.COMMITTED,
}
ENDS = {
    pb.PARTICIPANT_END_UNKNOWN_BRANCH: Completion.UNKNOWN_BRANCH,
    pb.PARTICIPANT_END_COMMITTED: Completion.COMMITTED,
    pb.PARTICIPANT_END_ROLLED_BACK: Completion.ROLLED_BACK,
    pb.PARTICIPANT_END_HEURISTICALLY_COMMITTED: Completion.HEURISTICALLY_COMMITTED,
    pb.PARTICIPANT_END_HEURISTICALLY_ROLLED_BACK: Completion.HEURISTICALLY_ROLLED_BACK,
    pb.PARTICIPANT_END_HEURISTICALLY_MIXED: Completion.HEURISTICALLY_MIXED,
}
REMEMBERED_MAX = 10_000
"""Names of participants that were reached; clients choose them."""
_NOBODY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_Response = TypeVar("_Response", bound=Message)


class ParticipantPort(ABC):
    """One kind of participant. Lives as long as the process; any number of calls at once, none of which blocks another (T9)."""

    @abstractmethod
    def check(self, participant: ParticipantName) -> None:
        """Raises `Rejected` (INVALID_ARGUMENT) for a name that is none of this kind; asks nobody."""

    async def check_there(self, participant: ParticipantName) -> None:
        """Raises `Rejected` (INVALID_ARGUMENT) if it is known that there is no such participant; where nobody can tell, as a kind
        says, there may be one."""
        return

    @abstractmethod
    async def prepare(
        self, participant: ParticipantName, xid: Xid, together: tuple[ParticipantName, ...]
    ) -> Vote:
        """OK only if the branch is prepared durably. `together`: all participants of the transaction."""

    @abstractmethod
    async def commit(self, participant: ParticipantName, xid: Xid, *, one_phase: bool) -> Completion:
        """How the branch has ended; `one_phase`: it was not prepared, and may answer that it is rolled back."""

    @abstractmethod
    async def rollback(self, participant: ParticipantName, xid: Xid) -> Completion:
        """How the branch has ended."""


class ParticipantPorts:
    """All kinds that this coordinator can call, by what stands before the colon of a name."""

    def __init__(self, ports: dict[str, ParticipantPort]) -> None:
        self._ports = ports

    def of(self, participant: ParticipantName) -> ParticipantPort:
        """Raises `Rejected` (INVALID_ARGUMENT) for a kind that is not there, and for a name that is none of its kind."""
        kind, colon, _ = participant.partition(":")
        port = self._ports.get(kind) if colon else None
        if port is None:
            kinds = " or ".join(f"{kind}:..." for kind in sorted(self._ports))
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT,
                f"a participant is named {kinds}, not {participant[:80]!r}",
                participant=participant[:80],
            )
        port.check(participant)
        return port


class GrpcParticipants(ParticipantPort):
    """Participant services, named grpc://host:port/<name>."""

    def __init__(self, channels: Channels, call_seconds: float, calls_max: int) -> None:
        """`calls_max`: under way to one address at once."""
        self._channels = channels
        self._call_seconds = call_seconds
        self._calls_max = calls_max
        self._calls: dict[str, asyncio.Semaphore] = {}
        self._there: set[ParticipantName] = set()
        """Those that were reached once: one that is away comes back."""
        self._looks: dict[ParticipantName, asyncio.Task[None]] = {}
        """Under way, for whoever asks."""

    def check(self, participant: ParticipantName) -> None:
        _parse(participant)

    async def check_there(self, participant: ParticipantName) -> None:
        """Raises `Rejected` also where nobody answers: a name that was mistyped would be told for ever how its transaction ended,
        and take a place among those that are being ended. Once for each, as long as this process lives.
        """
        if participant in self._there:
            return
        if (look := self._looks.get(participant)) is None:
            look = self._looks[participant] = asyncio.create_task(self._look(participant))
            look.add_done_callback(lambda done: self._looked(participant, done))
        await asyncio.shield(look)

    def _looked(self, participant: ParticipantName, look: asyncio.Task[None]) -> None:
        del self._looks[participant]
        if not look.cancelled():
            look.exception()  # Whoever asked may be gone.

    async def _look(self, participant: ParticipantName) -> None:
        address, name = _parse(participant)
        call: Any = self._channels.to(address).unary_unary("/lockstep.wire.v1.Participant/Recover")
        request = pb.ParticipantRecoverRequest(name=name)
        try:
            await call(request.SerializeToString(), timeout=self._call_seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() in _NOBODY:
                text = f"nobody answers at {participant!r}, and nobody has since this coordinator started"
                raise Rejected(ErrorCode.ILLEGAL_STATE, text, participant=participant) from error
            if error.code() is grpc.StatusCode.NOT_FOUND:
                text = f"there is no participant {participant!r}: {error.details()}"
                raise Rejected(ErrorCode.INVALID_ARGUMENT, text, participant=participant) from error
            # Whatever else it says, it is there; not all can list their branches.
        if len(self._there) >= REMEMBERED_MAX:
            self._there.clear()
        self._there.add(participant)

    async def prepare(
        self, participant: ParticipantName, xid: Xid, together: tuple[ParticipantName, ...]
    ) -> Vote:
        address, name = _parse(participant)
        request = pb.ParticipantPrepareRequest(name=name, xid=encode_xid(xid))
        response = await self._call(address, "Prepare", request, pb.ParticipantPrepareResponse())
        if response is None:
            return Vote.UNREACHABLE
        if response.vote == pb.PARTICIPANT_VOTE_NO:
            text = f"participant={participant} xid={xid} reason={response.reason}"
            _failures.seldom("voted_no", text, level=logging.INFO)
        return vote_of(response)

    async def commit(self, participant: ParticipantName, xid: Xid, *, one_phase: bool) -> Completion:
        address, name = _parse(participant)
        request = pb.ParticipantCommitRequest(name=name, xid=encode_xid(xid), one_phase=one_phase)
        return end_of(await self._call(address, "Commit", request, pb.ParticipantCommitResponse()))

    async def rollback(self, participant: ParticipantName, xid: Xid) -> Completion:
        address, name = _parse(participant)
        request = pb.ParticipantRollbackRequest(name=name, xid=encode_xid(xid))
        return end_of(await self._call(address, "Rollback", request, pb.ParticipantRollbackResponse()))

    async def _call(
        self, address: str, method: str, request: Message, response: _Response
    ) -> _Response | None:
        """None: nothing was said, or nothing that is an answer."""
        calls = self._calls.setdefault(address, asyncio.Semaphore(self._calls_max))
        async with calls:
            call: Any = self._channels.to(address).unary_unary(f"/lockstep.wire.v1.Participant/{method}")
            try:
                data = await call(request.SerializeToString(), timeout=self._call_seconds)
                response.ParseFromString(data)
                return response
            except grpc.aio.AioRpcError as error:
                _log.debug("event=no_answer address=%s method=%s %s", address, method, error.details())
            except DecodeError:
                _failures.seldom("answer_not_understood", f"address={address} method={method}")
        return None


class _Ended(Protocol):
    end: "pb.ParticipantEnd.ValueType"


def vote_of(response: pb.ParticipantPrepareResponse) -> Vote:
    """One that this coordinator does not know is none for a commit."""
    return VOTES.get(response.vote, Vote.NO)


def end_of(response: _Ended | None) -> Completion:
    if response is None:
        return Completion.UNREACHABLE
    # A way of ending that this coordinator does not know yet: somebody has to look at it.
    return ENDS.get(response.end, Completion.HEURISTICALLY_MIXED)


def _parse(participant: ParticipantName) -> tuple[str, str]:
    """(host:port, name)."""
    rest = participant.removeprefix("grpc://")
    address, slash, name = rest.partition("/")
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536
    if rest == participant or not slash or not name or not colon or not host or not is_port:
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT,
            f"a participant service is named grpc://host:port/name, not {participant[:80]!r}",
            participant=participant[:80],
        )
    return address, name
