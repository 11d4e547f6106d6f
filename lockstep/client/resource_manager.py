"""The resource manager of one set, as its clients drive it: the verbs of XA for the branches of distributed transactions.

Law: a verb answers an `XaStatus` or raises: `XaError` where the resource manager refused it, `InDoubt` where nobody can tell.
What a session does in a branch, between its `start` and `end`, happens if the branch commits.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from lockstep.client.command_batches import CommandBatches, Confirmation
from lockstep.client.consumer import Message
from lockstep.client.outgoing import Headers, Outgoing, outgoing
from lockstep.client.session_events import CommandAnswer, Done
from lockstep.client.set_session import SetSession, key_of
from lockstep.client.unheard import unheard
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import SetName, TransactionKey
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.wire_numbers import known
from lockstep.core.xa import EXCEPTIONS, BranchState, XaStatus
from lockstep.core.xid import Xid

PAGE = 500
"""Branches of one answer to recover."""
TIMEOUT_SECONDS_MAX = 2**31 - 1
"""What can be said on the wire; a resource manager takes less."""


class XaError(Rejected):
    """A verb was refused. `exception` is AMQP 0-10's number: 404, 409, 503, 530, 541, 542, or 0 for other reasons."""

    def __init__(self, rejected: Rejected, verb: str, xid: Xid) -> None:
        details = {**rejected.details, "verb": verb, "xid": str(xid)}
        super().__init__(rejected.code, rejected.message, **details)
        self.exception = EXCEPTIONS.get(rejected.code, 0)
        self.verb = verb
        self.xid = xid
        state = rejected.details.get("branch_state", BranchState.UNKNOWN)
        assert isinstance(state, BranchState)
        self.state = state
        """What the verb met."""


class Branch:
    """Work in one branch, from `ResourceManager.start` or `start_soon` to `end`. Used from one event loop."""

    def __init__(self, xid: Xid, key: TransactionKey, batches: CommandBatches) -> None:
        self.xid = xid
        self.key = key
        self.batches = batches

    def publish(
        self,
        routing_key: str,
        messages: Outgoing,
        *,
        exchange: str = "",
        properties: bytes = b"",
        durable: bool = True,
        ttl_ms: int = 0,
        headers: Headers = (),
        priority: int = PRIORITY_DEFAULT,
    ) -> Confirmation:
        """Publishes if the branch commits. The confirmation need not be awaited: if the operation fails, so does the branch."""
        batch = outgoing(messages, properties, durable, ttl_ms, headers, priority)
        return self.batches.publish(exchange, routing_key, batch, self.key)

    def accept(self, message: Message) -> Confirmation:
        """Takes a message from its queue if the branch commits; if not, or if it is refused, it returns there.

        Raises `Rejected` for one that is void or settled (STALE_DELIVERY), or another session's (ILLEGAL_STATE): then the branch
        can only be rolled back.
        """
        (confirmation,) = message.consumer.accept_in((message,), self.key, self.batches)
        # Whoever gives up waiting for it must not keep this process from hearing that it was refused.
        return unheard(asyncio.shield(confirmation))


