"""Clients that wait for the end of one transaction.

Law: each is answered once: with an outcome that is recorded, or, when its patience is over, that it is in doubt.
"""

from lockstep.core.branch_names import ParticipantName
from lockstep.core.clock import Now
from lockstep.core.errors import ErrorCode
from lockstep.core.xa import XaStatus
from services.coordinator.core.context import Context, Conversation
from services.coordinator.core.messages import OutcomeAnswer, Refusal, RequestId, State


class Waiters:
    """As long as its transaction, which is its driver."""

    def __init__(self, context: Context, owner: Conversation) -> None:
        self._context = context
        self._owner = owner
        self._due_ms: dict[RequestId, int] = {}

    def __len__(self) -> int:
        return len(self._due_ms)

    def add(self, request: RequestId, now: Now) -> None:
        due_ms = now.boottime_ms + self._context.limits.doubt_ms
        self._due_ms[request] = due_ms
        self._context.waiters[request] = self
        self._context.wake_at(due_ms, self._owner)

    def drop(self, request: RequestId) -> None:
        """It does not wait any more; it has until now."""
        del self._due_ms[request], self._context.waiters[request]

    def answer(
        self,
        state: State,
        hazards: tuple[tuple[ParticipantName, str], ...] = (),
        pending: tuple[ParticipantName, ...] = (),
        heuristic: XaStatus = XaStatus.OK,
    ) -> None:
        """Everybody."""
        for request in list(self._due_ms):
            self.drop(request)
            self._context.say(OutcomeAnswer(request, state, hazards, pending, heuristic))

    def refuse(self, code: ErrorCode, message: str) -> None:
        """Everybody."""
        for request in list(self._due_ms):
            self.drop(request)
            self._context.say(Refusal(request, code, message))

    def answer_late(self, state: State, now: Now) -> None:
        """Those who have waited long enough hear how it stands."""
        late = [request for request, due_ms in self._due_ms.items() if due_ms <= now.boottime_ms]
        for request in late:
            self.drop(request)
            self._context.say(OutcomeAnswer(request, state))
