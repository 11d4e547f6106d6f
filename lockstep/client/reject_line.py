"""Where rejects wait whose callers do not know of each other: they share a session, and a primary may need long for one.

Law: one command of a queue is under way, and takes no more than a part of what it names if that is much (`may_be_partial`):
whatever else the callers say goes on between two parts, but for the end of a consumer, or of the session: that waits until they
are `over`, for a queue that ends with its last consumer would take the rest along. Rejects of one queue are done in their order.
Of queues that turned out to take long one has its turn at a time. What waits is in the session's hands, and cannot be settled any
more when that is lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from lockstep.client.session_events import CommandAnswer, Done
from lockstep.client.set_session import SetSession
from lockstep.core.commands import Disposition, SettleCommand
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import Epoch, QueuePosition

_Line = tuple[str, Epoch]
"""A queue, and the epoch of deliveries of it."""


@dataclass(slots=True, eq=False)
class _Reject:
    """What one caller rejects, until all of it is done, or something of it refused."""

    line: _Line
    positions: Sequence[QueuePosition]
    confirmation: "asyncio.Future[int]"
    """May be cancelled before that."""
    lost_sessions: int
    """How many were lost before the one that holds it."""
    done: int = 0
    """So many of the first positions are."""
    is_alone: bool = False
    """It was refused together with others: so were those in front of it, if there are any."""
    behind: list[Callable[[], None]] = field(default_factory=list)
    """What is done when it is over."""


class RejectLine:
    """Lives as long as the session in its set; used from one event loop."""

    def __init__(self, session: SetSession, positions_max: int, shared_refusals: set[ErrorCode]) -> None:
        """`positions_max`: of several callers in one command; `shared_refusals`: those that may be due to one of them only."""
        self._session = session
        self._positions_max = positions_max
        self._shared_refusals = shared_refusals
        self.waiting: dict[_Line, deque[_Reject]] = {}
        """By queue; none is empty. Only this changes it; others look whether there are any."""
        self._last: dict[str, dict[Epoch, _Reject]] = {}
        """By queue and epoch, what was added last, until it is over: so is then all that was added before it."""
        self._under_way: set[_Line] = set()
        self._slow: set[_Line] = set()
        """Those of which a part was done, and which have had something waiting, or under way, since."""
        self._slow_under_way: _Line | None = None
        """Whose turn it is of these."""
        self._ready: dict[_Line, None] = {}
        """Those that have something waiting, and nothing under way: in the order of their turns."""
        self._ready_slow: dict[_Line, None] = {}

    def add(self, queue: str, epoch: Epoch, positions: Sequence[QueuePosition]) -> "asyncio.Future[int]":
        """Rejects them behind others of the queue; done when all are dead letters, with their number."""
        session, line = self._session, (queue, epoch)
        reject = _Reject(line, positions, session.loop.create_future(), session.losses_told)
        self._last.setdefault(queue, {})[epoch] = reject
        waiting = self.waiting.get(line)
        if waiting is None:
            waiting = self.waiting[line] = deque()
            self._be_ready(line)
        waiting.append(reject)
        session.write_soon()
        return reject.confirmation

    def over(self, queue: str | None) -> "asyncio.Future[None] | None":
        """Done when all is over that was rejected of that queue, or of any (None), until now; None: nothing of it is left."""
        queues: Iterable[dict[Epoch, _Reject]] = self._last.values()
        if queue is not None:
            queues = [self._last.get(queue, {})]
        last = [reject for by_epoch in queues for reject in by_epoch.values()]
        if not last:
            return None
        over: asyncio.Future[None] = self._session.loop.create_future()
        left = len(last)

        def one_is_over() -> None:
            nonlocal left
            left -= 1
            if not left and not over.done():
                over.set_result(None)

        for reject in last:
            reject.behind.append(one_is_over)
        return over

    def _end(self, reject: _Reject) -> None:
        """All of it is done, or something of it refused."""
        queue, epoch = reject.line
        last = self._last[queue]
        if last[epoch] is reject:
            del last[epoch]
            if not last:
                del self._last[queue]
        for do in reject.behind:
            do()

    def _be_ready(self, line: _Line) -> None:
        if line not in self._under_way:
            ready = self._ready_slow if line in self._slow else self._ready
            ready[line] = None

    def flush(self) -> None:
        """Submits what is next of each queue, but of one alone of those that take long."""
        while self._ready:
            line = next(iter(self._ready))
            del self._ready[line]
            self._submit(line)
        while self._ready_slow and self._slow_under_way is None:
            line = next(iter(self._ready_slow))
            del self._ready_slow[line]
            self._slow_under_way = line
            if not self._submit(line):
                self._slow_under_way = None

    def _take(self, line: _Line) -> list[_Reject]:
        """The first of one queue, as many as go together; those whose session is lost are refused."""
        waiting, taken, count = self.waiting[line], list[_Reject](), 0
        while waiting:
            reject = waiting[0]
            if reject.lost_sessions != self._session.lost_sessions:
                text = f"deliveries of queue {line[0]!r} from epoch {line[1]} are void: their session is lost"
                waiting.popleft()
                self._refuse(reject, Rejected(ErrorCode.STALE_DELIVERY, text, queue=line[0]))
                continue
            count += len(reject.positions) - reject.done
            if taken and (count > self._positions_max or taken[0].is_alone):
                break
            taken.append(waiting.popleft())
        if not waiting:
            del self.waiting[line]
        return taken

    def _submit(self, line: _Line) -> bool:
        """The next command of a queue; False: there was none."""
        taken = self._take(line)
        if not taken:
            self._slow.discard(line)
            return False
        self._under_way.add(line)
        positions = tuple([each for reject in taken for each in reject.positions[reject.done :]])
        command = SettleCommand(0, *line, positions, Disposition.REJECT, may_be_partial=True)
        self._session.submit_for(command, lambda answer: self._answered(line, taken, answer))
        return True

    def _answered(self, line: _Line, taken: Sequence[_Reject], answer: CommandAnswer) -> None:
        self._under_way.remove(line)
        if self._slow_under_way == line:
            self._slow_under_way = None
        left: list[_Reject] = []
        if isinstance(answer, Done):
            count = answer.value
            for reject in taken:
                some = min(count, len(reject.positions) - reject.done)
                count -= some
                reject.done += some
                if reject.done < len(reject.positions):
                    left.append(reject)
                    continue
                if not reject.confirmation.done():
                    reject.confirmation.set_result(reject.done)
                self._end(reject)
            if left:
                self._slow.add(line)
        elif isinstance(answer, Rejected) and answer.code in self._shared_refusals and len(taken) > 1:
            for reject in taken:
                reject.is_alone = True
            left += taken
        else:
            for reject in taken:
                self._refuse(reject, answer)
        if left:
            self.waiting.setdefault(line, deque()).extendleft(reversed(left))
        if line in self.waiting:
            self._be_ready(line)
        else:
            self._slow.discard(line)
        if self.waiting:
            self._session.write_soon()

    def _refuse(self, reject: _Reject, error: Rejected | InDoubt) -> None:
        """A part of it may be done; the rest is not."""
        confirmation = reject.confirmation
        if not confirmation.done():
            if reject.done and isinstance(error, Rejected):
                error = InDoubt(error.code, f"a part of it was refused: {error.message}", **error.details)
            confirmation.set_exception(type(error)(error.code, error.message, **error.details))
            confirmation.exception()  # Marked as seen: a confirmation need not be awaited.
        self._end(reject)
