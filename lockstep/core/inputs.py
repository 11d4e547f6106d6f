"""What can happen to a replica of one resource set. The driver (or the simulator) feeds these to a `Replica`.

Law: an input is a fact that reached this process; nothing in it is a command of the driver. Streams are numbers that the driver
gives out and never reuses within a process.
"""

from enum import Enum

import msgspec

from lockstep.core.cluster_map import SetMap
from lockstep.core.decision_log import LoggedParticipants, LogView
from lockstep.core.ids import BrokerId, Incarnation, SetName, TransactionKey
from lockstep.core.replication import ToBackup, ToPrimary
from lockstep.core.requests import Heard
from lockstep.core.stamps import NO_STAMPS, Stamps
from lockstep.core.store_protocol import AnyStoreAnswer


class Input(msgspec.Struct, frozen=True):
    """Base: the resource set that it concerns."""

    set_name: SetName


# --- etcd -------------------------------------------------------------------------------------------------------------


class MapSeen(Input, frozen=True):
    """The set's map entry as read or watched. `set_map` None: there is none (the set was deleted)."""

    set_map: SetMap | None
    mod_revision: int
    """Of the entry."""
    map_bytes: bytes
    generation: str
    earlier_generations: tuple[str, ...] = ()
    """Of the same lineage."""
    etcd_revision: int = 0
    """etcd's own, the highest that was seen in this lineage; 0: not known."""
    is_set_back: bool = False
    """etcd says of itself that it was restored from a backup: nothing starts."""
    stamps: Stamps = NO_STAMPS
    """As etcd has them."""


class LeaseKeySeen(Input, frozen=True):
    """The set's lease key as read or watched: the incarnation that holds it, or None when it is absent."""

    holder: Incarnation | None


class PresencesSeen(Input, frozen=True):
    """The set's presence keys as read or watched, all of them: (broker, incarnation of its replica, mod_revision of the key)."""

    presences: tuple[tuple[BrokerId, Incarnation, int], ...]


class Verdict(Enum):
    """How an etcd transaction ended."""

    DONE = "done"
    FAILED = "failed"
    """A compare did not hold; nothing was written."""
    IN_DOUBT = "in doubt"
    """The answer was lost: it may have been, or may yet be, executed."""


class CandidatesSeen(Input, frozen=True):
    """The addresses of those who may serve the set, or their order, are others than was seen before."""


class SwapAnswered(Input, frozen=True):
    """Answer to `SwapMap`, `PromoteSelf` or `RestoreLeaseKey` number `request`. On DONE `mod_revision` is the entry's new one.

    After FAILED and IN_DOUBT the driver reads the entry again and feeds a `MapSeen` *before* this input, so that the
    replica decides by the current entry.
    """

    request: int
    verdict: Verdict
    mod_revision: int


class NameClaimed(Input, frozen=True):
    """Answer to `ClaimName` number `request`: DONE: it is this set's; FAILED: it belongs to set `owner`; IN_DOUBT: ask again."""

    request: int
    verdict: Verdict
    owner: SetName


class NamesSeen(Input, frozen=True):
    """Answer to `LookUpNames`: every (kind, name) of this set in the directory, sorted; perhaps a moment old."""

    names: tuple[tuple[str, str], ...]


class DecisionHeard(Input, frozen=True):
    """Answer to `AskDecision` number `request`. `view` None: the log did not answer, or with less than it knew before."""

    request: int
    transaction: TransactionKey
    view: LogView | None


class ParticipantsListed(Input, frozen=True):
    """Answer to `ListParticipants` number `request`. `found` None: the log did not answer."""

    request: int
    found: LoggedParticipants | None


# --- lease ------------------------------------------------------------------------------------------------------------


class LeaseExtended(Input, frozen=True):
    """The process lease was granted or renewed: keys under it live until `serve_until_ms` at least (R6)."""

    lease_id: int
    serve_until_ms: int


class LeaseLost(Input, frozen=True):
    """The process lease is gone or was given up: stop serving at once."""


# --- own store --------------------------------------------------------------------------------------------------------


class StoreConnected(Input, frozen=True):
    """A new stream to the own store is open; nothing of an earlier one will be answered."""


class StoreLost(Input, frozen=True):
    """The stream to the own store ended: what was not answered is unknown until the set is opened again."""


class StoreSaid(Input, frozen=True):
    answer: AnyStoreAnswer


class MessagesRead(Input, frozen=True):
    """Answer to `ReadMessages` number `request`: (properties, body) in the order asked for, None for a message that is not there.

    `contents` None: the store did not say, ask again.
    """

    request: int
    contents: tuple[tuple[bytes, bytes] | None, ...] | None


# --- between brokers --------------------------------------------------------------------------------------------------


class BackupSaid(Input, frozen=True):
    """A message of a backup on its stream to this process; the first one is `Subscribe`."""

    stream: int
    message: ToPrimary


class BackupStreamClosed(Input, frozen=True):
    stream: int


class PrimarySaid(Input, frozen=True):
    """A message of the primary on this process's stream `stream`, opened by `OpenSubscription`."""

    stream: int
    message: ToBackup


class PrimaryStreamClosed(Input, frozen=True):
    """The subscription stream ended, or could not be opened."""

    stream: int


# --- clients ----------------------------------------------------------------------------------------------------------


class ClientSaid(Input, frozen=True):
    """Messages of one client stream, in order; the first one of a stream is `AttachSession`."""

    stream: int
    messages: tuple[Heard, ...]


class ClientStreamFull(Input, frozen=True):
    """Much waits to be written to a client that reads slowly, or not at all: no deliveries until `ClientStreamDrained`."""

    stream: int


class ClientStreamDrained(Input, frozen=True):
    """Most of what waited for a client was written."""

    stream: int


class ClientStreamClosed(Input, frozen=True):
    stream: int


# --- people and time --------------------------------------------------------------------------------------------------


class HandOver(Input, frozen=True):
    """`to` (a broker in sync, with its memory) is to be the primary: stop serving and let it (R6)."""

    to: BrokerId
    is_chosen: bool = False
    """Somebody said that it should lead: it does not give the set back by itself."""


class AcceptDataLoss(Input, frozen=True):
    """An operator lets this replica promote itself although the map does not allow it (R7); the driver logged it before."""


class Tick(Input, frozen=True):
    """Time passed; comes every 50 to 100 ms."""


class Woken(Input, frozen=True):
    """The time of a `WakeAt` has come."""


AnyInput = (
    MapSeen
    | LeaseKeySeen
    | PresencesSeen
    | CandidatesSeen
    | SwapAnswered
    | NameClaimed
    | NamesSeen
    | DecisionHeard
    | ParticipantsListed
    | LeaseExtended
    | LeaseLost
    | StoreConnected
    | StoreLost
    | StoreSaid
    | MessagesRead
    | BackupSaid
    | BackupStreamClosed
    | PrimarySaid
    | PrimaryStreamClosed
    | ClientSaid
    | ClientStreamFull
    | ClientStreamDrained
    | ClientStreamClosed
    | HandOver
    | AcceptDataLoss
    | Tick
    | Woken
)
