"""Which prepared branches have asked for their decision, and which of the answers may still be believed (DESIGN T3, T4).

Law: a vote given while a question is under way voids its answer. The log was read before that vote perhaps: a coordinator that
begins in between is told "prepared" of a branch that must then not go by what the log lacked.
"""

from dataclasses import dataclass

from lockstep.core.ids import Epoch, TransactionKey


@dataclass(slots=True)
class Waiting:
    """One prepared branch of our coordinator, as long as this epoch knows it."""

    ask_at_ms: int
    """When it asks next, on CLOCK_BOOTTIME."""
    request: int = 0
    """Number of the question under way; 0: there is none, or it is void."""
    is_given_up: bool = False
    """Nothing may be presumed of it: an operator was told."""


class DecisionQuestions:
    """Lives as long as the epoch."""

    def __init__(self, epoch: Epoch) -> None:
        self._waiting: dict[TransactionKey, Waiting] = {}
        self._last_request = epoch << 32
        """What was asked in an earlier reign of this process may still be answered: votes of this one do not void that."""

    def due(
        self, prepared: list[TransactionKey], now_ms: int, every_ms: int, limit: int
    ) -> list[tuple[int, TransactionKey]]:
        """(request, branch) of those that ask now: each waits `every_ms` from when it is first seen, and between questions."""
        self._waiting = {key: self._waiting.get(key) or Waiting(now_ms + every_ms) for key in prepared}
        asking = [key for key, waiting in self._waiting.items() if now_ms >= waiting.ask_at_ms][:limit]
        for key in asking:
            self._last_request += 1
            self._waiting[key].request, self._waiting[key].ask_at_ms = self._last_request, now_ms + every_ms
        return [(self._waiting[key].request, key) for key in asking]

    def ask_now(self, key: TransactionKey, now_ms: int, every_ms: int) -> int:
        """Number of a question about this prepared branch at once, beside those that come by themselves: a client wants to know.
        The answer to an earlier one does not count any more.
        """
        self._last_request += 1
        self._waiting[key] = Waiting(now_ms + every_ms, self._last_request, self._is_given_up(key))
        return self._last_request

    def voted(self, key: TransactionKey) -> None:
        """The branch has told a coordinator that it is prepared."""
        if (waiting := self._waiting.get(key)) is not None:
            waiting.request = 0

    def answered(self, key: TransactionKey, request: int) -> bool:
        """Whether the answer to this question counts; it does so once."""
        waiting = self._waiting.get(key)
        if waiting is None or waiting.request != request:
            return False
        waiting.request = 0
        return True

    def is_outdated(self, key: TransactionKey, request: int) -> bool:
        """Whether a later question about this branch is under way."""
        waiting = self._waiting.get(key)
        return waiting is not None and waiting.request > request

    def _is_given_up(self, key: TransactionKey) -> bool:
        waiting = self._waiting.get(key)
        return waiting is not None and waiting.is_given_up

    def give_up(self, key: TransactionKey) -> bool:
        """Nothing may be presumed of it; answers whether that is new."""
        waiting = self._waiting[key]
        is_new, waiting.is_given_up = not waiting.is_given_up, True
        return is_new
