"""One transaction of a client, from declare to discharge (AMQP 1.0, 4.4): the client's posts and retirements in order, on a
transaction of ours.

Law: an operation that fails makes the commit fail (4.4.1), whatever it fails by: a step that raised has not done all of its work.
Nothing of it is visible before the commit; what was retired returns to its queue in order if it is rolled back. Outcomes other
than accepted take effect when it has committed, and as `released` if not.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from lockstep.client.command_batches import CommandBatches, Confirmation
from lockstep.client.set_session import SetSession
from lockstep.client.transaction_state import TransactionState
from lockstep.core.commands import OutgoingMessage
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import Epoch, QueuePosition
from lockstep.runtime.limit_log import LimitLog
from services.proxy.nodes import Target
from services.proxy.steps import in_steps

_failures = LimitLog(logging.getLogger("lockstep.proxy"))
"""Of all transactions of the worker."""

Place = tuple[SetSession, CommandBatches]


class Work(Protocol):
    """What it is on our side: a `Transaction`, or a branch of a distributed one."""

    state: TransactionState

    async def publish(
        self, routing_key: str, messages: Sequence[OutgoingMessage], *, exchange: str = ""
    ) -> Confirmation: ...
    async def accept_deliveries(
        self,
        place: Place,
        queue: str,
        epoch: Epoch,
        positions: Sequence[QueuePosition],
        check: Callable[[], None],
    ) -> Confirmation: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class AmqpTransaction:
    """Lives from its declare to its discharge, or until its connection or coordinator link is gone."""

    def __init__(self, name: bytes, transaction: Work, timeout_seconds: float) -> None:
        self.name = name
        self._transaction = transaction
        self._timer: asyncio.TimerHandle | None = None
        if timeout_seconds:
            self._timer = asyncio.get_running_loop().call_later(timeout_seconds, self._time_out)
        self._lateness: Rejected | None = None
        """Its time was over before its discharge came."""
        self._steps: deque[Callable[[], Awaitable[None]]] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._failure: Rejected | None = None
        self._checks: list[Callable[[], None]] = []
        self._at_end: list[Callable[[bool], None]] = []

    def __repr__(self) -> str:
        return f"AmqpTransaction({self.name!r}, {self._transaction!r})"

    @property
    def is_late(self) -> bool:
        """Its time was over before its discharge came: it is rolled back."""
        return self._lateness is not None

    def fail(self, error: Rejected) -> None:
        """An operation could not even be tried: its commit is refused."""
        self._failure = self._failure or error

    def at_end(self, act: Callable[[bool], None]) -> None:
        """Calls `act` with whether it committed."""
        self._at_end.append(act)

    def before_commit(self, check: Callable[[], None]) -> None:
        """Calls `check` when it is to be committed; it raises `Rejected` if something of it cannot happen any more."""
        self._checks.append(check)

    def wait_for(self, posted: asyncio.Event) -> None:
        """What comes behind, its end too, waits until this operation was handed in, or cannot be."""

        async def step() -> None:
            await posted.wait()

        self._then(step)

    def publish(
        self,
        target: Target,
        messages: Sequence[OutgoingMessage],
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Publishes if it commits; `done` hears whether the operation was taken."""

        def hand_in() -> Awaitable[Confirmation]:
            return self._transaction.publish(target.routing_key, messages, exchange=target.exchange)

        self._then(lambda: self._operate(hand_in, done))

    def accept(
        self,
        place: Place,
        queue: str,
        epoch: Epoch,
        positions: Sequence[QueuePosition],
        check: Callable[[], None],
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Takes messages from their queue if it commits; `done` hears whether they were taken, else they are held as before.

        `check` raises `Rejected` if they may not be asked for any more. It is called when their turn comes, and again right
        before they are asked for: the transaction may have to begin in their set first.
        """

        def hand_in() -> Awaitable[Confirmation]:
            check()
            return self._transaction.accept_deliveries(place, queue, epoch, positions, check)

        self._then(lambda: self._operate(hand_in, done))

    async def commit(self) -> None:
        """Returns when it is committed. Raises `Rejected` (rolled back) or `InDoubt` (nobody could tell)."""
        self._stop_clock()
        await self._finish_steps()
        self._check_all()
        is_committed = False
        try:
            if self._failure is not None:
                await self._roll_back()
                raise _rolled_back(self._failure) from self._failure
            try:
                await self._transaction.commit()
            except Rejected as rejected:
                if rejected.code is ErrorCode.UNKNOWN_SESSION:
                    raise _rolled_back(rejected) from rejected
                raise
            is_committed = True
        finally:
            await in_steps(self._tell_end(is_committed))

    async def rollback(self) -> None:
        """Ends it without effect."""
        self._stop_clock()
        await self._finish_steps()
        try:
            await self._roll_back()
        finally:
            await in_steps(self._tell_end(False))

    # Inside

    async def _operate(
        self, hand_in: Callable[[], Awaitable[Confirmation]], done: Callable[[BaseException | None], None]
    ) -> None:
        """One operation, until it is on its way; `done` hears what becomes of it in any case."""
        try:
            self._check_time()
            confirmation = await hand_in()
        except LockstepError as error:
            self._note(error)
            done(error)
        except BaseException as error:
            done(self._broken(error))
            raise
        else:
            self._watch(confirmation, done)

    def _check_all(self) -> None:
        try:
            for check in self._checks:
                check()
        except Rejected as rejected:
            self.fail(rejected)

    async def _roll_back(self) -> None:
        """Without its commit it does not happen, whoever ends it: an error says nothing more."""
        if self._transaction.state is TransactionState.OPEN:
            with contextlib.suppress(LockstepError):
                await self._transaction.rollback()

    def _watch(self, confirmation: Confirmation, done: Callable[[BaseException | None], None]) -> None:
        def heard(confirmed: Confirmation) -> None:
            error = confirmed.exception()
            if isinstance(error, LockstepError):
                self._note(error)
            done(error)

        confirmation.add_done_callback(heard)

    def _note(self, error: LockstepError) -> None:
        if isinstance(error, Rejected):
            self.fail(error)
        else:
            self.fail(Rejected(error.code, error.message))

    def _then(self, step: Callable[[], Awaitable[None]]) -> None:
        self._steps.append(step)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while self._steps:
            step = self._steps.popleft()
            try:
                await step()
            except BaseException as error:
                self._broken(error)
                if isinstance(error, AssertionError) or not isinstance(error, Exception):
                    raise
                _failures.seldom("step_failed", f"transaction={self.name.hex()}", error=error)

    def _broken(self, error: BaseException) -> Rejected:
        """A step raised what does not say how much of it was done: it can only be rolled back. Answers why."""
        rejected = Rejected(ErrorCode.ROLLED_BACK, f"a step of it failed: {type(error).__name__}")
        self.fail(rejected)
        return rejected

    async def _finish_steps(self) -> None:
        """Without a turn of the event loop where nothing is left to do: the commit goes with what was just handed in."""
        while self._runner is not None and (self._steps or not self._runner.done()):
            if self._runner.done():
                # It ended by what a step raised; whoever waits for the others has to hear of them.
                self._runner = asyncio.ensure_future(self._run())
            await asyncio.wait([self._runner])

    def _time_out(self) -> None:
        self._lateness = Rejected(ErrorCode.ROLLED_BACK, "its time-out is over")
        self.fail(self._lateness)
        self._then(self._roll_back)

    def _check_time(self) -> None:
        """Raises `Rejected`."""
        if self._lateness is not None:
            raise self._lateness

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tell_end(self, is_committed: bool) -> Iterator[None]:
        at_end, self._at_end = self._at_end, []
        for act in at_end:
            try:
                act(is_committed)
            except Exception as error:  # Of one delivery; the others are to hear of the end, too.
                _failures.seldom("end_not_told", f"transaction={self.name.hex()}", error=error)
            yield


def _rolled_back(why: Rejected) -> Rejected:
    return Rejected(ErrorCode.ROLLED_BACK, f"the transaction was rolled back: {why.message}")
