"""The backup role of one resource set in one epoch: opens the own store, loads what it holds, follows the primary's log.

Law: what is acknowledged is durable here and agrees with the primary's log; what is applied is committed, or lies at or below a
snapshot that this replica joined with. The store is fenced at the epoch before anything is said in it (R2).

    opening -> loading -> sending (to the own store) -> ready <-> subscribing -> joining -> following
    any --the own store is lost--> opening
    opening --the disk is damaged--> damaged; subscribing --the primary says that the disk lost its tail--> damaged
"""

from dataclasses import dataclass, replace
from enum import Enum

from lockstep.core.clock import Now
from lockstep.core.effects import (
    AnyEffect,
    Note,
)
from lockstep.core.frames import Frame, check_frame
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.inputs import (
    AnyInput,
    PrimarySaid,
    PrimaryStreamClosed,
    StoreConnected,
    StoreLost,
    StoreSaid,
    Tick,
)
from lockstep.core.log_copy import LogCopy, agreement
from lockstep.core.replication import (
    Frames,
    SnapshotChunk,
    SubscriptionAccepted,
    SubscriptionRefused,
)
from lockstep.core.store_protocol import (
    AnyStoreAnswer,
    Appended,
    Installed,
    SetOpened,
    StateChunk,
    StateItem,
    StateLoaded,
    StoreRefused,
    Truncated,
)
from services.backup.core.joining import Joining
from services.backup.core.loading import Loading
from services.backup.core.primary_words import PrimaryWords
from services.backup.core.settings import BackupSettings
from services.backup.core.store_watch import StoreWatch
from services.backup.core.store_words import StoreWords


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


_OPEN = (BackupState.READY, BackupState.SUBSCRIBING, BackupState.JOINING, BackupState.FOLLOWING)


@dataclass(frozen=True, slots=True)
class FoundDamage:
    """What a primary said of a disk, its own or a backup's: the disk itself may not know (R10)."""

    disk: DiskId
    reason: str


