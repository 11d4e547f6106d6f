"""What the primary does by itself as time passes: expiry, time-outs, forgetting outcomes, looking at prepared branches.

Law: time acts by records only, so the log decides every race with it (DESIGN 3).
"""

from collections.abc import Iterator

from lockstep.core.clock import Now
from lockstep.core.effects import Note
from lockstep.core.records import DequeueReason
from services.primary.core import decisions, doubts
from services.primary.core.context import Context, shown
from services.primary.core.dead_letters import dead_letter
from services.primary.core.forgetting import Forgetting
from services.primary.core.subscribing import LeftBehind
from services.primary.core.transacting import roll_back_timed_out

COSTLY_TOLD_MS = 60_000
"""How often it is told at most that selectors cost too much."""
COSTLY_QUEUES_MAX = 5
"""Queues that are named then."""
_WATCH_COST = 3
PREPARED_LOOK_MS = 500
"""How often prepared branches are looked after: those that are due, however many there are."""


class Housekeeping:
    """Lives as long as the epoch; driven by the primary core's ticks."""

    def __init__(self, context: Context, now: Now) -> None:
        self._context = context
        self.forgetting = Forgetting(context, now)
        self._look_ms = 0
        self._costly_told_ms = now.boottime_ms - COSTLY_TOLD_MS
        self._left_behind = LeftBehind(context)
        self.are_late = False
        """Whether transactions are left whose time is over."""

    def look_after_prepared(self) -> Iterator[int]:
        """What this epoch found prepared is looked after from now on; in steps that say what they cost, for it may be much."""
        context = self._context
        for branch in context.state.transactions.prepared():
            if context.state.transactions.get(branch.key) is branch:
                decisions.watch(context, branch)
                doubts.watch(context, branch)
            yield _WATCH_COST

    def tick(self, now: Now) -> None:
        self.are_late = roll_back_timed_out(self._context)
        if self._context.alone.works:
            return
        self.expire(now)
        self.forgetting.tick(now)
        self._look_at_prepared(now)
        self._left_behind.tick(now)
        self._tell_of_costly_selectors(now)

    def _tell_of_costly_selectors(self, now: Now) -> None:
        """Say, once in a while, that messages were taken for no match because asking a selector costs too much."""
        dispatch, selectors = self._context.dispatch, self._context.selectors
        if not (dispatch.too_costly or selectors.too_costly):
            return
        if now.boottime_ms - self._costly_told_ms < COSTLY_TOLD_MS:
            return
        self._costly_told_ms = now.boottime_ms
        some = sorted(dispatch.too_costly.items(), key=lambda found: (-found[1], found[0]))[
            :COSTLY_QUEUES_MAX
        ]
        where = [f"{count} times at queue {shown(name)}" for name, count in some]
        if len(dispatch.too_costly) > len(some):
            where.append(f"at {len(dispatch.too_costly) - len(some)} other queues")
        if selectors.too_costly:
            where.append(f"for {selectors.too_costly} dead letters")
        details = f"taken for no match: {', '.join(where)}"
        dispatch.too_costly, selectors.too_costly = {}, 0
        self._context.effects.append(
            Note(self._context.state.set_name, "selector too costly", details, is_warning=True)
        )

    def go_on(self, now: Now) -> None:
        """More of what was too much for one go."""
        if self.are_late:
            self.are_late = roll_back_timed_out(self._context)
        if not self._context.alone.works:
            self.expire(now)

    def _look_at_prepared(self, now: Now) -> None:
        if now.boottime_ms >= self._look_ms:
            self._context.askers.answer_late(now.boottime_ms)
            self._look_ms = now.boottime_ms + PREPARED_LOOK_MS
            decisions.ask(self._context, now)
            doubts.look(self._context, now)

    def expire(self, now: Now) -> None:
        """Say of some messages whose time is up that it is.

        Those that somebody has are not looked at again and again: whoever lets go of one has it watched.
        """
        context = self._context
        due = context.expiry.take_due(now.wall_ms, context.settings.expiry_batch_max)
        for queue_id, positions in due.items():
            queue = context.state.queues.by_id.get(queue_id)
            if queue is None:
                continue
            free = [
                position
                for position in positions
                if position in queue
                and position not in queue.locks
                and not context.dispatch.is_held(queue_id, position)
            ]
            dead_letter(context, queue, free, DequeueReason.EXPIRED)
