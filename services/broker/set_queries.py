"""Set queries: asks a replica of this process what clients can ask it (outcomes, branches, figures), for calls without a session.

Law: one session per set serves all queries of this process, and every query ends: with its answer, with the end of the stream, or
with its time-out.
"""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import Epoch, LogIndex, SessionId, SessionKey, SetName, TransactionKey
from lockstep.core.records import Begins
from lockstep.core.requests import (
    AnyRequest,
    AttachSession,
    BrokerRequest,
    ChangeSubscription,
    Describe,
    FindBranches,
    GetOutcome,
    GetTimeout,
    Recover,
    SubscriptionChange,
)
from lockstep.core.server_messages import (
    AttachRefused,
    BranchesFound,
    Description,
    OutcomeAnswer,
    Recovered,
    SessionEnded,
    SubscriptionsAnswer,
    TimeoutAnswer,
    Told,
)
from lockstep.core.subscriptions import Group
from lockstep.runtime.process import spawn
from services.primary.sessions import LocalStream, SessionsService

QUERY_SECONDS = 5.0
"""Longer than a failover; a set that answers nothing for so long is unavailable."""
_SESSION_TIMEOUT_MS = 10_000


@dataclass(slots=True)
class _Link:
    """The stream to one set's replica, until it ends."""

    stream: LocalStream
    answers: dict[int, asyncio.Future[Told]] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class SetQueries:
    """Lives as long as the process."""

    def __init__(self, sessions: SessionsService) -> None:
        self._sessions = sessions
        self._session_id = SessionId(str(uuid.uuid4()))
        self._links: dict[SetName, _Link] = {}
        self._last_request = 0

    async def outcome(
        self,
        set_name: SetName,
        transaction: TransactionKey,
        fence: bool,
        sessions: tuple[SessionId, ...] = (),
        *,
        is_permitted: bool = False,
    ) -> OutcomeAnswer:
        """What became of a transaction; to be fenced it has to be of one of these sessions, or its caller's own to be shown
        (`is_permitted`). Raises `Rejected` (NOT_PRIMARY) or `InDoubt` (no answer in time)."""
        answer = await self._ask(
            set_name, lambda number: GetOutcome(number, transaction, fence, sessions, is_permitted)
        )
        assert isinstance(answer, OutcomeAnswer), answer
        return answer

    async def description(self, set_name: SetName) -> Description:
        """The set in figures. Raises as `outcome`."""
        answer = await self._ask(set_name, Describe)
        assert isinstance(answer, Description), answer
        return answer

    async def timeout(self, set_name: SetName, xid: bytes) -> TimeoutAnswer:
        """The time-out of a branch. Raises as `outcome`."""
        answer = await self._ask(set_name, lambda number: GetTimeout(number, xid))
        assert isinstance(answer, TimeoutAnswer), answer
        return answer

    async def recover(self, set_name: SetName, after: bytes, limit: int, with_open: bool) -> Recovered:
        """A page of branches. Raises as `outcome`."""
        answer = await self._ask(set_name, lambda number: Recover(number, after, limit, with_open))
        assert isinstance(answer, Recovered), answer
        return answer

    async def change_subscription(
        self,
        set_name: SetName,
        group: str,
        change: SubscriptionChange,
        floor: LogIndex | None = None,
        epoch: Epoch | None = None,
        *,
        is_earliest: bool = False,
        is_left_behind: bool = False,
        begins: Begins = (),
    ) -> tuple[Group, ...]:
        """All groups of the set behind the change. Raises as `outcome`, and what the primary rejects."""
        answer = await self._ask(
            set_name,
            lambda number: ChangeSubscription(
                number, group, change, floor, is_earliest, epoch, is_left_behind, begins
            ),
        )
        assert isinstance(answer, SubscriptionsAnswer), answer
        if answer.code:
            raise Rejected(answer.code, answer.message, set_name=set_name)
        return answer.groups

    async def find_branches(self, set_name: SetName, xids: tuple[bytes, ...]) -> BranchesFound:
        """How the set's branches of these transactions stand. Raises as `outcome`."""
        answer = await self._ask(set_name, lambda number: FindBranches(number, xids))
        assert isinstance(answer, BranchesFound), answer
        return answer

    async def _ask(self, set_name: SetName, make: Callable[[int], AnyRequest | BrokerRequest]) -> Told:
        link = self._links.get(set_name) or self._open(set_name)
        self._last_request += 1
        number = self._last_request
        answer: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        link.answers[number] = answer
        link.stream.say(make(number))
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                return await answer
        except TimeoutError:
            raise InDoubt(
                ErrorCode.UNAVAILABLE, f"set {set_name!r} did not answer", set_name=set_name
            ) from None
        finally:
            link.answers.pop(number, None)

    def _open(self, set_name: SetName) -> _Link:
        stream = self._sessions.open_local(set_name)
        stream.say(
            AttachSession(
                set_name, self._session_id, SessionKey(0), Epoch(0), timeout_ms=_SESSION_TIMEOUT_MS, heard=0
            )
        )
        link = self._links[set_name] = _Link(stream)
        link.task = spawn(self._listen(set_name, link), f"queries of {set_name}")
        return link

    async def _listen(self, set_name: SetName, link: _Link) -> None:
        reason = Rejected(ErrorCode.NOT_PRIMARY, f"set {set_name!r} is not served here", set_name=set_name)
        is_open = True
        while is_open:
            messages = await link.stream.hear()
            is_open = bool(messages)
            for message in messages:
                match message:
                    case (
                        OutcomeAnswer()
                        | Description()
                        | TimeoutAnswer()
                        | Recovered()
                        | SubscriptionsAnswer()
                        | BranchesFound()
                    ):
                        waiting = link.answers.get(message.request)
                        if waiting is not None and not waiting.done():
                            waiting.set_result(message)
                    case AttachRefused() | SessionEnded():
                        reason = Rejected(
                            message.code or ErrorCode.NOT_PRIMARY, message.message, set_name=set_name
                        )
                        is_open = False
                    case _:
                        pass
        link.stream.close()
        if self._links.get(set_name) is link:
            del self._links[set_name]
        for waiting in list(link.answers.values()):
            if not waiting.done():
                waiting.set_exception(reason)