class ResourceManager:
    """Lives as long as its session; all of the session's work in the set shares one numbering."""

    def __init__(self, session: SetSession, batches: CommandBatches) -> None:
        self._session = session
        self._batches = batches
        self._starting: dict[Xid, asyncio.Future[Done]] = {}
        """Starts that `end` may have to tell of: those that are not answered, or were refused."""

    @property
    def set_name(self) -> SetName:
        return self._session.set_name

    async def select(self, *, hears_read_only: bool = False, has_many_branches: bool = False) -> None:
        """Before the first `start`. `hears_read_only`: preparing a branch without operations answers `RDONLY` and ends it;
        `has_many_branches`: this session may work in several of them at once, which XA's threads may not.
        """
        await self.select_soon(hears_read_only=hears_read_only, has_many_branches=has_many_branches)

    def select_soon(
        self, *, hears_read_only: bool = False, has_many_branches: bool = False
    ) -> asyncio.Future[Done]:
        """As `select`, with what to wait for, which need not be: if it is refused, so is each `start`."""
        return unheard(self._send(c.SelectDtxCommand(0, hears_read_only, has_many_branches)))

    async def start(
        self,
        xid: Xid,
        *,
        join: bool = False,
        resume: bool = False,
        transaction: TransactionKey | None = None,
    ) -> Branch:
        """Begins a branch, joins one, or resumes work that this session suspended; or makes an open `transaction` of this
        session a branch. Raises `XaError`."""
        start = self._send(c.StartCommand(0, _encoded(xid, "start"), join, resume, transaction))
        return Branch(xid, key_of(await self._done("start", xid, start)), self._batches)

    async def start_soon(
        self, xid: Xid, *, transaction: TransactionKey | None = None, timeout_ms: int = 0
    ) -> Branch:
        """Begins a branch, and does not wait for the set's word: work follows at once. If it was refused, all that is done in it
        is rolled back, and its `end` or `end_and_prepare` raises the `XaError`.

        `transaction`: an open TX of this session that becomes the branch; `timeout_ms`: from now on, 0: the set's own, or what
        the TX has. Raises what a begin does.
        """
        name = _encoded(xid, "start")
        self._batches.flush()
        key = transaction or await self._session.begin(timeout_ms)
        self._starting[xid] = started = unheard(asyncio.get_running_loop().create_future())
        self._batches.flush()
        self._session.submit_for(
            c.StartCommand(0, name, transaction=key), partial(self._start_answered, xid, key, started)
        )
        if transaction is not None and timeout_ms:
            unheard(self._send(c.SetTimeoutCommand(0, name, timeout_ms)))
        return Branch(xid, key, self._batches)

    def works_in(self, branch: Branch) -> bool:
        """Whether its session works in this very branch still, as far as is known: it has not ended with its epoch or session,
        and its xid is not that of a later one."""
        return self._session.core.window.branches.get(branch.xid.encode()) == branch.key

    async def end(self, xid: Xid, *, fail: bool = False, suspend: bool = False) -> XaStatus:
        """Ends this session's work in a branch (`RBROLLBACK`: it can only be rolled back), or suspends it."""
        return await self._ends(xid, [("end", c.EndCommand(0, _encoded(xid, "end"), 0, fail, suspend))])

    def end_soon(self, xid: Xid, ends_within_seconds: float = 0) -> Coroutine[None, None, XaStatus]:
        """As `end`, sent with whatever was asked for in this turn of the event loop; to be awaited.

        `ends_within_seconds`: rolled back by then unless it was prepared; 0: when its own time-out says.
        """
        name = _encoded(xid, "end")
        if ends_within_seconds:
            unheard(self._send(c.SetTimeoutCommand(0, name, round(ends_within_seconds * 1000))))
        return self._ends(xid, [("end", c.EndCommand(0, name, 0))])

    async def prepare(self, xid: Xid, resource_sets: Sequence[str] = ()) -> XaStatus:
        """Votes, when the branch is durable at every in-sync broker; any number of them at once.

        `resource_sets`: all in which the transaction has branches, as readers of committed events are told; empty: not known.
        """
        sets = tuple(resource_sets)
        return await self._verb("prepare", xid, lambda name: c.PrepareBranchCommand(0, name, sets))

    async def end_and_prepare(self, xid: Xid, resource_sets: Sequence[str] = ()) -> XaStatus:
        """`end` and `prepare` in one round, as the set does what a session asks for in its order; answers the vote. Raises the
        `XaError` of the first that was refused.
        """
        name = _encoded(xid, "end")
        prepare = c.PrepareBranchCommand(0, name, tuple(resource_sets))
        return await self._ends(xid, [("end", c.EndCommand(0, name, 0)), ("prepare", prepare)])

    async def commit(self, xid: Xid, *, one_phase: bool = False) -> XaStatus:
        return await self._verb("commit", xid, lambda name: c.CommitBranchCommand(0, name, one_phase))

    async def rollback(self, xid: Xid) -> XaStatus:
        return await self._verb("rollback", xid, lambda name: c.RollbackBranchCommand(0, name))

    async def forget(self, xid: Xid) -> XaStatus:
        """Forgets that a branch was ended heuristically."""
        return await self._verb("forget", xid, lambda name: c.ForgetBranchCommand(0, name))

    async def end_heuristically(self, xid: Xid, *, commit: bool) -> XaStatus:
        """An operator's decision in the coordinator's place, kept until it is forgotten."""
        return await self._verb(
            "end-heuristically", xid, lambda name: c.EndHeuristicallyCommand(0, name, commit)
        )

    async def set_timeout(self, xid: Xid, seconds: float) -> XaStatus:
        """Until the branch is prepared; 0: none."""
        if not 0 <= seconds <= TIMEOUT_SECONDS_MAX:
            text = f"a time-out of {seconds} s is not between 0 and {TIMEOUT_SECONDS_MAX} s"
            raise XaError(Rejected(ErrorCode.INVALID_ARGUMENT, text), "set-timeout", xid)
        timeout_ms = round(seconds * 1000)
        return await self._verb("set-timeout", xid, lambda name: c.SetTimeoutCommand(0, name, timeout_ms))

    async def get_timeout(self, xid: Xid) -> float:
        """Seconds; 0: none."""
        name = _encoded(xid, "get-timeout")
        answer = await self._session.ask(rq.GetTimeout(0, name))
        assert isinstance(answer, sm.TimeoutAnswer), "a time-out is answered as one"
        if answer.code is not ErrorCode.NONE:
            raise XaError(Rejected(answer.code, f"no branch {xid}"), "get-timeout", xid)
        return answer.timeout_ms / 1000

    async def recover(self, *, with_open: bool = False) -> list[sm.BranchDescription]:
        """Branches that are prepared or were ended heuristically, and with `with_open` the open ones, by xid."""
        found: list[sm.BranchDescription] = []
        while True:
            after = found[-1].xid if found else b""
            answer = await self._session.ask(rq.Recover(0, after, PAGE, with_open))
            assert isinstance(answer, sm.Recovered), "a recover is answered as one"
            found += answer.branches
            if answer.is_end:
                return found

    # Inside

    def _start_answered(
        self,
        xid: Xid,
        key: TransactionKey,
        started: asyncio.Future[Done],
        answer: CommandAnswer,
    ) -> None:
        if isinstance(answer, Rejected):
            # What was done is in a transaction that is no branch, and nobody else would end it.
            unheard(self._session.submit(c.RollbackCommand(0, key)))
        if started.cancelled():
            return
        if isinstance(answer, Done):
            started.set_result(answer)
            if self._starting.get(xid) is started:
                del self._starting[xid]
        else:
            started.set_exception(answer)

    def _ends(
        self, xid: Xid, commands: Sequence[tuple[str, c.AnyCommand]]
    ) -> Coroutine[None, None, XaStatus]:
        """Sends these verbs in one go. The coroutine answers the last one's status, and raises the `XaError` of the first that
        was refused, a start before them that nobody has heard of included.
        """
        sent = [(verb, unheard(self._send(command))) for verb, command in commands]
        self._session.begin_ahead()
        return self._ended(xid, self._starting.pop(xid, None), sent)

    async def _ended(
        self,
        xid: Xid,
        started: asyncio.Future[Done] | None,
        sent: Sequence[tuple[str, asyncio.Future[Done]]],
    ) -> XaStatus:
        if started is not None:
            await self._done("start", xid, started)
        return [await self._status(verb, xid, answer) for verb, answer in sent][-1]

    async def _verb(self, verb: str, xid: Xid, make: Callable[[bytes], c.AnyCommand]) -> XaStatus:
        return await self._status(verb, xid, self._send(make(_encoded(xid, verb))))

    async def _status(self, verb: str, xid: Xid, sent: asyncio.Future[Done]) -> XaStatus:
        number = (await self._done(verb, xid, sent)).value
        status = known(XaStatus, number, None)
        if status is None:
            text = f"{verb} of {xid} was answered with status {number}, which is not known here"
            raise InDoubt(ErrorCode.ILLEGAL_STATE, text, xid=str(xid), status=number)
        return status

    async def _done(self, verb: str, xid: Xid, sent: asyncio.Future[Done]) -> Done:
        try:
            return await sent
        except Rejected as rejected:
            raise XaError(rejected, verb, xid) from rejected

    def _send(self, command: c.AnyCommand) -> asyncio.Future[Done]:
        """What is being gathered goes first."""
        self._batches.flush()
        return self._session.submit(command)


def _encoded(xid: Xid, verb: str) -> bytes:
    """Raises `XaError` (542) for one that is malformed: nothing was asked."""
    try:
        return xid.encode()
    except ValueError as error:
        raise XaError(Rejected(ErrorCode.INVALID_ARGUMENT, f"{verb}: {error}"), verb, xid) from error
