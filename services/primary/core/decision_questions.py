"""Which prepared branches have asked for their decision, and which of the answers may still be believed (DESIGN T3, T4).

Law: a vote given while a question is under way voids its answer. The log was read before that vote perhaps: a coordinator that
begins in between is told "prepared" of a branch that must then not go by what the log lacked.
"""

from dataclasses import dataclass
from typing import NamedTuple

from lockstep.core.branch_names import GlobalId
from lockstep.core.due_times import DueTimes
from lockstep.core.ids import Epoch, TransactionKey
from lockstep.core.transactions import Transactions

_GIVEN_UP_TIMES = 12
"""As long as others those wait between questions that only an operator can end: others have their turn meanwhile."""


class Question(NamedTuple):
    """What became of a prepared branch?"""

    request: int
    key: TransactionKey
    global_id: GlobalId


@dataclass(slots=True)
class Waiting:
    """One prepared branch of our coordinator."""

    global_id: GlobalId
    request: int = 0
    """Number of the question under way; 0: there is none, or it is void."""
    is_given_up: bool = False
    """Nothing may be presumed of it: an operator was told."""


class DecisionQuestions:
    """Lives as long as the epoch; has all prepared branches of our coordinator."""

    def __init__(self, epoch: Epoch, every_ms: int, asked_max: int) -> None:
        """Each branch waits `every_ms` from its prepare, and between questions; `asked_max` ask at once."""
        self._every_ms = every_ms
        self._asked_max = asked_max
        self._waiting: dict[TransactionKey, Waiting] = {}
        self._due: DueTimes[TransactionKey] = DueTimes()
        """On CLOCK_BOOTTIME."""
        self._last_request = epoch << 32
        """What was asked in an earlier reign of this process may still be answered: votes of this one do not void that."""

    def __contains__(self, key: TransactionKey) -> bool:
        return key in self._waiting

    def xids(self, transactions: Transactions) -> tuple[bytes, ...]:
        """Of all of these branches."""
        live = transactions.live
        return tuple([live[key].xid for key in self._waiting])

    def prepared(self, key: TransactionKey, global_id: GlobalId, now_ms: int) -> None:
        """A branch was prepared, or this epoch found it so."""
        self._waiting[key] = Waiting(global_id)
        self._due.set(key, now_ms + self._every_ms)

    def ended(self, key: TransactionKey) -> None:
        """A transaction has ended; nothing if it was not one of these."""
        if self._waiting.pop(key, None) is not None:
            self._due.drop(key)

    def ask_due(self, now_ms: int) -> list[Question]:
        """Of those whose turn it is. Looks at no others."""
        return [self.ask_now(key, now_ms) for key in self._due.take(now_ms, self._asked_max)]

    def ask_now(self, key: TransactionKey, now_ms: int) -> Question:
        """About this branch at once; the answer to an earlier question does not count any more."""
        self._last_request += 1
        waiting = self._waiting[key]
        waiting.request = self._last_request
        self._due.set(key, now_ms + self._every_ms * (_GIVEN_UP_TIMES if waiting.is_given_up else 1))
        return Question(waiting.request, key, waiting.global_id)

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

    def give_up(self, key: TransactionKey) -> bool:
        """Nothing may be presumed of it; answers whether that is new."""
        waiting = self._waiting[key]
        is_new, waiting.is_given_up = not waiting.is_given_up, True
        return is_new
