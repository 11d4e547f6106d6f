"""Records: everything that changes state, as the primary writes it into the replication log (DESIGN 3).

Law: applying never checks. Whatever varies or could fail was settled by the primary before it appended: names are already
ids, routing is done, ordinals are given, and nothing in a record depends on a clock. A record is durable or transient as a
whole: a durable one says only things about durable state, so that durable state is a function of the durable records alone.

They are msgspec structs and not dataclasses: one definition is type, codec and schema, and a batch of 100 messages of 1 KiB
decodes in the time of a few dataclass instances. Fields are added at the end with a default, never removed or reused; so are
tags.
"""

from typing import NamedTuple

import msgspec

from lockstep.core.ids import (
    Epoch,
    ExchangeId,
    LogIndex,
    QueueId,
    QueuePosition,
    SessionKey,
    TransactionKey,
)
from lockstep.core.priority_levels import PRIORITY_DEFAULT


class CommandRef(NamedTuple):
    """The client command that a record answers: the session's key and the command's number in it (from 1)."""

    session: SessionKey
    number: int


class Record(msgspec.Struct, frozen=True, array_like=True):
    """Base of all records. `command` is None where the primary acts by itself, and on all records of a command but the last."""

    command: CommandRef | None


# --- wiring -----------------------------------------------------------------------------------------------------------


class DeclareExchange(Record, tag=1, frozen=True):
    """Its id is the index of this record. `kind` is one of direct, fanout, topic, headers."""

    name: str
    kind: str
    is_durable: bool


class DeleteExchange(Record, tag=2, frozen=True):
    """Deletes the exchange and its bindings."""

    exchange: ExchangeId


class DeclareQueue(Record, tag=3, frozen=True):
    """Its id is the index of this record. 0 and "" mean none throughout."""

    name: str
    is_durable: bool
    exclusive_session: SessionKey = SessionKey(0)
    """Only this session may use it; it is deleted when the session ends. Such a queue is never durable."""
    is_auto_delete: bool = False
    """Deleted by the primary when its last consumer has left."""
    length_max: int = 0
    """Messages."""
    bytes_max: int = 0
    """Bytes of bodies and properties."""
    is_evicting: bool = False
    """At a limit: evict the oldest (True) or reject the newest (False)."""
    message_ttl_ms: int = 0
    dead_letter_exchange: str | None = None
    """None: no dead-letter target; "" is the default exchange, whose routing key is a queue's name. A key alone, which older
    versions wrote, means that, too."""
    dead_letter_key: str = ""
    delivery_count_max: int = 0
    """Failed deliveries after which a message is dead-lettered (or dropped, without a target)."""
    is_used: bool = False
    """It has had a consumer. In the log `UseQueue` says so, and this in snapshots alone."""


class DeleteQueue(Record, tag=4, frozen=True):
    """Deletes the queue, its messages and its bindings. Open transactions that touch it become rollback-only."""

    queue: QueueId


class Bind(Record, tag=5, frozen=True):
    """A binding; arguments are the pairs of a headers exchange, sorted by name, values as the client sent them."""

    exchange: ExchangeId
    queue: QueueId
    key: str
    arguments: tuple[tuple[str, str], ...] = ()


class Unbind(Record, tag=6, frozen=True):
    exchange: ExchangeId
    queue: QueueId
    key: str
    arguments: tuple[tuple[str, str], ...] = ()


class UseQueue(Record, tag=7, frozen=True):
    """An auto-delete queue has its first consumer: until now it waited for that. Durable as the queue."""

    queue: QueueId


