"""The columns of an event, as the source gives them to Spark: one row per durable effect (DESIGN 7).

| Column | Is |
|---|---|
| `resource_set`, `index`, `epoch` | the place of its transaction in the committed log |
| `commit_time` | monotone within a resource set; UTC |
| `duration_ms` | from the first operation of the transaction to its commit; null outside any |
| `transaction` | what its events share, in all resource sets: the global id in hexadecimal of a transaction of our coordinator, else `set/index.epoch` of its begin, or, outside any transaction, of the record itself |
| `global_id`, `xid` | of a branch: in hexadecimal, and as `format:global:branch`; else null |
| `resource_sets` | how many resource sets the transaction has branches in |
| `events`, `place` | how many events it has in this resource set, and which of them this one is, from 0 |
| `kind` | `enqueue`, `dequeue`, `expire`, `dead_letter`, `declare`, `delete`, `rollback` |
| `queue`, `queue_id` | name, and the index of its declaration, which is never given out twice; `is_exchange` if it is one |
| `position_index`, `position_ordinal` | where the message stands in its queue, never given out twice; null without a message |
| `message_id` | the same as text with the resource set: `set/index.ordinal` |
| `reason` | why a message left: `accepted`, `expired`, `evicted`, `rejected`, `purged`, `lost`; else null |
| `source_index`, `source_ordinal` | of a dead letter's enqueue: where it stood in the queue that it left; else null |
| `session` | that did it; null: the broker |
| `expires` | when the message expires; null: never |
| `properties`, `body` | of an enqueue; null where there is none, or the content was not asked for |
| `is_heuristic` | an operator ended the branch |
| `rollback_reason`, `undone_publishes`, `undone_accepts` | of a rollback |
"""  # noqa: E501 - a table's row is one line

from lockstep.core.records import DequeueReason, RollbackReason
from lockstep.wire.v1 import events_pb2 as pb

COLUMNS: tuple[tuple[str, str], ...] = (
    ("resource_set", "string"),
    ("index", "bigint"),
    ("epoch", "bigint"),
    ("commit_time", "timestamp"),
    ("duration_ms", "bigint"),
    ("transaction", "string"),
    ("global_id", "string"),
    ("xid", "string"),
    ("resource_sets", "int"),
    ("events", "int"),
    ("place", "int"),
    ("kind", "string"),
    ("queue", "string"),
    ("queue_id", "bigint"),
    ("is_exchange", "boolean"),
    ("position_index", "bigint"),
    ("position_ordinal", "int"),
    ("message_id", "string"),
    ("reason", "string"),
    ("source_index", "bigint"),
    ("source_ordinal", "int"),
    ("session", "bigint"),
    ("expires", "timestamp"),
    ("properties", "binary"),
    ("body", "binary"),
    ("is_heuristic", "boolean"),
    ("rollback_reason", "string"),
    ("undone_publishes", "bigint"),
    ("undone_accepts", "bigint"),
)
"""Names and Spark types, in order."""

SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS)
"""As Spark reads it."""


def _names(numbers: type) -> dict[int, str]:
    return {number: name.lower() for name, number in vars(numbers).items() if isinstance(number, int)}


KINDS = {
    int(number): name.removeprefix("KIND_").lower()
    for name, number in pb.EventBatch.Kind.items()
    if number != pb.EventBatch.KIND_UNKNOWN
}
"""Of the wire's numbers; one that is not here is shown as its number."""
REASONS = _names(DequeueReason)
ROLLBACK_REASONS = _names(RollbackReason)
