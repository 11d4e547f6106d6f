"""The sessions of callers on this broker, and the transactions that they have open (DESIGN T1).

Law: an operation is done once, whatever is repeated: its sequence number is remembered with its answer until its transaction
ends, and an end that is repeated is answered by the outcome. Whatever nobody calls for any more ends by itself.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from lockstep.core.commands import (
    AnyCommand,
    BeginCommand,
    CommitCommand,
    EndCommand,
    PublishCommand,
    RollbackCommand,
    SelectDtxCommand,
    SetTimeoutCommand,
    SettleCommand,
    StartCommand,
)
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import LogIndex, SessionId, SetName, TransactionKey, transaction_id
from lockstep.core.xid import Xid
from lockstep.runtime.big_bytes import digested
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.process import spawn
from lockstep.runtime.turns import LeftToThread, in_turns
from lockstep.runtime.wire import PIECES_BYTES_MIN
from services.broker.acquisitions import Acquired
from services.broker.caller_limits import CallerLimits
from services.broker.caller_secrets import CallerSecrets
from services.broker.caller_session import Answer, CallerSession, Done, NotTaken
from services.primary.sessions import SessionsService

_log = logging.getLogger("lockstep.callers")

SWEEP_SECONDS = 1.0
_MESSAGES_A_STEP = 200
_GRACE_SECONDS = 5.0
"""After its time-out a transaction is known a little longer here than in its set, whose answer is better than ours."""


@dataclass(slots=True)
class OpenTransaction:
    """A transaction of a caller, until its end is answered."""

    set_name: SetName
    key: TransactionKey
    session: CallerSession
    forgotten_at: float
    """Monotonic seconds."""
    sequence: int = 0
    """Of the last operation submitted."""
    answers: dict[int, tuple[int, Answer]] = field(default_factory=dict)
    """(fingerprint, answer) of every operation that the set took, or may take."""
    end: tuple[CommitCommand | RollbackCommand | EndCommand, Answer] | None = None
    xid: bytes = b""
    """Of a branch, which is ended by `end_branch`."""

    @property
    def name(self) -> str:
        return transaction_id(self.set_name, self.key)


class CallerSessions:
    """Lives as long as the process."""

    def __init__(self, sessions: SessionsService, limits: CallerLimits | None = None) -> None:
        self._service = sessions
        self.limits = limits or CallerLimits()
        self.secrets = CallerSecrets()
        self._shared_id = SessionId(str(uuid.uuid4()))
        """Of transactions that accept nothing: they need no session that would outlive them."""
        self._sessions: dict[tuple[SetName, SessionId], CallerSession] = {}
        self._used_at: dict[tuple[SetName, SessionId], float] = {}
        self._transactions: dict[tuple[SetName, TransactionKey], OpenTransaction] = {}
        self._branches: dict[tuple[SetName, bytes], OpenTransaction] = {}
        """Those among them that are branches, by xid; and those that have been ended."""
        self._ended_branches: dict[tuple[SetName, TransactionKey], OpenTransaction] = {}
        """Branches whose end was answered, the oldest first: they are no more open, but their end may be repeated."""
        self._beginning = 0
        """Transactions that are being begun: they count as open ones."""
        self._sweeping: asyncio.Task[None] | None = None
        self._refusals = LimitLog(_log)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def session(self, set_name: SetName, session_id: str = "", timeout_ms: int = 0) -> CallerSession:
        """The session of that name, opened if it is not here; "": a new one. Raises `Rejected` UNAVAILABLE at the limit."""
        timeout_ms = min(timeout_ms or self.limits.session_timeout_ms, self.limits.session_timeout_ms_max)
        name = SessionId(session_id or str(uuid.uuid4()))
        return self._session(set_name, name, timeout_ms, is_new=not session_id)

    def known_session(self, set_name: SetName, session_id: str) -> CallerSession | None:
        """The session of that name if it is here."""
        place = set_name, SessionId(session_id)
        session = self._sessions.get(place)
        if session is not None:
            self._used_at[place] = time.monotonic()
        return session

    def _session(
        self, set_name: SetName, session_id: SessionId, timeout_ms: int, *, is_new: bool = False
    ) -> CallerSession:
        session = self.known_session(set_name, session_id)
        if session is not None and not session.ended.done():
            return session
        # The shared one is everybody's, and there is one for each set: those who have their own keep nobody else out.
        if session_id != self._shared_id and len(self._sessions) >= self.limits.sessions_max:
            text = f"{self.limits.sessions_max} sessions of callers are open"
            raise self._too_many("caller_sessions_max", set_name, text)
        stream = self._service.open_local(set_name)
        session = CallerSession(
            set_name, session_id, timeout_ms, stream, self.limits, self._refusals.refused, is_new
        )
        self._sessions[set_name, session_id] = session
        self._used_at[set_name, session_id] = time.monotonic()
        session.ended.add_done_callback(lambda _: self._forget_session(session))
        if self._sweeping is None:
            self._sweeping = spawn(self._sweep(), "sessions of callers")
        return session

    def _too_many(self, limit: str, set_name: SetName, text: str) -> Rejected:
        self._refusals.refused(limit, f"set={set_name} {text}")
        return Rejected(ErrorCode.UNAVAILABLE, text, set_name=set_name)

    def _forget_session(self, session: CallerSession) -> None:
        place = session.set_name, session.session_id
        if self._sessions.get(place) is session:
            del self._sessions[place], self._used_at[place]
        for transaction in [*self._transactions.values(), *self._ended_branches.values()]:
            if transaction.session is session:
                self._forget(transaction)

    def _forget(self, transaction: OpenTransaction) -> None:
        place = transaction.set_name, transaction.key
        self._transactions.pop(place, None)
        self._ended_branches.pop(place, None)
        if self._branches.get((transaction.set_name, transaction.xid)) is transaction:
            del self._branches[transaction.set_name, transaction.xid]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            for place, session in list(self._sessions.items()):
                is_idle = now - self._used_at[place] > session.timeout_ms / 1000
                if is_idle and not session.is_busy and session.session_id != self._shared_id:
                    session.detach()
            for transaction in [*self._transactions.values(), *self._ended_branches.values()]:
                if now >= transaction.forgotten_at:
                    self._forget(transaction)

    # --- messages -----------------------------------------------------------------------------------------------------

    async def acquire(
        self,
        set_name: SetName,
        session_id: str,
        session_timeout_ms: int,
        queue: str,
        messages_max: int,
        wait_seconds: float,
    ) -> tuple[CallerSession, Acquired]:
        """Messages for the session of that name; "": for a new one, which ends again where its caller does not hear of it.

        Raises `Rejected` or `InDoubt`.
        """
        session, is_told = self.session(set_name, session_id, session_timeout_ms), bool(session_id)
        try:
            acquired = await session.acquisitions.acquire(queue, messages_max, wait_seconds)
            is_told = True
        finally:
            if not is_told:
                session.detach()
        return session, acquired

    # --- transactions -------------------------------------------------------------------------------------------------

    async def begin(
        self, set_name: SetName, session_id: str, timeout_ms: int
    ) -> tuple[OpenTransaction, Done]:
        """Raises `Rejected` or `InDoubt`; a transaction that was opened and not told ends by its time-out."""
        with self._begins(set_name):
            timeout_ms = self._checked(timeout_ms)
            session = self._session_for(set_name, session_id)
            done = await session.answered(session.submit(BeginCommand(0, timeout_ms)))
            return self._begun(session, done, timeout_ms), done

    async def start_branch(
        self, set_name: SetName, session_id: str, xid: Xid, timeout_ms: int
    ) -> tuple[OpenTransaction, Done]:
        """As `begin`, for a branch. Raises `InDoubt` where it has begun and its time-out was refused."""
        with self._begins(set_name):
            timeout_ms = self._checked(timeout_ms)
            session, name = self._session_for(set_name, session_id), xid.encode()
            # Each time: the set may have lost the session since.
            session.submit(SelectDtxCommand(0, hears_read_only=False, has_many_branches=True))
            started = session.submit(StartCommand(0, name))
            # Its caller may not hear of it, and has to end its work all the same before it can be rolled back.
            started.add_done_callback(lambda done: self._started(session, done, timeout_ms, name))
            done = await session.answered(started)
            branch = self._begun(session, done, timeout_ms, name)
        try:
            await session.answered(session.submit(SetTimeoutCommand(0, name, timeout_ms)))
        except Rejected as error:
            text = f"branch {branch.name} has begun, and has the time-out of its set: {error.message}"
            raise InDoubt(error.code, text, **error.details) from error
        return branch, done

    @contextlib.contextmanager
    def _begins(self, set_name: SetName) -> Iterator[None]:
        """While a transaction is being begun. Raises `Rejected` UNAVAILABLE when there are as many as may be."""
        if len(self._transactions) + self._beginning >= self.limits.transactions_max:
            text = f"{self.limits.transactions_max} transactions of callers are open"
            raise self._too_many("caller_transactions_max", set_name, text)
        self._beginning += 1
        try:
            yield
        finally:
            self._beginning -= 1

    def _checked(self, timeout_ms: int) -> int:
        """The time-out of a new transaction. Raises `Rejected` for one that is too long."""
        timeout_ms = timeout_ms or self.limits.transaction_timeout_ms
        if timeout_ms > self.limits.transaction_timeout_ms_max:
            text = f"a transaction's time-out is at most {self.limits.transaction_timeout_ms_max} ms"
            raise Rejected(ErrorCode.INVALID_ARGUMENT, text, timeout_ms=timeout_ms)
        return timeout_ms

    def _session_for(self, set_name: SetName, session_id: str = "") -> CallerSession:
        """The one that is named; "": the one that all share who accept nothing."""
        if session_id:
            return self.session(set_name, session_id)
        return self._session(set_name, self._shared_id, self.limits.session_timeout_ms)

    def _begun(
        self, session: CallerSession, done: Done, timeout_ms: int, xid: bytes = b""
    ) -> OpenTransaction:
        key: TransactionKey = LogIndex(done.value), done.epoch
        known = self._transactions.get((session.set_name, key))
        if known is not None and known.session is session:
            return known
        transaction = OpenTransaction(session.set_name, key, session, _forgotten_at(timeout_ms), xid=xid)
        if not session.ended.done():
            self._transactions[session.set_name, key] = transaction
            if xid:
                self._branches[session.set_name, xid] = transaction
        return transaction

    def _started(self, session: CallerSession, done: Answer, timeout_ms: int, xid: bytes) -> None:
        if done.exception() is None:
            self._begun(session, done.result(), timeout_ms, xid)

    def is_known(self, set_name: SetName, key: TransactionKey) -> bool:
        """Whether `find` would find it; nobody calls for it by that."""
        return (set_name, key) in self._transactions or (set_name, key) in self._ended_branches

    def find(self, set_name: SetName, key: TransactionKey) -> OpenTransaction | None:
        """A transaction that was begun here and whose end was not answered yet, or a branch that was ended a while ago."""
        transaction = self._transactions.get((set_name, key)) or self._ended_branches.get((set_name, key))
        if transaction is not None:
            self.known_session(set_name, transaction.session.session_id)
        return transaction

    async def operate(self, transaction: OpenTransaction, command: PublishCommand | SettleCommand) -> Done:
        """Does an operation, once per sequence number. Raises `Rejected` or `InDoubt`: then it may be repeated."""
        sequence, fingerprint = command.sequence, await in_turns(_fingerprint(command))
        _forget_not_taken(transaction)
        known = transaction.answers.get(sequence)
        if known is not None:
            if known[0] != fingerprint:
                text = f"operation {sequence} of transaction {transaction.name} was another one"
                raise Rejected(ErrorCode.INVALID_ARGUMENT, text, transaction=transaction.name)
            return await transaction.session.answered(known[1])
        if transaction.end is not None:
            raise Rejected(
                ErrorCode.TRANSACTION_FINISHED,
                f"transaction {transaction.name} was told to end",
                transaction=transaction.name,
            )
        if sequence != transaction.sequence + 1:
            text = (
                f"transaction {transaction.name} expects operation {transaction.sequence + 1}, not {sequence}"
            )
            raise Rejected(ErrorCode.SEQUENCE_GAP, text, transaction=transaction.name)
        answer = transaction.session.submit(command)
        transaction.sequence = sequence
        transaction.answers[sequence] = fingerprint, answer
        return await transaction.session.answered(answer)

    async def end(self, transaction: OpenTransaction, command: CommitCommand | RollbackCommand) -> Done:
        """Commits or rolls back, once. Raises `Rejected` (ROLLED_BACK too) or `InDoubt`."""
        if transaction.xid:
            text = f"transaction {transaction.name} is a branch of a distributed transaction"
            raise Rejected(ErrorCode.ILLEGAL_STATE, text, transaction=transaction.name)
        if transaction.end is None:
            answer = transaction.session.submit(command)
            transaction.end = command, answer
            answer.add_done_callback(lambda done: self._ended(transaction, done))
        elif type(transaction.end[0]) is not type(command):
            raise Rejected(
                ErrorCode.TRANSACTION_FINISHED,
                f"transaction {transaction.name} was told to end the other way",
                transaction=transaction.name,
            )
        return await transaction.session.answered(transaction.end[1])

    def branch(self, set_name: SetName, xid: bytes) -> OpenTransaction | None:
        """The branch of that xid that was begun here, for as long as it could be open."""
        return self._branches.get((set_name, xid))

    async def end_branch(self, set_name: SetName, command: EndCommand) -> Done:
        """Ends the work in a branch, once: repeated, it is answered as the first time for as long as the branch could be open."""
        branch = self.branch(set_name, command.xid)
        if branch is None:
            return await self.run(set_name, command)
        if branch.end is None:
            answer = branch.session.submit(command)
            branch.end = command, answer
            answer.add_done_callback(lambda done: self._branch_ended(branch, done))
        elif branch.end[0] != command:
            text = f"transaction {branch.name} was told to end otherwise"
            raise Rejected(ErrorCode.TRANSACTION_FINISHED, text, transaction=branch.name)
        return await branch.session.answered(branch.end[1])

    async def set_timeout(self, set_name: SetName, command: SetTimeoutCommand) -> Done:
        """Gives a branch another time-out, from now on: it is known here for as long as it may be open."""
        branch = self.branch(set_name, command.xid)
        if branch is not None:
            longest_ms = self.limits.transaction_timeout_ms_max
            # 0: it has none. That it may not get the longer one does no harm.
            timeout_ms = min(command.timeout_ms or longest_ms, longest_ms)
            branch.forgotten_at = max(branch.forgotten_at, _forgotten_at(timeout_ms))
        return await self.run(set_name, command)

    async def run(self, set_name: SetName, command: AnyCommand) -> Done:
        """Does what may be repeated, in the session that all share."""
        session = self._session_for(set_name)
        return await session.answered(session.submit(command))

    def _ended(self, transaction: OpenTransaction, done: Answer) -> None:
        if isinstance(done.exception(), NotTaken):
            transaction.end = None
        else:
            # From here on its set knows better how it ended.
            self._transactions.pop((transaction.set_name, transaction.key), None)

    def _branch_ended(self, branch: OpenTransaction, done: Answer) -> None:
        place = branch.set_name, branch.key
        if isinstance(done.exception(), NotTaken):
            branch.end = None
        elif self._transactions.pop(place, None) is not None:
            self._ended_branches[place] = branch
            if len(self._ended_branches) > self.limits.transactions_max:
                self._forget(next(iter(self._ended_branches.values())))


def _forgotten_at(timeout_ms: int) -> float:
    """When a transaction is forgotten here that has so much time from now on."""
    return time.monotonic() + timeout_ms / 1000 + _GRACE_SECONDS


def _fingerprint(command: PublishCommand | SettleCommand) -> Generator[LeftToThread, None, int]:
    """Of an operation: the same as of its equals, in this process. In steps (`in_turns`)."""
    if isinstance(command, SettleCommand):
        return hash(command)
    hashes, big = list[int](), list[bytes]()
    for message in command.messages:
        if is_big := len(message.body) >= PIECES_BYTES_MIN:
            big.append(message.body)
            message = replace(message, body=b"")
        hashes.append(hash((message, is_big)))
        if len(hashes) % _MESSAGES_A_STEP == 0:
            yield None
    digest = (yield from digested(big)) if big else b""
    return hash((replace(command, messages=()), tuple(hashes), digest))


def _forget_not_taken(transaction: OpenTransaction) -> None:
    """They may be sent again. Behind one that was not taken none was: looked at before another one is, which would be taken."""
    while transaction.sequence in transaction.answers:
        _, answer = transaction.answers[transaction.sequence]
        if not (answer.done() and isinstance(answer.exception(), NotTaken)):
            return
        del transaction.answers[transaction.sequence]
        transaction.sequence -= 1
