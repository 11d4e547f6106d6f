"""Sessions: the replicated table by which a retry after failover takes effect exactly once (DESIGN 6).

Law: an answer is derived from the log by the state machine, whoever appended the record, and is kept for the last
`ANSWERS_KEPT` commands. The table is transient: after a restart no session is known, and a retry is in doubt, never executed.
"""

import hashlib
from collections.abc import Iterator
from enum import IntFlag

import msgspec

from lockstep.core.commands import ANSWERS_KEPT
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, QueueId, SessionId, SessionKey
from lockstep.core.taking_apart import emptied

TAG_CHARACTERS = 8


def session_tag(session: SessionId) -> str:
    """By what people tell sessions apart. An id itself is a secret: whoever has it takes the session over (DESIGN 6)."""
    return hashlib.sha256(session.encode()).hexdigest()[:TAG_CHARACTERS]


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a command's client is told."""

    index: LogIndex
    """Of the record that answers; the answer may be given when the commit index covers it."""
    code: int = ErrorCode.NONE
    message: str = ""
    value: int = 0
    """Declare: the id. Begin, and opening a session: the index. Publish: enqueues. Dequeue and deleting a queue: messages.
    End of a TX: a `TransactionState`. A verb of a branch: an `XaStatus`, and rejected a `BranchState`. `AcceptCommand`: what it
    says. All of the command's last record alone."""


class DtxUse(IntFlag):
    """Whether a session works with branches of distributed transactions, and what it understands. In snapshots."""

    NONE = 0
    SELECTED = 1
    HEARS_READ_ONLY = 2
    """Preparing a branch that changed nothing answers `rdonly`."""
    MANY_BRANCHES = 4
    """It works in any number of branches at once: its operations name theirs."""


class Session:
    """One client's session in one resource set, from its opening to its closing record."""

    __slots__ = ("answers", "consumed", "dtx", "epoch", "id", "key", "next_number", "timeout_ms")

    def __init__(self, key: SessionKey, epoch: Epoch, session_id: SessionId, timeout_ms: int) -> None:
        self.key = key
        self.epoch = epoch
        """Of the record that opened it; with the key, what every command of the session names."""
        self.id = session_id
        self.timeout_ms = timeout_ms
        self.dtx = DtxUse.NONE
        self.next_number = 1
        """Of the next command."""
        self.answers: dict[int, Answer] = {}
        """By command number, ascending."""
        self.consumed: dict[QueueId, None] = {}
        """Auto-delete queues of which it has, or had, a consumer. Those that are gone leave when another comes."""

    def answer(self, number: int, answer: Answer) -> None:
        """Keep the answer of a command; the oldest makes room. Numbers have no gaps: the primary sees to that."""
        self.answers[number] = answer
        self.answers.pop(number - ANSWERS_KEPT, None)
        if self.next_number <= number:
            self.next_number = number + 1

    def __repr__(self) -> str:
        return f"Session({self.key}, epoch={self.epoch}, {self.id!r}, next_number={self.next_number})"


class Sessions:
    """All sessions of one resource set's state, which alone changes them."""

    __slots__ = ("by_id", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[SessionKey, Session] = {}
        self.by_id: dict[SessionId, Session] = {}
        """The latest session that a client opened under an id."""

    def get(self, key: SessionKey) -> Session | None:
        return self.by_key.get(key)

    def find(self, session_id: SessionId) -> Session | None:
        return self.by_id.get(session_id)

    def add(self, session: Session) -> None:
        self.by_key[session.key] = session
        self.by_id[session.id] = session

    def take_apart(self) -> Iterator[int]:
        """Nobody has this state any more: leave none, in steps that say what they cost (`taking_apart`)."""
        yield from emptied(self.by_id)
        yield from emptied(self.by_key, lambda pair: len(pair[1].answers) + len(pair[1].consumed) + 1)

    def remove(self, session: Session) -> None:
        del self.by_key[session.key]
        if self.by_id.get(session.id) is session:
            del self.by_id[session.id]
