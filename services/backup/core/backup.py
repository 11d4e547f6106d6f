"""The backup role of one resource set in one epoch: opens the own store, loads what it holds, follows the primary's log.

Law: what is acknowledged is durable here and agrees with the primary's log; what is applied is committed, or lies at or below a
snapshot that this replica joined with. The store is fenced at the epoch before anything is said in it (R2).

    opening -> loading -> sending (to the own store) -> ready <-> subscribing -> joining -> following
    any --the own store is lost--> opening
    opening --the disk is damaged--> damaged
"""

from enum import Enum

from lockstep.core.clock import Now
from lockstep.core.effects import (
    AnyEffect,
    CloseSubscription,
    Note,
    OpenSubscription,
    TellPrimary,
    TellStore,
)
from lockstep.core.frames import Frame, check_frame
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName, TransactionKey
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
    Acknowledge,
    Frames,
    Refuse,
    SnapshotChunk,
    Subscribe,
    SubscriptionAccepted,
    SubscriptionRefused,
)
from lockstep.core.store_protocol import (
    AnyStoreAnswer,
    AnyStoreRequest,
    Appended,
    AppendFrames,
    BeginInstall,
    EndInstall,
    Installed,
    InstallItems,
    LoadState,
    OpenSet,
    SetAside,
    SetOpened,
    StateChunk,
    StateItem,
    StateLoaded,
    StoreRefused,
    Truncate,
    Truncated,
)
from services.backup.core.joining import Joining
from services.backup.core.loading import Loading
from services.backup.core.settings import BackupSettings


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
        self.durable_end = LogIndex(0)
        self._loading: Loading | None = None
        self._joining: Joining | None = None
        self.stream = first_stream
        """Number of the present or last subscription."""
        self._heard_ms = 0
        self._said_ms = 0
        self._retry_ms = 0
        self._patience_ms = settings.heartbeat_ms * settings.heartbeat_misses
        """How long the present or next subscription waits for its answer."""
        self._is_installing = False
        self._progress_ms = 0
        """When the store last had everything, or had more than before."""
        self._refused_since_ms: int | None = None
        """Since when the store has refused what it has to take before this replica may stand."""
        self._told_commit = LogIndex(0)
        self._is_reserve_low = False
        self._refused_transactions: set[TransactionKey] = set()
        self._effects: list[AnyEffect] = []

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
                self._heard_ms = now.boottime_ms
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
        self._tell_store(SetAside(self.set_name, self.epoch, self._incarnation))
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
        self._tell_store(OpenSet(self.set_name, self.epoch, self._incarnation))

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
        self._progress_ms = now.boottime_ms
        self._refused_since_ms = None
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
        self.opened = opened
        if opened.damage:
            self._damaged(opened.damage)
            return
        if not same_disk and self.copy is not None:
            self._note("new disk", f"{opened.disk}: the memory is dropped")
            self._drop_memory()
        self.durable_end = opened.log_end
        self._progress_ms = now.boottime_ms
        self._is_installing = False
        if self.copy is None:
            self.is_memory_whole = False
            self.state = BackupState.LOADING
            self._loading = Loading(self.set_name, opened.commit_index, self._settings.retained_bytes_max)
            self._tell_store(LoadState(self.set_name, self.epoch, self._incarnation))
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
            self._tell_store(Truncate(self.set_name, self.epoch, self._incarnation, agreed))
        if not frames:
            self._ready(now)
            return
        self.state = BackupState.SENDING
        self._append(tuple(frame.durable for frame in frames))

    def _damaged(self, damage: str) -> None:
        self._drop_memory()
        self.state = BackupState.DAMAGED
        self._note("damaged", damage)

    def _drop_memory(self) -> None:
        self.has_lost_memory = self.has_lost_memory or self.copy is not None
        self.copy, self.is_memory_whole = None, False

    def _store_refused(self, refused: StoreRefused, now: Now) -> None:
        self._note("store refused", f"{refused.code.name}: {refused.message}")
        if self._refused_since_ms is None:
            self._refused_since_ms = now.boottime_ms
        self._reopen_later(now)

    def _reopen_later(self, now: Now) -> None:
        self._leave()
        self.state = BackupState.OPENING
        self._retry_ms = now.boottime_ms + 10 * self._settings.retry_ms

    def _watch_store(self, now: Now) -> None:
        """Give the subscription up when the store hangs, and in the end the memory when it refuses."""
        settings, copy = self._settings, self.copy
        if copy is None:
            return
        is_owing = copy.log_end > self.durable_end and not self._is_installing
        if self.state in (BackupState.JOINING, BackupState.FOLLOWING) and is_owing:
            if now.boottime_ms - self._progress_ms > settings.store_patience_ms:
                self._note("store silent", f"durable up to {self.durable_end}, sent up to {copy.log_end}")
                self._reopen_later(now)
        else:
            self._progress_ms = now.boottime_ms
        refused_since = self._refused_since_ms
        if refused_since is not None and now.boottime_ms - refused_since > settings.memory_patience_ms:
            self._note("memory given up", "the own store refuses")
            self._reopen_later(now)
            self._drop_memory()

    # --- the primary ---

    def _ready(self, now: Now) -> None:
        self.state = BackupState.READY
        self._refused_since_ms = None
        self._retry_ms = 0
        self._subscribe(now)

    def _subscribe(self, now: Now) -> None:
        assert self.copy is not None and self.opened is not None
        if self._primary is None:
            return
        self.stream += 1
        self.state = BackupState.SUBSCRIBING
        self._heard_ms = self._said_ms = now.boottime_ms
        subscribe = Subscribe(
            self.set_name,
            self.epoch,
            self._broker,
            self.opened.disk,
            self._incarnation,
            self.copy.log_end,
            self.copy.epochs(),
            max(self.copy.commit_index, self.opened.commit_index),
            self.is_memory_whole,
            self.copy.state.applied,
        )
        self._effects.append(OpenSubscription(self.set_name, self.stream, self._primary, subscribe))

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
        self._patience_ms = self._settings.heartbeat_ms * self._settings.heartbeat_misses
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
            self._tell_store(
                BeginInstall(
                    self.set_name,
                    self.epoch,
                    self._incarnation,
                    accepted.snapshot_index,
                    accepted.epochs,
                    accepted.time_ms,
                )
            )
        elif accepted.agreed < self.copy.log_end:
            self._note("cut", f"from {self.copy.log_end} to {accepted.agreed}")
            self.copy.cut(accepted.agreed)
            self.durable_end = min(self.durable_end, accepted.agreed)
            self._tell_store(Truncate(self.set_name, self.epoch, self._incarnation, accepted.agreed))
        if accepted.snapshot_index:
            self._joining = Joining(accepted)
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
                self._tell_store(InstallItems(self.set_name, self.epoch, self._incarnation, durable))
        if not chunk.is_last:
            return
        if joining.is_whole:
            self._tell_store(EndInstall(self.set_name, self.epoch, self._incarnation))
            self.copy = joining.whole_copy(joining.snapshot_index, self._settings.retained_bytes_max)
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
            self._append(tuple(fresh), given.commit_index)
        if self._joining is None:
            self.copy.commit(min(given.commit_index, self.copy.log_end))

    def _acknowledge(self, now: Now) -> None:
        """Say how far this replica is durable; while its memory is not whole, only that it lives."""
        if self.state in (BackupState.JOINING, BackupState.FOLLOWING):
            self._said_ms = now.boottime_ms
            log_end = self.durable_end if self._joining is None else LogIndex(0)
            self._effects.append(
                TellPrimary(
                    self.set_name,
                    self.stream,
                    Acknowledge(self.set_name, self.epoch, self._broker, self._incarnation, log_end),
                )
            )

    def _refused(self, refused: SubscriptionRefused, now: Now) -> None:
        self._note("subscription refused", refused.reason)
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
            self._effects.append(CloseSubscription(self.set_name, self.stream))

    # --- time ---

    def _tick(self, now: Now) -> None:
        settings = self._settings
        self._watch_store(now)
        if self._retry_ms and now.boottime_ms >= self._retry_ms:
            self._retry_ms = 0
            if self.state is BackupState.OPENING:
                self._open()
            elif self.state is BackupState.READY and self.copy is not None:
                if self.copy.log_end <= self.durable_end:
                    self._subscribe(now)
                else:
                    self._retry_ms = now.boottime_ms + settings.retry_ms
        elif self.state in (BackupState.SUBSCRIBING, BackupState.JOINING, BackupState.FOLLOWING):
            if now.boottime_ms - self._heard_ms > self._patience_ms:
                self._note("primary silent", f"for {now.boottime_ms - self._heard_ms} ms")
                if self.state is BackupState.SUBSCRIBING:
                    self._patience_ms = min(2 * self._patience_ms, settings.subscribe_patience_ms_max)
                self._lost_primary(now)
            elif now.boottime_ms - self._said_ms >= settings.heartbeat_ms:
                self._acknowledge(now)
        if self.state is BackupState.FOLLOWING and self._is_reserve_low:
            self._refuse_open()
        if (
            self.state is BackupState.FOLLOWING
            and self.copy is not None
            and self._told_commit < self.copy.commit_index
        ):
            self._append((), self.copy.commit_index)

    def _refuse_open(self) -> None:
        """Vote no on every open transaction that brings content: its `prepare` could find no place here (DESIGN 3)."""
        assert self.copy is not None
        for buffer in self.copy.state.transactions.open():
            if buffer.publishes and buffer.key not in self._refused_transactions:
                self._refused_transactions.add(buffer.key)
                refuse = Refuse(
                    self.set_name,
                    self.epoch,
                    self._broker,
                    self._incarnation,
                    buffer.key,
                    "the store's reserve is exhausted",
                )
                self._effects.append(TellPrimary(self.set_name, self.stream, refuse))

    # --- effects ---

    def _append(self, frames: tuple[bytes, ...], commit_index: LogIndex | None = None) -> None:
        assert self.copy is not None
        self._told_commit = commit_index if commit_index is not None else self.copy.commit_index
        self._tell_store(
            AppendFrames(self.set_name, self.epoch, self._incarnation, frames, self._told_commit)
        )

    def _tell_store(self, request: AnyStoreRequest) -> None:
        self._effects.append(TellStore(self.set_name, request))

    def _note(self, event: str, details: str) -> None:
        self._effects.append(Note(self.set_name, event, details))

    def _take_effects(self) -> list[AnyEffect]:
        effects, self._effects = self._effects, []
        return effects
