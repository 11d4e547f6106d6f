"""The questions of a client to one resource set: said in their order, and only so many at a time as every set takes.

Law: a question is said again on each stream until it is answered. One whose caller has given up is not said any more, though it
was to be said next; where it was said, it counts until the stream ends, for the set may still keep it.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from lockstep.client.session_events import Ticket
from lockstep.core.requests import Question

QUESTIONS_SAID_MAX = 256
"""Not answered at a time, on one stream. A set that keeps too many of a stream ends that (`questions_waiting_max`)."""


@dataclass(slots=True)
class _Said:
    ticket: Ticket
    question: Question


class Questions:
    """Lives as long as its session line, which drives it."""

    def __init__(self) -> None:
        self._last = 0
        self._waiting: dict[Ticket, Question] = {}
        """To be said, in this order."""
        self._said: dict[int, _Said] = {}
        """On this stream, or to be said next, and not answered; by request number."""
        self.given_up: set[int] = set()
        """Those of them whose callers have. Only this changes it; others look whether there are any."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._said)

    def add(self, ticket: Ticket, question: Question) -> None:
        """Behind all others. `ticket` names this question only."""
        self._waiting[ticket] = question

    def take(self) -> list[Question]:
        """Those that may be said now."""
        taken: list[Question] = []
        while self._waiting and len(self._said) < QUESTIONS_SAID_MAX:
            ticket = next(iter(self._waiting))
            self._last += 1
            question = replace(self._waiting.pop(ticket), request=self._last)
            self._said[self._last] = _Said(ticket, question)
            taken.append(question)
        return taken

    def answered(self, request: int) -> Ticket | None:
        """Who asked the question that is answered, or cannot be said; None where nobody waits for it."""
        said = self._said.pop(request, None)
        is_given_up = request in self.given_up
        self.given_up.discard(request)
        return None if said is None or is_given_up else said.ticket

    def give_up(self, ticket: Ticket) -> None:
        """Nobody waits for its answer any more."""
        if self._waiting.pop(ticket, None) is None:
            self.given_up.update(request for request, said in self._said.items() if said.ticket is ticket)

    def is_unwanted(self, request: int) -> bool:
        """Whether a question that is to be said now need not be: then it makes room for another one."""
        if request not in self.given_up:
            return False
        self.given_up.remove(request)
        del self._said[request]
        return True

    def begin_stream(self) -> None:
        """Nothing is said on it yet."""
        for request in self.given_up:
            del self._said[request]
        self._waiting = {one.ticket: one.question for one in self._said.values()} | self._waiting
        self._said.clear()
        self.given_up.clear()

    def lose(self) -> list[Ticket]:
        """They are not asked any more. Returns who still waits for an answer."""
        self.begin_stream()
        tickets = list(self._waiting)
        self._waiting.clear()
        return tickets