# --- messages ---------------------------------------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message and the queues it goes to; kept in memory as it was decoded. Content is opaque.

    Not tracked by the garbage collector, which would otherwise walk a million of them: it holds nothing that could be a cycle.
    """

    queues: tuple[QueueId, ...]
    properties: bytes
    body: bytes
    expires_ms: int = 0
    """When it expires (TimeMs); 0: never."""
    is_durable: bool = False
    priority: int = PRIORITY_DEFAULT
    """Its level, 0 to 9: which come first (`Priorities`)."""


class Alike(NamedTuple):
    """What messages have in common that differ in their contents alone, never expire, and have the default priority: enough to
    apply them."""

    queues: tuple[QueueId, ...]
    is_durable: bool
    sizes: tuple[int, ...]
    """Of each, in bytes of properties and body."""


class Publish(Record, tag=10, frozen=True):
    """Messages for queues. Message i has the ordinal `ordinal + i`.

    Outside a transaction they are visible at once, at (this index, ordinal); inside at (index of the commit, ordinal).
    """

    transaction: TransactionKey | None
    ordinal: int
    messages: tuple[Message, ...]
    alike: Alike | None = None
    """None: they are not, or nobody said so."""


class PackedPublish(Record, tag=10, frozen=True):
    """The same record as it is read by those who apply it: its messages are decoded when somebody wants one of them."""

    transaction: TransactionKey | None
    ordinal: int
    messages: msgspec.Raw
    alike: Alike | None = None


class DequeueReason:
    """Why messages left a queue. On the wire and in events: added, never reused."""

    ACCEPTED = 1
    EXPIRED = 2
    EVICTED = 3
    REJECTED = 4
    PURGED = 5
    LOST = 6
    """Not durable, at a restart (DESIGN R12). Never in a record: `EpochBegins` says it."""


class Dequeue(Record, tag=11, frozen=True):
    """Removes messages from a queue, or locks them for removal by `transaction`. `ordinal`: its place in the transaction."""

    transaction: TransactionKey | None
    ordinal: int
    queue: QueueId
    positions: tuple[QueuePosition, ...]
    reason: int = DequeueReason.ACCEPTED


class Move(Record, tag=12, frozen=True):
    """Moves messages to other queues (dead-lettering): message i gets the position (this index, ordinal + i) in each target."""

    ordinal: int
    queue: QueueId
    positions: tuple[QueuePosition, ...]
    targets: tuple[QueueId, ...]
    reason: int = DequeueReason.REJECTED
    expires_ms: tuple[int, ...] = ()
    """When the moved messages expire, by target (TimeMs); 0, and for all without any: never."""
    time_ms: int = 0
    """When they are moved, for whoever asks why they are there (`Death`); 0: of an older version, and nobody is told."""


class Requeue(Record, tag=13, frozen=True):
    """Messages came back after a failed delivery: they keep their positions, their delivery count grows by one."""

    queue: QueueId
    positions: tuple[QueuePosition, ...]


class Annotate(Record, tag=14, frozen=True):
    """Whoever gave messages back says something of them, for who gets them next (AMQP 1.0, 3.4.5): they keep their positions.

    `annotations`: keys and values in turn, as AMQP encodes them; well-formed.
    """

    queue: QueueId
    positions: tuple[QueuePosition, ...]
    annotations: bytes


# --- transactions -----------------------------------------------------------------------------------------------------


class Begin(Record, tag=20, frozen=True):
    """Opens a transaction named by (this index, this epoch). `xid` is empty for a TX. Transient: open ones do not survive."""

    session: SessionKey
    xid: bytes = b""
    timeout_ms: int = 0
    started_ms: int = 0


class Prepare(Record, tag=21, frozen=True):
    """Closes the tx-queue. With `commit_when_prepared` it *is* the commit of a TX (DESIGN 4). Always durable.

    It repeats the xid (b"" for a TX), because `begin` is transient and a branch must be in `recover()` from the journal alone.
    Said again of a prepared branch, it changes nothing but `resource_sets`: those of all that were said hold.
    """

    transaction: TransactionKey
    commit_when_prepared: bool
    xid: bytes = b""
    prepared_ms: int = 0
    """Of a branch: when (TimeMs), so that people see how long it has been in doubt."""
    resource_sets: tuple[str, ...] = ()
    """Of a branch of our own coordinator: every resource set that the transaction has branches in, for whoever reads committed
    events up to a consistent cut (DESIGN 7); with less than two there is nothing to wait for. Empty: whoever had it prepared did
    not say. The coordinator says it before it decides, so a branch that it commits has them.
    """
    begun: int = 0
    """Of a TX: its command has begun so many others, whose names are the indexes right before this one, and its answer says so.
    Those have no records, or begins, which primaries of older versions wrote.
    """
    durable_records: int = -1
    """How many durable records the transaction has in the log before this one; -1: nobody said. Whose log begins inside a
    transaction sees by it whether something of that is lacking; applying does not need it.
    """
    is_read_only: bool = False
    """Of a branch that ends with this: it had nothing to commit, and its vote said so. An older version says nothing of it, and
    takes no notice of it.
    """


class Commit(Record, tag=22, frozen=True):
    """Second round of a DTX. Always durable."""

    transaction: TransactionKey
    is_heuristic: bool = False
    durable_records: int = -1
    """As in `Prepare`, which is one of them, however often it was said."""


class RollbackReason:
    """Why a transaction was rolled back. On the wire: added, never reused."""

    CLIENT = 1
    SESSION_ENDED = 2
    TIMED_OUT = 3
    REFUSED = 4
    """A backup refused it while its tx-queue was open."""
    FENCED = 5
    """Somebody asked for its outcome and for certainty (DESIGN T5)."""
    FAILOVER = 6
    """A new epoch began (DESIGN R12, T8)."""
    ROLLBACK_ONLY = 7
    """It could not be committed any more: a gap, a refused operation, a deleted queue."""
    COORDINATOR = 8
    HEURISTIC = 9


class Rollback(Record, tag=23, frozen=True):
    """Ends a transaction without its effects. Behind a `prepare` only COORDINATOR and HEURISTIC count (T2). Always durable."""

    transaction: TransactionKey
    reason: int
    durable_records: int = -1
    """As in `Prepare`, which is one of them if there was one."""


class MarkRollbackOnly(Record, tag=24, frozen=True):
    """An operation of an open transaction failed: it can only be rolled back now. Transient, as open transactions are."""

    transaction: TransactionKey


class ForgetOutcomes(Record, tag=25, frozen=True):
    """Drops outcomes recorded at or below `floor`, which becomes the retention floor (DESIGN T5). Durable."""

    floor: LogIndex
    name_horizon_ms: int = 0
    """What the name horizon is from now on; 0: what it was (an older version does not say)."""
    kept: tuple[TransactionKey, ...] = ()
    """Those that stay until the next such record: committed branches of transactions that are not over everywhere."""


class ForgetHeuristic(Record, tag=26, frozen=True):
    """Drops the record of a heuristically finished branch. Durable."""

    transaction: TransactionKey
    name_horizon_ms: int = 0
    """As in `ForgetOutcomes`; for one that lies below the retention floor, and is forgotten with this."""


class Associate(Record, tag=27, frozen=True):
    """A session works in an open branch from now on, or has suspended that. Transient, as open branches are."""

    transaction: TransactionKey
    session: SessionKey
    is_suspended: bool = False


class Identify(Record, tag=36, frozen=True):
    """An open TX becomes the branch of this name, in which its session works. Transient, as open branches are."""

    transaction: TransactionKey
    session: SessionKey
    xid: bytes
    timeout_ms: int


class Dissociate(Record, tag=28, frozen=True):
    """A session ended its work in an open branch; `is_failed`: the branch can only be rolled back now. Transient."""

    transaction: TransactionKey
    session: SessionKey
    is_failed: bool = False


class SetTimeout(Record, tag=29, frozen=True):
    """Changes the time-out of an open branch; 0: none. Transient."""

    transaction: TransactionKey
    timeout_ms: int


class ForgetUndone(Record, tag=34, frozen=True):
    """Somebody heard that this open branch was rolled back behind its back: its xid is free again. Transient."""

    xid: bytes


# --- sessions ---------------------------------------------------------------------------------------------------------


class OpenSession(Record, tag=30, frozen=True):
    """A client's session in this set; its key is the index of this record. Transient (DESIGN 6, R12)."""

    session_id: str
    timeout_ms: int


