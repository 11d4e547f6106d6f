"""A client of one cluster: channels, directory, and the sessions on them."""

import asyncio
import weakref
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from lockstep.client.administration import Administration
from lockstep.client.coordinators import Coordinators
from lockstep.client.directory import CALL_SECONDS, PATIENCE_SECONDS, Directory, Kind, Place
from lockstep.client.distributed_outcome import outcome_of
from lockstep.client.outcome import Outcome, OutcomeState
from lockstep.client.session import Session
from lockstep.client.session_events import Attached, Learn
from lockstep.client.session_settings import SessionSettings
from lockstep.client.set_session import SetSession, Voided
from lockstep.core.branch_names import GLOBAL_ID_BYTES
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, SessionId, SetName, parse_transaction_id
from lockstep.core.wire_numbers import known
from lockstep.runtime.channels import Channels
from lockstep.wire.v1 import coordinator_pb2
from lockstep.wire.v1 import transactions_pb2 as pb
from lockstep.wire.v1.transactions_pb2_grpc import TransactionsStub

SESSIONS_SHOWN_MAX = 500
"""Ids of sessions in one question for an outcome: as many as brokers take."""
CONNECT_SECONDS = 3.0
"""A cluster that nobody answers for in this time is taken for absent: brokers start within a second."""


