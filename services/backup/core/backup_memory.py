"""What a backup has in memory and knows of its disk in one epoch; its parts, which hear the store and the primary, share it.

Law: memory that is dropped may be one that others believe in: that it was lost is remembered, until the replica has taken a
new incarnation (R12). A disk that was found damaged is without memory.

    opening -> loading -> sending (to the own store) -> ready <-> subscribing -> joining -> following
    any --the own store is lost--> opening
    opening --the disk is damaged--> damaged; subscribing --the primary says that the disk lost its tail--> damaged
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from msgspec.structs import replace

from lockstep.core.effects import AnyEffect, Note, TakeApart
from lockstep.core.ids import DiskId, Epoch, LogIndex, SetName
from lockstep.core.log_copy import LogCopy
from lockstep.core.pieces import Pieces
from lockstep.core.store_protocol import SetOpened
from services.backup.core.joining import Joining


class BackupState(Enum):
    """Where this replica is on its way into the in-sync set."""

    OPENING = "opening"
    LOADING = "loading"
    SENDING = "sending"
    """Memory is ahead of the own store, which gets the frames again."""
    READY = "ready"
    """Memory and disk are at hand; no subscription."""
    SUBSCRIBING = "subscribing"
    JOINING = "joining"
    FOLLOWING = "following"
    DAMAGED = "damaged"


_SUBSCRIBED = (BackupState.SUBSCRIBING, BackupState.JOINING, BackupState.FOLLOWING)
_OPEN = (BackupState.READY, *_SUBSCRIBED)


class LogStanding(Enum):
    """What is known of the disk's log from etcd and what the disk remembers of that (R1)."""

    OURS = "of the history that the map has"
    LEFT_OUT = "perhaps of another history: nothing of it counts"
    AHEAD = "the disk knows of what etcd lacks"


@dataclass(frozen=True, slots=True)
class FoundDamage:
    """What a primary said of a disk, its own or a backup's, or whoever loaded from it: the disk itself may not know (R10)."""

    disk: DiskId
    reason: str
    is_unusable: bool = False
    """As `SetOpened` has it."""
    first: LogIndex = LogIndex(0)
    """Of what is unusable: where in the log it begins, before which all was of use; 0: in what the snapshot has, or not known."""


class BackupMemory:
    """Lives as long as its backup core, which drives it together with `OwnStore` and `Following`."""

    def __init__(self, set_name: SetName, copy: LogCopy | None, is_whole: bool, piece_cost: int) -> None:
        self.set_name = set_name
        self.state = BackupState.OPENING
        self.copy = copy
        """None: to be loaded from disk, or to come from the primary."""
        self.is_whole = is_whole and copy is not None
        """The memory holds the non-durable state too (R12)."""
        self.has_been_lost = False
        """Memory that others may believe in is gone."""
        self.joining: Joining | None = None
        """The snapshot that the primary is sending."""
        self.opened: SetOpened | None = None
        """What the store said of the disk."""
        self.fenced_at = Epoch(0)
        """The epoch that the store had seen when it refused this one; 0: it did not."""
        self.found_damage: FoundDamage | None = None
        """Of the own disk, once it was told."""
        self.durable_end = LogIndex(0)
        """Up to here the disk has what agrees with the primary's log."""
        self.uncuttable = LogIndex(0)
        """Up to here the disk cannot be cut: it knew that so much is committed when it was opened, or has it in its snapshot."""
        self.is_installing = False
        """A whole snapshot is on its way to the disk: the store owes no frame yet."""
        self.is_reserve_low = False
        """The disk's reserve is touched."""
        self.retry_ms = 0
        """When to open the store or to subscribe again; 0: not."""
        self.pieces = Pieces(piece_cost)
        """What is too much for one step."""
        self._applying: LogCopy | None = None
        """To this one is applied what is committed."""
        self.effects: list[AnyEffect] = []
        """What the input at hand wants done."""

    @property
    def is_subscribed(self) -> bool:
        """Whether a stream to the primary is open, or being opened."""
        return self.state in _SUBSCRIBED

    @property
    def is_settling(self) -> bool:
        """A snapshot becomes memory piece by piece: what is there in between is good for nothing."""
        return self.joining is not None and self.joining.is_settling

    @property
    def is_loaded(self) -> bool:
        """Memory and disk hold the same log, and no snapshot is half there: this replica may stand for promotion."""
        return (
            self.state in _OPEN
            and self.copy is not None
            and (self.joining is None or not self.joining.is_half_there)
            and self.copy.log_end <= self.durable_end
        )

    def apply(self, between: Callable[[], object] | None) -> Iterator[int]:
        """Apply what is committed, in steps that say what they cost (`Pieces`); nothing if that is under way already."""
        copy = self.copy
        if copy is None or self._applying is copy:
            return
        self._applying = copy
        while copy.is_behind(copy.commit_index):
            for cost in copy.apply_in_steps(copy.commit_index, between=between):
                yield cost
                if self.copy is not copy:
                    return
        self._applying = None

    def have(self, copy: LogCopy | None) -> None:
        """This is the memory now, in place of what it was, which nobody has any more."""
        if self.copy is not None and self.copy is not copy:
            self.effects.append(TakeApart(self.set_name, self.copy.take_apart()))
        self.copy = copy

    def lose(self) -> None:
        """There is none any more."""
        self.have(None)
        self.is_whole = False

    def stop_joining(self) -> None:
        """The snapshot that the primary is sending is void, if there is one."""
        self.void_joining()
        self.joining = None

    def void_joining(self) -> None:
        """The same at the end of this core, of which it is asked still how far it came."""
        if self.joining is not None:
            self.effects.append(TakeApart(self.set_name, self.joining.take_apart()))

    def drop(self) -> None:
        """It does not go with the disk, or with the log, any more."""
        self.has_been_lost = self.has_been_lost or self.copy is not None
        self.lose()

    def become_damaged(self, reason: str) -> None:
        """The disk cannot be gone on with (R10)."""
        self.drop()
        self.state = BackupState.DAMAGED
        self.note("damaged", reason)

    def find_damage(self, reason: str, is_unusable: bool = False, first: LogIndex = LogIndex(0)) -> None:
        """The disk is no good, and does not know it: it stays so for as long as this process lives (R10). `is_unusable`, `first`:
        as `FoundDamage` has them.
        """
        assert self.opened is not None, "the store has said which disk that is"
        self.found_damage = FoundDamage(self.opened.disk, reason, is_unusable, first)
        self.opened = replace(self.opened, damage=reason, is_unusable=is_unusable)
        self.become_damaged(reason)

    def note(self, event: str, details: str) -> None:
        self.effects.append(Note(self.set_name, event, details))

    def take_effects(self) -> list[AnyEffect]:
        """Those gathered since it was last asked, in order."""
        effects, self.effects = self.effects, []
        return effects
