"""What the conversations of one coordinator share: its name and limits, tickets, alarms, and the effects of this input.

Law: a ticket is answered once. What nobody waits for any more is forgotten, and an alarm that comes too early does no harm.
"""

import heapq
from typing import Protocol

from lockstep.core.clock import Now
from lockstep.core.decision_log import LogView
from lockstep.core.ids import Incarnation
from services.coordinator.core.commit_hold import CommitHold
from services.coordinator.core.messages import Effect, RequestId, Ticket
from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.core.votes import Completion, Vote


class Conversation(Protocol):
    """Something that waits for participants, for the log or for time."""

    @property
    def is_ended(self) -> bool: ...
    def written(self, revision: int, now: Now) -> None: ...
    def read(self, view: LogView, now: Now) -> None: ...
    def doubted(self, now: Now) -> None: ...
    def voted(self, number: int, vote: Vote, now: Now) -> None: ...
    def completed(self, number: int, completion: Completion, now: Now) -> None: ...
    def wake(self, now: Now) -> None: ...


class Waiting(Protocol):
    """Those that wait for the end of one transaction."""

    def drop(self, request: RequestId) -> None: ...


class Context:
    """Lives as long as the core."""

    def __init__(self, process: Incarnation, limits: CoordinatorLimits) -> None:
        self.process = process
        self.limits = limits
        self.effects: list[Effect] = []
        self.hold = CommitHold(limits, self.say)
        self.waiters: dict[RequestId, Waiting] = {}
        """With whom each request waits, kept by them: one that is dropped is found without a look at all transactions."""
        self._last_ticket = 0
        self._waiting: dict[Ticket, tuple[Conversation, int]] = {}
        self._alarms: list[tuple[int, int, Conversation]] = []
        self._last_alarm = 0

    def say(self, effect: Effect) -> None:
        self.effects.append(effect)

    def ticket(self, conversation: Conversation, number: int = 0) -> Ticket:
        """For one call; `number` comes back with the answer."""
        ticket = self.bare_ticket()
        self._waiting[ticket] = (conversation, number)
        return ticket

    def bare_ticket(self) -> Ticket:
        """For a call whose answer does not go to a conversation."""
        self._last_ticket += 1
        return Ticket(self._last_ticket)

    def take(self, ticket: Ticket) -> tuple[Conversation, int] | None:
        """Who waits for this answer; None: nobody does."""
        return self._waiting.pop(ticket, None)

    def forget(self, ticket: Ticket | None) -> None:
        """Its answer is not wanted any more."""
        if ticket is not None:
            self._waiting.pop(ticket, None)

    def wake_at(self, due_ms: int, conversation: Conversation) -> None:
        """CLOCK_BOOTTIME."""
        self._last_alarm += 1
        heapq.heappush(self._alarms, (due_ms, self._last_alarm, conversation))

    def ring(self, now: Now) -> list[Conversation]:
        """Wakes everybody whose time has come, and returns them."""
        woken: list[Conversation] = []
        while self._alarms and self._alarms[0][0] <= now.boottime_ms:
            _, _, conversation = heapq.heappop(self._alarms)
            conversation.wake(now)
            woken.append(conversation)
        return woken

    def pause_ms(self, tries: int) -> int:
        """Before the next try, when so many (at least 1) have failed."""
        limits = self.limits
        doubled: int = limits.retry_first_ms * 2 ** min(tries - 1, 16)
        return min(doubled, limits.retry_ms_max)
