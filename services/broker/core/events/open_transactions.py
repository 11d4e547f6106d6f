"""What a log has shown of transactions that it has not yet shown the end of.

Law: what two know of, neither changes: who does, goes on with one of his own. So a copy costs a reference for each transaction,
whatever was done in them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lockstep.core.ids import TimeMs, TransactionKey
from lockstep.core.records import Dequeue, Publish


@dataclass(slots=True)
class OpenTransaction:
    """One of them, until its end."""

    key: TransactionKey
    started_ms: TimeMs
    xid: bytes = b""
    resource_sets: tuple[str, ...] = ()
    is_prepared: bool = False
    counted: int = -1
    """Durable records before its first `prepare` that is known here, as that says; -1: nobody said."""
    operations: list[Publish | Dequeue] = field(default_factory=list)
    is_shared: bool = False
    """Copies know of it as well: it does not change any more."""

    @property
    def durable_records(self) -> int:
        """As the record says it that ends it."""
        return len(self.operations) + self.is_prepared

    def has_all(self, durable_records: int) -> bool:
        """Whether nothing is lacking of one that has so many. A `prepare` that was said before counts one more than is known."""
        return self.durable_records == durable_records and self.counted <= len(self.operations)

    @property
    def begins_with_first(self) -> bool:
        """Nothing is lacking that was done before what is known."""
        return not self.operations or self.operations[0].ordinal == 0

    def name_sets(self, more: Sequence[str]) -> None:
        """Some said that it has branches in these: each as often as anybody said."""
        if more and more != self.resource_sets:
            joined = Counter(self.resource_sets) | Counter(more)
            self.resource_sets = tuple(sorted(joined.elements()))

    def with_operations(self, operations: Sequence[Publish | Dequeue]) -> "OpenTransaction":
        """One that is nobody else's."""
        return replace(self, operations=[*operations], is_shared=False)


class OpenTransactions:
    """Of one builder; lives as long as it."""

    def __init__(self) -> None:
        self._by_key: dict[TransactionKey, OpenTransaction] = {}

    def find(self, key: TransactionKey) -> OpenTransaction | None:
        """To look at."""
        return self._by_key.get(key)

    def change(self, key: TransactionKey, time_ms: TimeMs) -> OpenTransaction:
        """To change. `time_ms`: of the frame, if it is the first that does anything in it."""
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = OpenTransaction(key, time_ms)
        elif known.is_shared:
            known = self._by_key[key] = known.with_operations(known.operations)
        return known

    def end(self, key: TransactionKey) -> None:
        del self._by_key[key]

    def end_unprepared(self) -> None:
        self._by_key = {key: known for key, known in self._by_key.items() if known.is_prepared}

    def copy(self) -> "OpenTransactions":
        made = OpenTransactions()
        made.precede(self)
        return made

    def precede(self, earlier: "OpenTransactions") -> None:
        """Put before what is known here what was known where that begins; `earlier` knows the same as before."""
        for key, first in earlier._by_key.items():
            known = self._by_key.get(key)
            if known is None:
                first.is_shared = True
                self._by_key[key] = first
                continue
            joined = first.with_operations([*first.operations, *known.operations])
            joined.xid, joined.is_prepared = known.xid or first.xid, known.is_prepared or first.is_prepared
            joined.counted = first.counted if first.is_prepared else known.counted
            joined.name_sets(known.resource_sets)
            self._by_key[key] = joined
