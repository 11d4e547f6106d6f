"""The values that go to etcd and come back: entries, compares, operations, events, and what can go wrong.

Law: an error says whether it happened. `EtcdRejected` is definite: nothing was changed. `EtcdInDoubt` is everything
else: a time-out, a connection lost after sending, an answer that etcd itself gives when it does not know.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.core.errors import ErrorCode, InDoubt, Rejected


@dataclass(frozen=True, slots=True)
class Entry:
    """A key as etcd has it. `lease_id` is 0 when no lease holds it."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int


@dataclass(frozen=True, slots=True)
class ModRevisionEquals:
    """The key was last changed by this revision; 0: it is absent."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Absent:
    """The key does not exist."""

    key: str


@dataclass(frozen=True, slots=True)
class ValueEquals:
    """The key exists and has this value."""

    key: str
    value: bytes


Compare = ModRevisionEquals | Absent | ValueEquals


def as_read(key: str, value: bytes, revision: int) -> tuple[Compare, ...]:
    """That the key is as it was read: last changed by this revision, 0: absent, and with this value. An etcd that was set back
    gives its revisions once more, to what others write there.
    """
    if not revision:
        return (Absent(key),)
    return ModRevisionEquals(key, revision), ValueEquals(key, value)


def entry_as_read(key: str, entry: Entry | None) -> tuple[Compare, ...]:
    """The same, of an entry that was read; None: it was absent."""
    return as_read(key, entry.value, entry.mod_revision) if entry is not None else (Absent(key),)


@dataclass(frozen=True, slots=True)
class Put:
    """Writes the key; `lease_id` 0 keeps it until somebody deletes it."""

    key: str
    value: bytes
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes the key; of an absent one too."""

    key: str


@dataclass(frozen=True, slots=True)
class Get:
    """Reads the key inside the transaction."""

    key: str


@dataclass(frozen=True, slots=True)
class Transact:
    """A transaction inside the transaction: executes `on_success` if all its compares hold, else `on_failure`.

    The compares see the keys as they were before the outermost transaction; two of its parts may not write one key.
    """

    compares: "Sequence[Compare]"
    on_success: "Sequence[Operation]"
    on_failure: "Sequence[Operation]" = ()


Operation = Put | Delete | Get | Transact


@dataclass(frozen=True, slots=True)
class PutDone:
    """Answer to `Put`; the entry's mod_revision is the result's `revision`."""


@dataclass(frozen=True, slots=True)
class DeleteDone:
    """Answer to `Delete`: whether the key was there."""

    was_present: bool


@dataclass(frozen=True, slots=True)
class GetDone:
    """Answer to `Get`; None when the key is absent."""

    entry: Entry | None


@dataclass(frozen=True, slots=True)
class TransactDone:
    """Answer to `Transact`: whether its compares held, and one response for each operation that was executed."""

    succeeded: bool
    responses: "Sequence[OperationDone]"


OperationDone = PutDone | DeleteDone | GetDone | TransactDone


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Whether the compares held; etcd's revision afterwards; one response for each operation that was executed."""

    succeeded: bool
    revision: int
    responses: Sequence[OperationDone]


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """A lease, and the time it really has (etcd raises one that is too short)."""

    lease_id: int
    ttl_seconds: int


@dataclass(frozen=True, slots=True)
class PutEvent:
    """The key was written; `entry` is as this event left it."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class DeleteEvent:
    """The key was deleted, or its lease ended, by revision `mod_revision`."""

    key: str
    mod_revision: int


Event = PutEvent | DeleteEvent


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """At least one event, in the order of revisions, none of them cut in two.

    `last_revision` is that of the last event: a watch from `last_revision + 1` misses nothing. `header_revision` is etcd's
    at the time of sending: it may be ahead of events that are still to come, so never resume from it.
    """

    events: Sequence[Event]
    last_revision: int
    header_revision: int


class EtcdRejected(Rejected):
    """It was not executed: nothing could be sent, etcd said no, or it was a read."""


class EtcdInDoubt(InDoubt):
    """It was sent and may have been executed: read again before acting on it."""


class LeaseGone(EtcdRejected):
    """The lease has ended or was revoked; its keys are deleted."""

    def __init__(self, lease_id: int) -> None:
        super().__init__(ErrorCode.NOT_FOUND, "the lease is gone", lease_id=lease_id)
        self.lease_id = lease_id


class WatchCompacted(EtcdRejected):
    """Events from the wanted revision on are gone: read everything, then watch from there."""

    def __init__(self, prefix: str, start_revision: int, compact_revision: int) -> None:
        super().__init__(
            ErrorCode.EXPIRED,
            "the revision to watch from was compacted",
            prefix=prefix,
            start_revision=start_revision,
            compact_revision=compact_revision,
        )
        self.compact_revision = compact_revision


class WatchLost(EtcdRejected):
    """The watch ended (connection, silence, no leader, closed client): read everything, then watch from there."""
