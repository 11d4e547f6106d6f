"""Batches of committed events on the wire, column by column.

Law: a batch has at most `EVENTS_MAX` events and `CONTENT_BYTES_MAX` bytes; only a single message may be larger. What
does not fit goes on in the next batch, and `end` says how far everything is there.
"""

from collections.abc import Iterable, Sequence

from lockstep.core.ids import ORDINAL_BITS, ORDINAL_MAX, SetName, transaction_id
from lockstep.core.xid import Xid
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.planning import Offset
from services.broker.core.events.transactions import CommittedTransaction, Effects, EventKind

EVENTS_MAX = 1_000
CONTENT_BYTES_MAX = 3 * 1024 * 1024
"""Below gRPC's limit of a message, with the largest message that a broker takes in a batch of its own."""


def encode_batches(
    set_name: SetName,
    transactions: Iterable[CommittedTransaction],
    start: Offset,
    end: Offset,
    with_content: bool,
) -> list[bytes]:
    """Serialised `EventBatch`es of these transactions, at least one; they are all of a range from `start` to `end`."""
    writer = _Writer(set_name, start, with_content)
    for transaction in transactions:
        writer.add(transaction)
    return writer.finish(end)


class _Writer:
    """One call's batches."""

    def __init__(self, set_name: SetName, start: Offset, with_content: bool) -> None:
        self._set_name = set_name
        self._with_content = with_content
        self._done: list[bytes] = []
        self._last = start
        """The last transaction that is there as a whole."""
        self._begin()

    def _begin(self) -> None:
        self._batch = pb.EventBatch()
        self._resources: dict[int, int] = {}
        self._count = 0
        self._content_bytes = 0
        self._properties: list[bytes] = []
        self._bodies: list[bytes] = []
        self._columns = _Columns()

    def add(self, transaction: CommittedTransaction) -> None:
        place, begun = 0, None
        events = transaction.events
        for effects in transaction.effects:
            first = 0
            while first < len(effects.positions):
                count = self._room_for(effects, first)
                if not count:
                    self._cut(self._last)
                    begun = None
                    continue
                if begun is None:
                    begun = self._open(transaction, events, place)
                self._append(effects, first, count)
                begun.events_here += count
                place += count
                first += count
        # Of its reign nothing is said here: the end of the block does.
        self._last = Offset(transaction.index, transaction.epoch)

    def finish(self, end: Offset) -> list[bytes]:
        self._cut(end)
        return self._done

    def _room_for(self, effects: Effects, first: int) -> int:
        """How many of its events, from `first` on, still fit; 0: the batch is full."""
        count = min(len(effects.positions) - first, EVENTS_MAX - self._count)
        if not self._with_content or not effects.messages:
            return count
        room = CONTENT_BYTES_MAX - self._content_bytes
        for number in range(first, first + count):
            message = effects.messages[number]
            room -= len(message.body) + len(message.properties)
            if room < 0:
                fits = number - first
                return fits if fits or self._count else 1
        return count

    def _open(self, transaction: CommittedTransaction, events: int, place: int) -> pb.EventBatch.Transaction:
        wire = self._batch.transactions.add(
            index=transaction.index,
            epoch=transaction.epoch,
            commit_time_ms=transaction.time_ms,
            duration_ms=transaction.time_ms - transaction.started_ms,
            events=events,
            first_place=place,
            session=transaction.session,
            is_heuristic=transaction.is_heuristic,
            rollback_reason=transaction.rollback_reason,
            undone_publishes=transaction.undone_publishes,
            undone_accepts=transaction.undone_accepts,
            resource_sets=max(len(set(transaction.resource_sets)), 1),
        )
        if transaction.key is not None:
            wire.transaction_id = transaction_id(self._set_name, transaction.key)
        if transaction.xid:
            xid = Xid.decode(transaction.xid)
            wire.xid_format, wire.global_id, wire.branch_id = xid.format_id, xid.global_id, xid.branch_id
        return wire

    def _append(self, effects: Effects, first: int, count: int) -> None:
        columns, behind = self._columns, first + count
        columns.kinds += [int(effects.kind)] * count
        columns.resources += [self._resource(effects)] * count
        positions = effects.positions[first:behind]
        columns.position_indexes += _indexes(positions)
        columns.position_ordinals += _ordinals(positions)
        columns.reasons += [effects.reason] * count
        if effects.sources:
            sources = effects.sources[first:behind]
            columns.source_indexes += _indexes(sources)
            columns.source_ordinals += _ordinals(sources)
        else:
            columns.source_indexes += [0] * count
            columns.source_ordinals += [0] * count
        if effects.messages:
            messages = effects.messages[first:behind]
            columns.expires_ms += [message.expires_ms for message in messages]
        else:
            messages = ()
            columns.expires_ms += [effects.expires_ms] * count
        if messages and self._with_content:
            bodies = [message.body for message in messages]
            properties = [message.properties for message in messages]
            columns.body_lengths += map(len, bodies)
            columns.properties_lengths += map(len, properties)
            self._bodies += bodies
            self._properties += properties
            self._content_bytes += sum(columns.body_lengths[-count:]) + sum(
                columns.properties_lengths[-count:]
            )
        else:
            columns.body_lengths += [0] * count
            columns.properties_lengths += [0] * count
        self._count += count

    def _resource(self, effects: Effects) -> int:
        number = self._resources.get(effects.resource)
        if number is None:
            number = self._resources[effects.resource] = len(self._resources)
            self._batch.resources.add(id=effects.resource, name=effects.name, is_exchange=effects.is_exchange)
        return number

    def _cut(self, end: Offset) -> None:
        batch = self._batch
        batch.end.resource_set, batch.end.index, batch.end.epoch = self._set_name, end.index, end.epoch
        batch.end.reign = end.reign
        self._columns.write(batch.events)
        batch.events.bodies = b"".join(self._bodies)
        batch.events.properties = b"".join(self._properties)
        self._done.append(batch.SerializeToString())
        self._begin()


class _Columns:
    """The numbers of a batch. One list per column; those that are all zero stay away from the wire."""

    __slots__ = (
        "body_lengths",
        "expires_ms",
        "kinds",
        "position_indexes",
        "position_ordinals",
        "properties_lengths",
        "reasons",
        "resources",
        "source_indexes",
        "source_ordinals",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, [])

    kinds: list[int]
    resources: list[int]
    position_indexes: list[int]
    position_ordinals: list[int]
    reasons: list[int]
    source_indexes: list[int]
    source_ordinals: list[int]
    expires_ms: list[int]
    properties_lengths: list[int]
    body_lengths: list[int]

    def write(self, columns: pb.EventBatch.Columns) -> None:
        for name in self.__slots__:
            numbers = getattr(self, name)
            if any(numbers):
                getattr(columns, name).extend(numbers)


def _indexes(positions: Sequence[int]) -> list[int]:
    if isinstance(positions, range):  # of one record
        return [positions[0] >> ORDINAL_BITS] * len(positions)
    return [position >> ORDINAL_BITS for position in positions]


def _ordinals(positions: Sequence[int]) -> Iterable[int]:
    if isinstance(positions, range):
        first = positions[0] & ORDINAL_MAX
        return range(first, first + len(positions))
    return [position & ORDINAL_MAX for position in positions]


assert {kind.name: kind.value for kind in EventKind} == {
    name.removeprefix("KIND_"): value for name, value in pb.EventBatch.Kind.items() if value
}, "events and their wire form have the same kinds"
