"""The open transactions of one resource set, and what the primary knows of them beyond the log."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep.core.ids import SessionKey, TransactionKey


@dataclass(slots=True)
class TransactionProgress:
    """What the primary knows of an open transaction beyond the log: how its clients number the operations (T1)."""

    session: SessionKey
    """Whose share of open transactions it counts in: the one that began it."""
    ends_ms: int = 0
    """When its time-out ends, on CLOCK_BOOTTIME; 0: never."""
    sequences: dict[SessionKey, int] = field(default_factory=dict)
    """Operations taken so far from each session that works in it (one, but for a branch); the next has this number + 1."""
    ordinal: int = 0
    """Next ordinal."""
    bytes: int = 0
    """Content that its operations carry."""
    places: int = 0
    """That its messages get in queues."""
    is_name: bool = False
    """A TX of which the log has no record yet: all that is of it is its name, which its session was told."""


class OpenTransactions:
    """The open transactions of one resource set, and how many of them each session has. Lives as long as the epoch."""

    def __init__(self) -> None:
        self._by_key: dict[TransactionKey, TransactionProgress] = {}
        self._of_session: dict[SessionKey, dict[TransactionKey, None]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: TransactionKey) -> bool:
        return key in self._by_key

    def __getitem__(self, key: TransactionKey) -> TransactionProgress:
        return self._by_key[key]

    def items(self) -> Iterable[tuple[TransactionKey, TransactionProgress]]:
        return self._by_key.items()

    def is_name(self, key: TransactionKey) -> bool:
        """Whether the log has nothing of this one yet."""
        progress = self._by_key.get(key)
        return progress is not None and progress.is_name

    def names(self) -> list[TransactionKey]:
        """All of which the log has nothing yet, by key."""
        return sorted(key for key, progress in self._by_key.items() if progress.is_name)

    def of(self, session: SessionKey) -> list[TransactionKey]:
        """Those that count for one session."""
        return list(self._of_session.get(session, ()))

    def count(self, session: SessionKey) -> int:
        """How many a session has."""
        return len(self._of_session.get(session, ()))

    def begin(self, key: TransactionKey, progress: TransactionProgress) -> None:
        self._by_key[key] = progress
        self._of_session.setdefault(progress.session, {})[key] = None

    def end(self, key: TransactionKey) -> None:
        """It is not open any more; nothing if it was not."""
        progress = self._by_key.pop(key, None)
        if progress is None:
            return
        keys = self._of_session[progress.session]
        del keys[key]
        if not keys:
            del self._of_session[progress.session]
