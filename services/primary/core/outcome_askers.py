"""Clients that ask for the outcome of a prepared branch, while it looks for its decision (DESIGN T5).

Law: each is answered once, and by what the state says then: when the decision log has answered, or when that takes too long.
"""

from collections.abc import Callable

from lockstep.core.ids import TransactionKey

Answer = Callable[[], None]
"""Says how it stands."""


class OutcomeAskers:
    """Lives as long as the epoch; driven by `decisions.py`."""

    def __init__(self, branches_max: int) -> None:
        """`branches_max`: of which somebody waits to hear."""
        self._branches_max = branches_max
        self._waiting: dict[TransactionKey, list[tuple[int, Answer]]] = {}

    def may_wait(self, key: TransactionKey) -> bool:
        return key in self._waiting or len(self._waiting) < self._branches_max

    def is_waited_for(self, key: TransactionKey) -> bool:
        """Whether somebody has asked already, so that a question is under way."""
        return key in self._waiting

    def wait(self, key: TransactionKey, answer_by_ms: int, answer: Answer) -> None:
        """`answer_by_ms` on CLOCK_BOOTTIME."""
        self._waiting.setdefault(key, []).append((answer_by_ms, answer))

    def answer(self, key: TransactionKey) -> None:
        """All that wait for this branch."""
        for _, answer in self._waiting.pop(key, ()):
            answer()

    def answer_late(self, now_ms: int) -> None:
        """Those that have waited long enough, and who asked for the same branch after them."""
        for key in [key for key, asked in self._waiting.items() if asked[0][0] <= now_ms]:
            self.answer(key)
