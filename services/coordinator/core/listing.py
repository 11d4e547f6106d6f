"""One listing of the log at a time, and the clients that wait for what comes of it.

Law: a listing that failed has taken nothing up, and says so to whoever asked for it.
"""

from lockstep.core.branch_names import GlobalId
from lockstep.core.clock import Now
from services.coordinator.core.context import Context
from services.coordinator.core.messages import ListLog, RecoverAnswer, RequestId, Ticket


class Listing:
    """Lives as long as the core, which drives it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ticket: Ticket | None = None
        self._requests: list[RequestId] = []
        self.asked_ms = 0
        """CLOCK_BOOTTIME, of the last."""

    def ask(self, now: Now, request: RequestId | None = None) -> None:
        """Lists the log, unless that is under way; `request`: somebody waits for it."""
        if request is not None:
            self._requests.append(request)
        if self._ticket is None:
            self._ticket = self._context.bare_ticket()
            self.asked_ms = now.boottime_ms
            self._context.say(ListLog(self._ticket))

    def take(self, ticket: Ticket) -> bool:
        """Whether this is the answer to the listing that is under way."""
        if ticket != self._ticket:
            return False
        self._ticket = None
        return True

    def answer(self, taken_up: tuple[GlobalId, ...]) -> None:
        """To everybody who waits."""
        for request in self._requests:
            self._context.say(RecoverAnswer(request, taken_up))
        self._requests.clear()