class CloseSession(Record, tag=31, frozen=True):
    """Ends a session: its open transactions are rolled back and its exclusive queues deleted by records of their own, before; but
    of these what prepared branches touch behind their ends."""

    session: SessionKey


class RejectCommand(Record, tag=32, frozen=True):
    """A rejected command consumes its number. Transient. `value`: of a branch's verb, the `BranchState` that it met."""

    code: int
    message: str
    value: int = 0


class AcceptCommand(Record, tag=33, frozen=True):
    """A command that changed nothing (declaring what exists) consumes its number. Transient. `value`: its answer."""

    value: int = 0


class SelectDtx(Record, tag=35, frozen=True):
    """The session works with branches of distributed transactions from now on. Transient, as the session is."""

    session: SessionKey
    hears_read_only: bool = False
    """Preparing a branch that changed nothing answers `rdonly` and ends it; False: `ok`, and it is to be committed."""
    has_many_branches: bool = False
    """It may work in any number of branches at once; False: in one, as XA's threads do."""


class Consume(Record, tag=37, frozen=True):
    """The session has a consumer of an auto-delete queue, for the first time: when another primary leads, the queue waits for the
    session to come back, or to end. Transient, as the session is.
    """

    session: SessionKey
    queue: QueueId


# --- subscriptions to committed events ----------------------------------------------------------------------------------