class BackupCore:
    """Lives for one epoch on one replica; driven by the replica. Its memory (`copy`) is handed on to the next role."""

    def __init__(
        self,
        set_name: SetName,
        broker: BrokerId,
        incarnation: Incarnation,
        epoch: Epoch,
        primary: BrokerId | None,
        copy: LogCopy | None,
        is_memory_whole: bool,
        first_stream: int,
        settings: BackupSettings,
    ) -> None:
        """`primary` None: nobody to follow (the map names this broker itself, or nobody yet); then it only loads.

        `copy` None: memory is to be loaded from disk. `first_stream`: number for the first subscription; later ones count on.
        """
        self.set_name = set_name
        self._broker = broker
        self._incarnation = incarnation
        self.epoch = epoch
        self._primary = primary
        self.copy = copy
        self.is_memory_whole = is_memory_whole and copy is not None
        """The memory holds the non-durable state too (R12)."""
        self._settings = settings
        self.has_lost_memory = False
        """Memory that others may believe in is gone: the replica takes a new incarnation, with a new core."""
        self.state = BackupState.OPENING
        self.opened: SetOpened | None = None
        """What the store said of the disk."""
        self.found_damage: FoundDamage | None = None
        """Of the own disk, once it was told; the replica hands it on to its next core."""
        self.durable_end = LogIndex(0)
        self._loading: Loading | None = None
        self._joining: Joining | None = None
        self._retry_ms = 0
        self._link = PrimaryWords(set_name, epoch, broker, incarnation, first_stream, settings)
        self._store = StoreWords(set_name, epoch, incarnation)
        self._watch = StoreWatch(settings)
        self._is_installing = False
        self._is_reserve_low = False
        self._effects: list[AnyEffect] = []

    @property
    def stream(self) -> int:
        """Number of the present or last subscription."""
        return self._link.stream

    @property
    def disk(self) -> DiskId | None:
        return self.opened.disk if self.opened is not None else None

    @property
    def is_loaded(self) -> bool:
        """Memory and disk hold the same log, and no snapshot is half there: this replica may stand for promotion."""
        return (
            self.state in _OPEN
            and self.copy is not None
            and (self._joining is None or not self._joining.is_whole)
            and self.copy.log_end <= self.durable_end
        )

    @property
    def can_stand_unrestarted(self) -> bool:
        """Its memory holds everything, the non-durable state too."""
        return self.is_memory_whole and self._joining is None

    def begin(self, now: Now) -> list[AnyEffect]:
        """Open the own store in this epoch."""
        self._open()
        return self._take_effects()

    def handle(self, given: AnyInput, now: Now) -> list[AnyEffect]:
        """Take one input; returns effects to perform in order."""
        match given:
            case StoreConnected():
                self._leave()
                self._open()
            case StoreLost():
                self._leave()
                self.state = BackupState.OPENING
                self._retry_ms = 0
            case StoreSaid():
                self._store_said(given.answer, now)
            case PrimarySaid() if given.stream == self.stream and given.message.epoch == self.epoch:
                self._link.heard(now)
                self._primary_said(given, now)
            case PrimarySaid() if given.stream == self.stream and isinstance(
                given.message, SubscriptionRefused
            ):
                self._refused(given.message, now)
            case PrimaryStreamClosed() if given.stream == self.stream:
                self._lost_primary(now)
            case Tick():
                self._tick(now)
            case _:
                pass
        if self.copy is not None:
            self.copy.bodies.trim(self.durable_end)
        return self._take_effects()

    def end(self) -> list[AnyEffect]:
        """Another role or epoch follows."""
        self._leave()
        return self._take_effects()

    def set_aside(self) -> list[AnyEffect]:
        """The damaged disk is no longer named by the map: begin again with a new one (R10)."""
        assert self.state is BackupState.DAMAGED
        self.copy, self.is_memory_whole = None, False
        self.state = BackupState.OPENING
        self._effects.append(self._store.set_aside())
        return self._take_effects()

    def accept_damage(self) -> list[AnyEffect]:
        """An operator accepts what the damage took (R7): go on with what is left."""
        assert self.state is BackupState.DAMAGED
        self._note("damage accepted", self.opened.damage if self.opened is not None else "")
        self.state, self.found_damage = BackupState.OPENING, None
        self._effects.append(self._store.accept_damage())
        return self._take_effects()

    # --- the own store ---

    def _open(self) -> None:
        if self._loading is not None or (self._joining is not None and self._joining.is_whole):
            self.copy = None
        if self._joining is not None:
            self.is_memory_whole = False
        self._loading = self._joining = None
        self.state = BackupState.OPENING
        self._retry_ms = 0
        self._effects.append(self._store.open())

    def _store_said(self, answer: AnyStoreAnswer, now: Now) -> None:
        if answer.incarnation != self._incarnation or answer.epoch != self.epoch:
            return
        match answer:
            case SetOpened():
                self._set_opened(answer, now)
            case StateChunk() if self._loading is not None:
                self._loading.take(answer)
            case StateLoaded() if self._loading is not None:
                self.copy = self._loading.finish()
                self._loading = None
                self._note("loaded", f"log end {self.copy.log_end}, applied {self.copy.state.applied}")
                self._ready(now)
            case Appended() | Installed() if self.state is not BackupState.OPENING:
                self._durable(answer, now)
            case Truncated():
                pass
            case StoreRefused():
                self._store_refused(answer, now)
            case _:
                pass

    def _durable(self, answer: Appended | Installed, now: Now) -> None:
        self.durable_end = max(self.durable_end, answer.log_end)
        self._watch.took(now)
        self._watch.is_well()
        if isinstance(answer, Appended):
            self._is_reserve_low = answer.free_bytes < self._settings.reserve_bytes
        else:
            self._is_installing = False
        if self.state is BackupState.SENDING and self.copy and self.durable_end >= self.copy.log_end:
            self._ready(now)
        self._acknowledge(now)

    def _set_opened(self, opened: SetOpened, now: Now) -> None:
        if self.state is not BackupState.OPENING:
            return
        same_disk = self.opened is None or self.opened.disk == opened.disk
        if self.found_damage is not None and self.found_damage.disk == opened.disk and not opened.damage:
            opened = replace(opened, damage=self.found_damage.reason)
        self.opened = opened
        if opened.damage:
            self._damaged(opened.damage)
            return
        if not same_disk and self.copy is not None:
            self._note("new disk", f"{opened.disk}: the memory is dropped")
            self._drop_memory()
        self.durable_end = opened.log_end
        self._watch.took(now)
        self._is_installing = False
        if self.copy is None:
            self.is_memory_whole = False
            self.state = BackupState.LOADING
            self._loading = Loading(self.set_name, opened.commit_index, opened.log_end, self._settings)
            self._effects.append(self._store.load())
            return
        self._reconcile(self.copy, opened, now)

    def _reconcile(self, copy: LogCopy, opened: SetOpened, now: Now) -> None:
        """Memory outlived the stream to the store: the store is cut where it missed a cut, and gets again what it lacks."""
        agreed = agreement(copy.epochs(), copy.log_end, opened.epochs, opened.log_end)
        frames = copy.frames_after(agreed)
        first = frames[0].header.first if frames else LogIndex(copy.log_end + 1)
        if agreed < opened.commit_index or first > agreed + 1:
            self._note("reload", f"disk ends at {opened.log_end}, memory at {copy.log_end}, agreed {agreed}")
            self._drop_memory()
            self._set_opened(opened, now)
            return
        self.durable_end = agreed
        if agreed < opened.log_end:
            self._effects.append(self._store.truncate(agreed))
        if not frames:
            self._ready(now)
            return
        self.state = BackupState.SENDING
        for frame in frames:
            self._effects.append(self._store.append((frame.durable,), copy.commit_index))

    def _damaged(self, damage: str) -> None:
        self._drop_memory()
        self.state = BackupState.DAMAGED
        self._note("damaged", damage)

    def _drop_memory(self) -> None:
        self.has_lost_memory = self.has_lost_memory or self.copy is not None
        self.copy, self.is_memory_whole = None, False

    def _store_refused(self, refused: StoreRefused, now: Now) -> None:
        self._note("store refused", f"{refused.code.name}: {refused.message}")
        self._watch.refused(now)
        self._reopen_later(now)

    def _reopen_later(self, now: Now) -> None:
        self._leave()
        self.state = BackupState.OPENING
        self._retry_ms = now.boottime_ms + 10 * self._settings.retry_ms

    def _watch_store(self, now: Now) -> None:
        """Give the subscription up when the store hangs, and in the end the memory when it refuses."""
        copy = self.copy
        if copy is None:
            return
        is_owing = copy.log_end > self.durable_end and not self._is_installing
        if not is_owing or self.state not in (BackupState.JOINING, BackupState.FOLLOWING):
            self._watch.took(now)
        elif self._watch.is_silent(now):
            self._note("store silent", f"durable up to {self.durable_end}, sent up to {copy.log_end}")
            self._reopen_later(now)
        if self._watch.is_hopeless(now):
            self._note("memory given up", "the own store refuses")
            self._reopen_later(now)
            self._drop_memory()

    # --- the primary ---

    def _ready(self, now: Now) -> None:
        self.state = BackupState.READY
        self._watch.is_well()
        self._retry_ms = 0
        self._subscribe(now)

    def _subscribe(self, now: Now) -> None:
        assert self.copy is not None and self.opened is not None
        if self._primary is None:
            return
        self.state = BackupState.SUBSCRIBING
        commit_index = max(self.copy.commit_index, self.opened.commit_index)
        self._effects.append(
            self._link.subscribe(
                self._primary, self.opened.disk, self.copy, commit_index, self.is_memory_whole, now
            )
        )

    def _primary_said(self, given: PrimarySaid, now: Now) -> None:
        match given.message:
            case SubscriptionAccepted() as accepted if self.state is BackupState.SUBSCRIBING:
                self._accepted(accepted)
            case SubscriptionRefused() as refused:
                self._refused(refused, now)
            case SnapshotChunk() as chunk if self.state is BackupState.JOINING and self._joining is not None:
                self._take_chunk(self._joining, chunk, now)
            case Frames() as frames if self.state in (BackupState.JOINING, BackupState.FOLLOWING):
                self._take_frames(frames)
            case _:
                pass

    def _accepted(self, accepted: SubscriptionAccepted) -> None:
        assert self.copy is not None
        self._link.was_accepted()
        if accepted.snapshot_index and not accepted.is_snapshot_whole and self.is_memory_whole:
            # What it holds is not what the set has, and may be beyond it. As long as others believe in this memory, they do not
            # stand as restarted ones: it takes a new name, and begins again from disk (R5, R12).
            self._note("reload", f"applied {self.copy.state.applied}, the log agrees up to {accepted.agreed}")
            self._leave()
            self.state = BackupState.OPENING
            self._drop_memory()
            return
        if accepted.is_snapshot_whole:
            self._note("whole snapshot", f"at {accepted.snapshot_index}")
            self.copy, self.is_memory_whole = None, False
            self.durable_end = LogIndex(0)
            self._is_installing = True
            self._effects.append(self._store.begin_install(accepted))
        elif accepted.agreed < self.copy.log_end:
            self._note("cut", f"from {self.copy.log_end} to {accepted.agreed}")
            self.copy.cut(accepted.agreed)
            self.durable_end = min(self.durable_end, accepted.agreed)
            self._effects.append(self._store.truncate(accepted.agreed))
        if accepted.snapshot_index:
            self._joining = Joining(accepted, self._settings)
            self.is_memory_whole = False
            self.state = BackupState.JOINING
        else:
            self._note("following", f"from {accepted.agreed}")
            self.state = BackupState.FOLLOWING

    def _take_chunk(self, joining: Joining, chunk: SnapshotChunk, now: Now) -> None:
        joining.take(chunk.items)
        if joining.is_whole:
            durable: tuple[StateItem, ...] = tuple(item for item in chunk.items if item.is_durable)
            if durable:
                self._effects.append(self._store.install(durable))
        if not chunk.is_last:
            # This part is taken: the next may come.
            self._acknowledge(now)
            return
        if joining.is_whole:
            self._effects.append(self._store.end_install())
            self.copy = joining.whole_copy(joining.snapshot_index)
        else:
            assert self.copy is not None
            joining.lay_over(self.copy)
        self._note("memory whole", f"at {joining.snapshot_index}")
        self._joining = None
        self.is_memory_whole = True
        self.state = BackupState.FOLLOWING
        assert self.copy is not None
        self.copy.commit(self.copy.commit_index)
        self._acknowledge(now)

    def _take_frames(self, given: Frames) -> None:
        assert self.copy is not None, "frames follow the whole snapshot"
        fresh: list[bytes] = []
        for durable, transient in given.frames:
            frame = Frame(check_frame(durable), durable, transient)
            if frame.header.last <= self.copy.log_end:
                continue
            self.copy.append(frame)
            fresh.append(durable)
        if fresh:
            self._effects.append(self._store.append(tuple(fresh), given.commit_index))
        if self._joining is None:
            self.copy.commit(min(given.commit_index, self.copy.log_end))

    def _acknowledge(self, now: Now) -> None:
        """Say how far this replica is durable; while its memory is not whole, only that it lives."""
        if self.state in (BackupState.JOINING, BackupState.FOLLOWING):
            log_end = self.durable_end if self._joining is None else LogIndex(0)
            self._effects.append(self._link.acknowledge(log_end, now))

    def _refused(self, refused: SubscriptionRefused, now: Now) -> None:
        self._note("subscription refused", refused.reason)
        if refused.missing_from and self.opened is not None:
            # Told by a member that has it: this disk has lost what was acknowledged on it, as a torn tail never is (R10).
            self._leave()
            self.found_damage = FoundDamage(self.opened.disk, refused.reason)
            self.opened = replace(self.opened, damage=refused.reason)
            self._damaged(refused.reason)
            return
        self._lost_primary(now)

    def _lost_primary(self, now: Now) -> None:
        """The subscription ended: try again, from disk where a snapshot is half there."""
        if self.state not in (BackupState.SUBSCRIBING, BackupState.JOINING, BackupState.FOLLOWING):
            return
        self._leave()
        self._retry_ms = now.boottime_ms + self._settings.retry_ms
        if self._joining is not None and self._joining.is_whole:
            self.state = BackupState.OPENING
        else:
            self._joining = None
            self.state = BackupState.READY

    def _leave(self) -> None:
        if self.state in (BackupState.SUBSCRIBING, BackupState.JOINING, BackupState.FOLLOWING):
            self._effects.append(self._link.close())

    # --- time ---

    def _tick(self, now: Now) -> None:
        self._watch_store(now)
        if self._retry_ms and now.boottime_ms >= self._retry_ms:
            self._retry_ms = 0
            if self.state is BackupState.OPENING:
                self._open()
            elif self.state is BackupState.READY and self.copy is not None:
                if self.copy.log_end <= self.durable_end:
                    self._subscribe(now)
                else:
                    self._retry_ms = now.boottime_ms + self._settings.retry_ms
        elif self.state in (BackupState.SUBSCRIBING, BackupState.JOINING, BackupState.FOLLOWING):
            if silent_ms := self._link.silent_ms(now):
                self._note("primary silent", f"for {silent_ms} ms")
                if self.state is BackupState.SUBSCRIBING:
                    self._link.was_not_answered()
                self._lost_primary(now)
            elif self._link.is_heartbeat_due(now):
                self._acknowledge(now)
        if self.state is BackupState.FOLLOWING and self.copy is not None:
            if self._is_reserve_low:
                self._effects += self._link.refuse_open(self.copy)
            if self._store.told_commit < self.copy.commit_index:
                self._effects.append(self._store.append((), self.copy.commit_index))

    # --- effects ---

    def _note(self, event: str, details: str) -> None:
        self._effects.append(Note(self.set_name, event, details))

    def _take_effects(self) -> list[AnyEffect]:
        effects, self._effects = self._effects, []
        return effects
