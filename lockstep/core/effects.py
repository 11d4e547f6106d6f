"""What a replica of one resource set wants done. The driver (or the simulator) performs effects in order.

Law: an effect is performed completely or the process has crashed, except that messages may be lost with their stream. Clients,
backups and stores hear nothing that the effects before it did not allow: the replica itself waits for the store's answer before
it emits what depends on it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from lockstep.core.branch_names import GlobalId
from lockstep.core.cluster_map import SetMap
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, MessageId, SetName, TransactionKey
from lockstep.core.replication import Subscribe, ToBackup, ToPrimary
from lockstep.core.server_messages import Told
from lockstep.core.stamps import Stamp
from lockstep.core.store_protocol import AnyStoreRequest


class Effect(msgspec.Struct, frozen=True):
    """Base: the resource set that it concerns."""

    set_name: SetName


class TellStore(Effect, frozen=True):
    """Send on the stream to the own store; dropped when there is none (a `StoreConnected` follows some time)."""

    request: AnyStoreRequest


class ReadMessages(Effect, frozen=True):
    """Ask the own store for the contents of messages, beside the stream. Answered once by `MessagesRead` number `request`, at the
    latest when some seconds have passed.
    """

    request: int
    epoch: Epoch
    messages: tuple[MessageId, ...]


class OpenSubscription(Effect, frozen=True):
    """Open stream `stream` to the primary on `broker` and send `subscribe` first; ends an earlier subscription of the set."""

    stream: int
    broker: BrokerId
    subscribe: Subscribe


class TellPrimary(Effect, frozen=True):
    stream: int
    message: ToPrimary


class CloseSubscription(Effect, frozen=True):
    stream: int


class TellBackup(Effect, frozen=True):
    """Send on a backup's stream; dropped when it is closed."""

    stream: int
    message: ToBackup


class CloseBackupStream(Effect, frozen=True):
    stream: int


class EndBackupStreams(Effect, frozen=True):
    """Close all streams of backups, as the end of the process would."""


class TellClient(Effect, frozen=True):
    """Send to a client, unless the lease ended meanwhile (`serve_until_ms` on CLOCK_BOOTTIME): then drop it (R6, history 10e).

    0: not bound to the lease (errors that claim nothing about state).
    """

    stream: int
    message: Told
    serve_until_ms: int


class CloseClientStream(Effect, frozen=True):
    """Close after what was sent before."""

    stream: int


class EndClientStreams(Effect, frozen=True):
    """Close all streams of clients, without a word to them, as the end of the process would."""


class MapRead(NamedTuple):
    """The set's entry as it was read. Its value is compared, too: an etcd that was set back gives its revisions once more."""

    revision: int
    value: bytes


class SwapMap(Effect, frozen=True):
    """etcd transaction: entry is as `expected` -> put `set_map`. Answered by `SwapAnswered`, sent once."""

    request: int
    expected: MapRead
    set_map: SetMap


class PromoteSelf(Effect, frozen=True):
    """etcd transaction (R5): entry is as `expected`, the set's lease key is absent, the set's presence key of each broker in
    `presences` is as it says (incarnation, mod_revision; 0: it is absent) -> put `set_map`, put the lease key (value:
    `set_map.primary_incarnation`) under the process lease. Answered by `SwapAnswered`.
    """

    request: int
    expected: MapRead
    set_map: SetMap
    presences: tuple[tuple[BrokerId, Incarnation, int], ...]
    is_mark_compared: bool
    """And etcd does not say that it was set back (R1). Not where an operator has accepted a loss: that is done there, too."""


class DropLeaseKey(Effect, frozen=True):
    """Delete the set's lease key if its value is `incarnation`: it has stopped serving (R6). Not answered."""

    incarnation: Incarnation


class RestoreLeaseKey(Effect, frozen=True):
    """etcd transaction: entry is as `expected`, and the set's lease key is absent or has the value `incarnation` already -> put
    it so under the (new) process lease (R6). So it may be repeated: an earlier one that was in doubt may have landed. Answered by
    `SwapAnswered`, whose mod_revision stays the entry's.
    """

    request: int
    expected: MapRead
    incarnation: Incarnation
    is_mark_compared: bool
    """And etcd does not say that it was set back (R1). Not where all members follow who asks: none has seen a later epoch."""


