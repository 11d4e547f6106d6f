"""The backup's own store: opening it, loading from it or bringing it up to the memory, and what it says of the disk.

Law: the store is fenced at the epoch before anything is said in it (R2). Memory that outlived the stream to it is gone on with
only where the two agree on all that the disk knows to be committed; anything else is loaded anew.
"""

from msgspec.structs import replace

from lockstep.core.clock import Now
from lockstep.core.effects import TakeApart, TellStore
from lockstep.core.epoch_table import agreement
from lockstep.core.ids import Epoch, Incarnation, LogIndex
from lockstep.core.log_copy import LogCopy
from lockstep.core.owed_frames import OwedFrames
from lockstep.core.store_protocol import (
    AnyStoreAnswer,
    Appended,
    Installed,
    ItemsInstalled,
    SetOpened,
    StateChunk,
    StateLoaded,
    StoreRefused,
    Truncated,
)
from services.backup.core.backup_memory import BackupMemory, BackupState
from services.backup.core.following import Following
from services.backup.core.loading import Loading
from services.backup.core.settings import BackupSettings
from services.backup.core.store_watch import StoreWatch
from services.backup.core.store_words import StoreWords


class OwnStore:
    """Lives as long as its backup core, which drives it; subscribes to the primary when memory and disk are at hand."""

    def __init__(
        self,
        epoch: Epoch,
        incarnation: Incarnation,
        memory: BackupMemory,
        following: Following,
        words: StoreWords,
        settings: BackupSettings,
    ) -> None:
        self._epoch = epoch
        self._incarnation = incarnation
        self._memory = memory
        self._following = following
        self._words = words
        self._settings = settings
        self._watch = StoreWatch(settings)
        self.loading: Loading | None = None
        """What the store gives back of the disk, on its way into memory."""
        self._not_loaded_before = ""
        """What was wrong with what the disk gave back, since something was loaded; "": nothing."""
        self._owed: OwedFrames | None = None
        """While it is sent what it lacks."""

    # --- opening ---

    def open(self) -> None:
        """Become the store's writer in this epoch; it answers with its log's end."""
        memory = self._memory
        if self.loading is not None or (memory.joining is not None and memory.joining.is_half_there):
            memory.have(None)
        if memory.joining is not None:
            memory.is_whole = False
        memory.stop_joining()
        self.stop_loading()
        self._owed = None
        memory.state = BackupState.OPENING
        memory.retry_ms = 0
        memory.effects.append(self._words.open())

    def stop_loading(self) -> None:
        """What it gives back of the disk is void, if that is on its way."""
        if self.loading is not None:
            self.loading.give_up()
            self._memory.effects.append(TakeApart(self._memory.set_name, self.loading.take_apart()))
            self.loading = None

    def lost(self) -> None:
        """The stream to it is gone; it is opened when there is another."""
        self._following.leave()
        self._memory.state = BackupState.OPENING
        self._memory.retry_ms = 0

    def set_aside(self) -> None:
        """Begin again with a new disk in place of the damaged one."""
        memory = self._memory
        assert memory.opened is not None, "the store has said which disk is damaged"
        memory.lose()
        memory.state = BackupState.OPENING
        memory.effects.append(self._words.set_aside(memory.opened.disk))

    def accept_damage(self) -> None:
        """Go on with what the damage left."""
        memory, found = self._memory, self._memory.found_damage
        memory.note("damage accepted", memory.opened.damage if memory.opened is not None else "")
        memory.state, memory.found_damage = BackupState.OPENING, None
        memory.effects.append(self._words.accept_damage(found))

    # --- what it says ---

    def said(self, answer: AnyStoreAnswer, now: Now) -> None:
        """Take an answer; those to another memory, or in another epoch, are ignored."""
        if answer.incarnation != self._incarnation or answer.epoch != self._epoch:
            return
        memory = self._memory
        if isinstance(answer, Appended):  # Nearly always.
            if memory.state is not BackupState.OPENING:
                memory.is_reserve_low = answer.free_bytes < self._settings.reserve_bytes
                self._durable(answer.log_end, now)
            return
        match answer:
            case SetOpened():
                self._opened(answer, now)
            case StateChunk() if self.loading is not None:
                self.loading.take(answer)
                self._load(self.loading)
            case StateLoaded() if self.loading is not None:
                self.loading.took_all(answer.log_end)
                self._load(self.loading)
            case Installed() if memory.state is not BackupState.OPENING:
                memory.is_installing = False
                memory.uncuttable = answer.log_end
                self._durable(answer.log_end, now)
            case ItemsInstalled():
                self._following.part_taken(now)
            case Truncated():
                pass
            case StoreRefused():
                self._refused(answer, now)
            case _:
                pass

    def _load(self, loading: Loading) -> None:
        self._memory.pieces.begin(loading.work())
        self._memory.pieces.go_on()

    def take_loaded(self, now: Now) -> None:
        """What is loaded, once it is, becomes this replica's memory; the disk is at hand unless the store was lost meanwhile."""
        memory, loading = self._memory, self.loading
        if loading is not None and loading.failure:
            self._not_loaded(loading.failure, loading.failed_from, now)
        elif loading is not None and loading.is_done:
            copy = loading.finish()
            self.loading, self._not_loaded_before = None, ""
            memory.have(copy)
            memory.note("loaded", f"log end {copy.log_end}, applied {copy.state.applied}")
            if memory.state is BackupState.LOADING:
                self._ready(now)

    def _not_loaded(self, failure: str, first: LogIndex, now: Now) -> None:
        """What the disk gives back is no memory. Once that may be a fault of this process; so all of it is read anew, and what is
        no good again is damage (R10).
        """
        memory, before = self._memory, self._not_loaded_before
        self.stop_loading()
        memory.note("not loaded", failure)
        if memory.state is not BackupState.LOADING:
            return  # The store was lost meanwhile.
        if before:
            memory.find_damage(f"what the disk has cannot be loaded: {failure}", True, first)
        else:
            self._not_loaded_before = failure
            self._reopen_later(now)

    def _opened(self, opened: SetOpened, now: Now) -> None:
        memory = self._memory
        if memory.state is not BackupState.OPENING:
            return
        same_disk = memory.opened is None or memory.opened.disk == opened.disk
        found = memory.found_damage
        if found is not None and found.disk != opened.disk:
            memory.found_damage = None
        elif found is not None and not opened.damage:
            opened = replace(opened, damage=found.reason, is_unusable=found.is_unusable)
        memory.opened, memory.fenced_at = opened, Epoch(0)
        if opened.damage:
            memory.become_damaged(opened.damage)
            return
        if not same_disk and memory.copy is not None:
            memory.note("new disk", f"{opened.disk}: the memory is dropped")
            memory.drop()
        memory.durable_end = opened.log_end
        memory.uncuttable = max(opened.commit_index, opened.snapshot_index)
        self._watch.took(now)
        memory.is_installing = False
        if memory.copy is None:
            memory.is_whole = False
            memory.state = BackupState.LOADING
            self.loading = Loading(
                memory.set_name, opened.commit_index, opened.log_end, opened.reigns, self._settings
            )
            memory.effects.append(self._words.load())
            return
        self._reconcile(memory.copy, opened, now)

    def _reconcile(self, copy: LogCopy, opened: SetOpened, now: Now) -> None:
        """Memory outlived the stream to the store: the store is cut where it missed a cut, and gets again what it lacks."""
        memory = self._memory
        agreed = agreement(copy.outline(), opened.outline)
        frames = copy.frames_after(agreed)
        first = frames[0].header.first if frames else LogIndex(copy.log_end + 1)
        if agreed < memory.uncuttable or first > agreed + 1:
            memory.note("reload", f"disk ends at {opened.log_end}, memory at {copy.log_end}, agreed {agreed}")
            memory.drop()
            self._opened(opened, now)
            return
        memory.durable_end = agreed
        if agreed < opened.log_end:
            memory.effects.append(self._words.truncate(agreed))
        if not frames:
            self._ready(now)
            return
        memory.state, self._owed = BackupState.SENDING, OwedFrames(frames)
        self._send_owed(copy, self._owed)

    def _send_owed(self, copy: LogCopy, owed: OwedFrames) -> None:
        if parts := owed.request(self._memory.durable_end):
            self._memory.effects.append(self._words.append(parts, copy.commit_index))

    def _durable(self, log_end: LogIndex, now: Now) -> None:
        memory = self._memory
        self._watch.took(now)
        if log_end > memory.durable_end:
            memory.durable_end = log_end
            self._watch.is_well()
        if memory.state is BackupState.SENDING and memory.copy and self._owed is not None:
            if memory.durable_end >= memory.copy.log_end:
                self._ready(now)
            else:
                self._send_owed(memory.copy, self._owed)
        self._following.acknowledge(now)

    def _ready(self, now: Now) -> None:
        self._memory.state, self._owed = BackupState.READY, None
        self._watch.is_well()
        self._memory.retry_ms = 0
        self._following.subscribe(now)

    def _refused(self, refused: StoreRefused, now: Now) -> None:
        self._memory.note("store refused", f"{refused.code.name}: {refused.message}")
        if refused.highest_epoch > self._epoch:
            self._memory.fenced_at = refused.highest_epoch
        self._watch.refused(now)
        self._reopen_later(now)

    def _reopen_later(self, now: Now) -> None:
        self._following.leave()
        self._memory.state = BackupState.OPENING
        self._memory.retry_ms = now.boottime_ms + 10 * self._settings.retry_ms

    # --- time ---

    def watch(self, now: Now) -> None:
        """Give the subscription up when the store hangs, and in the end the memory when it refuses."""
        memory, copy = self._memory, self._memory.copy
        if copy is None:
            return
        is_owing = copy.log_end > memory.durable_end and not memory.is_installing
        if not is_owing or memory.state not in (BackupState.JOINING, BackupState.FOLLOWING):
            self._watch.took(now)
        elif self._watch.is_silent(now):
            memory.note("store silent", f"durable up to {memory.durable_end}, sent up to {copy.log_end}")
            self._reopen_later(now)
        if self._watch.is_hopeless(now):
            memory.note("memory given up", "the own store refuses")
            self._reopen_later(now)
            memory.drop()

    def tell_commit(self) -> None:
        """Let it know the commit index when nothing else does."""
        memory = self._memory
        if memory.state is not BackupState.FOLLOWING or memory.copy is None:
            return
        if self._words.told_commit < memory.copy.commit_index:
            memory.effects.append(self.tell_committed(memory.copy.commit_index))

    def tell_committed(self, commit_index: LogIndex) -> TellStore:
        """Let it know that so much is."""
        return self._words.append((), commit_index)