class Client:
    """Lives from `connect` to `close`; used from one event loop. What one of its sessions learns of an epoch, all know."""

    def __init__(
        self,
        addresses: Sequence[str],
        settings: SessionSettings | None = None,
        coordinators: Sequence[str] = (),
    ) -> None:
        self._channels = Channels()
        self._directory = Directory(self._channels, addresses)
        self._settings = settings
        self._is_closed = False
        self._epochs: dict[SetName, Epoch] = {}
        self._open: weakref.WeakSet[SetSession] = weakref.WeakSet()
        self._session_ids: dict[SetName, deque[SessionId]] = {}
        """By set, the newest last: whose transactions it may have rolled back, though the session may be gone here."""
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.administration = Administration(self._channels, self._directory)
        self.coordinators = Coordinators(self._channels, self.administration.coordinators, coordinators)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its sessions and channels; nothing is opened or asked afterwards."""
        self._is_closed = True
        await asyncio.gather(*(session.close() for session in list(self._sessions)))
        # Those of sessions that nobody holds any more, and that nobody has closed.
        await asyncio.gather(*(session.close() for session in list(self._open) if not session.is_closed))
        await self._channels.close()

    def session(self, *, in_order: bool = True, voided: Voided | None = None) -> Session:
        """A new session; nothing is sent before it is used. `in_order` False: it carries many clients' work, and only what one
        target or transaction gets is kept in the order of the calls. `voided`, for whoever settles what a consumer had that he
        stopped, hears what of that is void. Raises `Rejected` (ILLEGAL_STATE) when it is closed."""
        self._check_open()
        session = Session(
            self._directory, self._open_in, self._ask_fenced, self.coordinators, in_order, voided
        )
        self._sessions.add(session)
        return session

    async def get_outcome(
        self, transaction_id: str, *, fence: bool = False, patience_seconds: float = PATIENCE_SECONDS
    ) -> Outcome:
        """What became of a transaction; with `fence` an open one is rolled back first, so that the answer is final. That is for
        sessions of this client alone: raises `Rejected` (UNAUTHORIZED) for an open one of others, which ends with its session.

        `transaction_id`: set/index.epoch, or the 32 hexadecimal digits of a distributed one. Of such a one coordinators forget
        a rollback when all participants have heard it, and a commit some time after, and of one in a single set only that set can
        tell, as `InDoubt` names it there: otherwise it is UNKNOWN.
        """
        self._check_open()
        return await self._outcome(transaction_id, fence, patience_seconds)

    async def _outcome(
        self, transaction_id: str, fence: bool, patience_seconds: float = PATIENCE_SECONDS
    ) -> Outcome:
        if len(transaction_id) == 2 * GLOBAL_ID_BYTES and "/" not in transaction_id:
            return await self._distributed_outcome(transaction_id, fence, patience_seconds)
        try:
            set_name, _ = parse_transaction_id(transaction_id)
        except ValueError as error:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, str(error), transaction_id=transaction_id) from error
        sessions = self._shown(set_name) if fence else []
        request = pb.GetOutcomeRequest(transaction_id=transaction_id, fence=fence, session_ids=sessions)
        deadline = asyncio.get_running_loop().time() + patience_seconds
        while True:
            response = await self._directory.call(
                lambda channel: TransactionsStub(channel).GetOutcome(request, timeout=CALL_SECONDS),
                patience_seconds,
                is_quick=True,
            )
            if response.epoch >= self._epochs.get(set_name, 0):
                break
            if asyncio.get_running_loop().time() >= deadline:
                raise Rejected(ErrorCode.UNAVAILABLE, f"only deposed primaries of {set_name} answer")
            await asyncio.sleep(0.1)
        self._epochs[set_name] = Epoch(response.epoch)
        return Outcome(
            transaction_id,
            known(OutcomeState, response.state, OutcomeState.OF_LATER_VERSION),
            response.reason,
            Epoch(response.epoch),
            LogIndex(response.commit_index),
            generation=response.generation,
        )

    async def _distributed_outcome(
        self, transaction_id: str, fence: bool, patience_seconds: float
    ) -> Outcome:
        try:
            global_id = bytes.fromhex(transaction_id)
        except ValueError as error:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, str(error), transaction_id=transaction_id) from error
        request = coordinator_pb2.GetDistributedOutcomeRequest(transaction_id=global_id, fence=fence)
        response = await self.coordinators.call(
            "GetOutcome", request, coordinator_pb2.GetDistributedOutcomeResponse(), patience_seconds
        )
        return outcome_of(transaction_id, response)

    def _shown(self, set_name: SetName) -> list[SessionId]:
        """The ids of its sessions in a set, by which that knows its transactions: of those that are open here first."""
        still = [session.core.session_id for session in self._open if session.set_name == set_name]
        ids = dict.fromkeys([*still, *reversed(self._session_ids.get(set_name, ()))])
        return list(ids)[:SESSIONS_SHOWN_MAX]

    def _check_open(self) -> None:
        """Nobody would close the channels that are opened from here on."""
        if self._is_closed:
            raise Rejected(ErrorCode.ILLEGAL_STATE, "the client is closed")

    def _ask_fenced(self, transaction_id: str) -> "asyncio.Future[Outcome]":
        """For its sessions, which ask while they are closed, too."""
        return asyncio.ensure_future(self._outcome(transaction_id, fence=True))

    def _open_in(self, place: Place, voided: Voided | None) -> SetSession:
        candidates = place.candidates or self._directory.addresses
        session = SetSession(self._channels, place.set_name, candidates, self._settings, self._learn, voided)
        self._open.add(session)
        if epoch := max(self._epochs.get(place.set_name, Epoch(0)), place.epoch):
            session.feed(Learn(epoch))
        return session

    def _learn(self, session: SetSession, attached: Attached) -> None:
        """An epoch is served: whoever is with an earlier primary has to leave it (DESIGN R6)."""
        name = session.set_name
        known = self._session_ids.setdefault(name, deque(maxlen=SESSIONS_SHOWN_MAX))
        if session.core.session_id not in known:
            known.append(session.core.session_id)
        if attached.epoch <= self._epochs.get(name, 0):
            return
        self._epochs[name] = attached.epoch
        for other in list(self._open):
            if other is not session and other.set_name == name:
                asyncio.get_running_loop().call_soon(other.feed, Learn(attached.epoch, (attached.address,)))


async def connect(
    addresses: str | Sequence[str],
    *,
    settings: SessionSettings | None = None,
    coordinators: str | Sequence[str] = (),
    patience_seconds: float = CONNECT_SECONDS,
) -> Client:
    """A client of the cluster whose brokers listen at `addresses` (host:port, as a list or comma-separated; one is enough).

    `coordinators`: of distributed transactions, in the same form; none: those that the brokers know.

    Raises `Rejected` (UNAVAILABLE) when none of them answers for `patience_seconds`.
    """
    if isinstance(addresses, str):
        addresses = [address.strip() for address in addresses.split(",") if address.strip()]
    if not addresses:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, "no address of a broker")
    if isinstance(coordinators, str):
        coordinators = [address.strip() for address in coordinators.split(",") if address.strip()]
    client = Client(addresses, settings, coordinators)
    try:
        await client.administration.status(patience_seconds=patience_seconds)
    except BaseException:
        await client.close()
        raise
    return client


__all__ = ["Client", "Kind", "connect"]
