"""Identifiers: the names that records, messages and errors use. They never mix.

Law: an identifier names one thing for ever. A queue is named by the log index of its declaration, a transaction by the
(index, epoch) of its `begin`, a message by the (index, ordinal) of the record that carried its content: none of these can be
given out twice, whatever is deleted and declared again, and whoever is primary (DESIGN 3, 4).
"""

from collections.abc import Iterable, Sequence
from typing import NewType, TypeVar

SetName = NewType("SetName", str)
"""Name of a resource set."""
BrokerId = NewType("BrokerId", str)
"""Configured name of a broker; survives restarts."""
DiskId = NewType("DiskId", str)
"""UUID written when a data directory is formatted (DESIGN R1)."""
Incarnation = NewType("Incarnation", str)
"""UUID made when a process starts (DESIGN R1)."""
SessionId = NewType("SessionId", str)
"""UUID that the client made for a session."""

Epoch = NewType("Epoch", int)
"""Reign of one primary process over one resource set; 0 is before the first."""
EPOCH_MAX = Epoch((1 << 63) - 1)
"""Nobody is believed who speaks of a higher one: so every epoch that is believed has one above it."""
LogIndex = NewType("LogIndex", int)
"""Place of a record in the replication log; the first record has 1, 0 is before it."""
QueueId = NewType("QueueId", int)
"""Log index of the queue's declaration."""
ExchangeId = NewType("ExchangeId", int)
"""Log index of the exchange's declaration."""
SessionKey = NewType("SessionKey", int)
"""Log index of the session's opening."""
QueuePosition = NewType("QueuePosition", int)
"""Place of a message in a queue: `place(index, ordinal)` of the record that made it visible."""
MessageId = NewType("MessageId", int)
"""Name of a message's content: `place(index, ordinal)` of the record that carried it."""
TimeMs = NewType("TimeMs", int)
"""Milliseconds since the Unix epoch, as the primary wrote them into a frame."""

TransactionKey = tuple[LogIndex, Epoch]
"""(index, epoch) of a transaction's `begin`: its name inside its resource set."""

ORDINAL_BITS = 24
ORDINAL_MAX = (1 << ORDINAL_BITS) - 1
INDEX_MAX = LogIndex((1 << 64 - ORDINAL_BITS) - 1)
"""Of what stands behind it no place could be said in 64 bits, as everybody keeps them."""

Packed = TypeVar("Packed", int, QueuePosition, MessageId)
"""An index and an ordinal in one number (`place`)."""


def place(index: LogIndex | int, ordinal: int) -> int:
    """The packed (index, ordinal) used as queue position and as message id; packed values sort as the pairs do.

    `ordinal` is the place inside its record or transaction, at most `ORDINAL_MAX`; raises `ValueError` beyond it.
    """
    if not 0 <= ordinal <= ORDINAL_MAX:
        raise ValueError(f"ordinal {ordinal} outside 0..{ORDINAL_MAX}")
    return (index << ORDINAL_BITS) | ordinal


def message_ids_from(index: LogIndex, ordinal: int, count: int) -> Sequence[MessageId]:
    """The ids of `count` messages that the record at `index` carried, from `ordinal` on."""
    first = place(index, ordinal)
    return range(first, first + count)  # type: ignore[return-value]


def positions_from(index: LogIndex, ordinal: int, count: int) -> Sequence[QueuePosition]:
    """Where they stand if the record at `index` makes them visible."""
    first = place(index, ordinal)
    return range(first, first + count)  # type: ignore[return-value]


def neighbours(numbers: Iterable[Packed]) -> list[Sequence[Packed]]:
    """Ascending packed places as ranges of neighbours."""
    runs: list[range] = []
    for number in numbers:
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs  # type: ignore[return-value]


def index_of(packed: int) -> LogIndex:
    """The log index inside a packed place."""
    # As it is: to name its type here would be a call more, for every batch of messages.
    return packed >> ORDINAL_BITS  # type: ignore[return-value]


def transaction_id(set_name: SetName, key: TransactionKey) -> str:
    """The client's name of a transaction: set, index and epoch (DESIGN T1), as `set/index.epoch`."""
    return f"{set_name}/{key[0]}.{key[1]}"


def parse_transaction_id(text: str) -> tuple[SetName, TransactionKey]:
    """Inverse of `transaction_id`; raises `ValueError` for anything else."""
    set_name, separator, rest = text.rpartition("/")
    index, dot, epoch = rest.partition(".")
    if not separator or not dot or not set_name or not _is_number(index) or not _is_number(epoch):
        raise ValueError(f"not a transaction id: {text[:80]!r}")
    return SetName(set_name), (LogIndex(int(index)), Epoch(int(epoch)))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19 and (text == "0" or text[0] != "0")