Begins = tuple[tuple[str, LogIndex, Epoch], ...]
"""Where a group begins in each resource set, by its name: a closed cut."""


class OpenSubscription(Record, tag=50, frozen=True):
    """A group of this name is owed the events behind `floor`. Its id is the index of this record. Durable, as all three."""

    group: str
    floor: LogIndex


class AdvanceSubscription(Record, tag=51, frozen=True):
    """The group is done with everything at or below `floor`; the first one says where it begins."""

    subscription: LogIndex
    floor: LogIndex
    begins: Begins = ()
    """In the first one, in the set that decides it; empty: this set does not, or an older version wrote it."""


class CloseSubscription(Record, tag=52, frozen=True):
    """The group is owed nothing any more."""

    subscription: LogIndex
    is_left_behind: bool = False
    """False: it is gone. True: its name and where it stood stay, so that its reader is told, until it is closed."""


# --- the log itself ---------------------------------------------------------------------------------------------------


class EpochBegins(Record, tag=40, frozen=True):
    """First record of every epoch. Aborts open transactions; with `is_restarted` drops all that is not durable (DESIGN R12)."""

    epoch: Epoch
    broker: str
    is_restarted: bool
    is_handed_over: bool = False
    """The last primary told this one what only a primary knows of open transactions: they stay open (T8)."""


_AnyButPublish = (
    DeclareExchange
    | DeleteExchange
    | DeclareQueue
    | DeleteQueue
    | Bind
    | Unbind
    | UseQueue
    | Dequeue
    | Move
    | Requeue
    | Annotate
    | Begin
    | Prepare
    | Commit
    | Rollback
    | MarkRollbackOnly
    | ForgetOutcomes
    | ForgetHeuristic
    | Associate
    | Identify
    | Dissociate
    | SetTimeout
    | ForgetUndone
    | OpenSession
    | CloseSession
    | RejectCommand
    | AcceptCommand
    | SelectDtx
    | Consume
    | OpenSubscription
    | AdvanceSubscription
    | CloseSubscription
    | EpochBegins
)

AnyRecord = Publish | _AnyButPublish
AppliedRecord = Publish | PackedPublish | _AnyButPublish
"""What a state applies."""
PackedRecord = PackedPublish | _AnyButPublish
"""What it reads."""