class PutPresence(Effect, frozen=True):
    """Put this set's presence key of this broker (value: `incarnation`) under the process lease: this replica's memory is that
    of `incarnation`. Not answered; the replica emits it again after every new lease and whenever its memory was lost (R5, R12).
    """

    incarnation: Incarnation


class MarkSetBack(Effect, frozen=True):
    """Have etcd say that it was set back (R1): somebody has seen a stamp of this generation that it lacks, or a disk remembers a
    higher revision of the same lineage than the facts have. Not done where etcd has both. Not answered; repeated while it is so.
    """

    revision: int
    """That the disk remembers; 0: none that matters."""
    disk: DiskId
    """"": what this process has seen itself."""
    stamp: Stamp | None = None
    generation: str = ""
    """In which etcd was found so; in another one nothing is said of it. "": any."""
    rival: SetMap | None = None
    """An entry that the disk remembers, of the epoch that etcd has under another primary: however far etcd has come."""


class ClaimName(Effect, frozen=True):
    """etcd: put-if-absent directory/`kind`/`name` -> this set, if the set's lease key has the value `incarnation`: a process that
    does not lead the set any more may not. Answered by `NameClaimed`; DONE also when it was this set's.
    """

    request: int
    kind: str
    name: str
    incarnation: Incarnation


class AskDecision(Effect, frozen=True):
    """etcd: read what the decision log says of the distributed transaction that a prepared branch belongs to. Answered by
    `DecisionHeard`, or not at all: it is asked again.
    """

    request: int
    transaction: TransactionKey
    """The branch."""
    global_id: GlobalId


class ListParticipants(Effect, frozen=True):
    """etcd: list the transactions that the decision log has and by which this set is awaited, the oldest ones if there are very
    many. Answered by `ParticipantsListed`, or not at all: it is asked again.
    """

    request: int
    up_to_ms: int
    """When the youngest was begun of which anybody wants to know."""


class ReleaseName(Effect, frozen=True):
    """etcd: delete directory/`kind`/`name` if it is this set's and the set's lease key has the value `incarnation`. Not answered.

    A process that does not lead the set any more may not: its successor may have declared the name again.
    """

    kind: str
    name: str
    incarnation: Incarnation


class LookUpNames(Effect, frozen=True):
    """Look up which names the directory has for this set, as it was watched. Answered by `NamesSeen`."""


class WakeAt(Effect, frozen=True):
    """Feed `Woken` at `boottime_ms`, or a little later. Each call for itself: one does not undo another."""

    boottime_ms: int


class TakeApart(Effect, frozen=True):
    """Take `work` to its end, in pieces (`Pieces`) between which others have their turns: it empties what nobody has any more.
    Not answered; with the process it is over, too.
    """

    work: Iterator[int]


class Halt(Effect, frozen=True):
    """Stop the process: going on could break a promise. A stopped broker is safe."""

    reason: str


class Note(Effect, frozen=True):
    """Something an operator should find in the log; `event` is a fixed word, `details` short."""

    event: str
    details: str
    is_warning: bool = False
    """Somebody has to do something."""
    limit: str = ""
    """Which limit has refused something; such lines come once a minute at most (`LimitLog`)."""


AnyEffect = (
    TellStore
    | ReadMessages
    | OpenSubscription
    | TellPrimary
    | CloseSubscription
    | TellBackup
    | CloseBackupStream
    | EndBackupStreams
    | TellClient
    | CloseClientStream
    | EndClientStreams
    | SwapMap
    | PromoteSelf
    | DropLeaseKey
    | RestoreLeaseKey
    | PutPresence
    | MarkSetBack
    | ClaimName
    | ReleaseName
    | AskDecision
    | ListParticipants
    | LookUpNames
    | WakeAt
    | TakeApart
    | Halt
    | Note
)
