"""Following: what a backup does with its primary, from the subscription on (R8).

Law: what is acknowledged is durable here and agrees with the primary's log; what is applied is committed, or lies at or below a
snapshot that this replica joined with. Frames go to the own store as they came, and a log that disagrees is cut there first.
A disk that knows of what the map lacks follows nobody: an epoch of that map may have a number that another one had before.
"""

from collections.abc import Callable, Iterator

from lockstep.core.clock import Now
from lockstep.core.effects import Note, WakeAt
from lockstep.core.frames import BadFrame, Frame, check_frame
from lockstep.core.ids import BrokerId, LogIndex
from lockstep.core.replication import (
    Frames,
    HandedOver,
    SnapshotChunk,
    SubscriptionAccepted,
    SubscriptionRefused,
    ToBackup,
)
from lockstep.core.store_protocol import SetOpened, StateItem
from services.backup.core.backup_memory import BackupMemory, BackupState, LogStanding
from services.backup.core.joining import Joining
from services.backup.core.primary_words import PrimaryWords
from services.backup.core.settings import BackupSettings
from services.backup.core.store_words import StoreWords

PAUSES_BEHIND_BAD_FRAME = 10
"""The next stream is opened so many of the usual pauses later: who sends what is no frame may do so again."""
_TAKES_FRAMES = (BackupState.JOINING, BackupState.FOLLOWING)


class Following:
    """Lives as long as its backup core, which drives it; the own store says when there is something to acknowledge."""

    def __init__(
        self,
        memory: BackupMemory,
        primary: BrokerId | None,
        words: PrimaryWords,
        store: StoreWords,
        settings: BackupSettings,
        standing: Callable[[SetOpened], LogStanding],
    ) -> None:
        """`primary` None: there is nobody to follow. `standing`: as `BackupCore` has it."""
        self._memory = memory
        self._primary = primary
        self._words = words
        self._store = store
        self._settings = settings
        self._standing = standing
        self._kept_back: SetOpened | None = None
        """The disk that may not follow, as it was opened; told once."""
        self.has_joined = False
        """Memory became whole, and the primary was not told yet."""
        self._told_commit = LogIndex(0)
        """What the primary said is committed and is not applied yet; 0: nothing."""

    def subscribe(self, now: Now) -> None:
        """Memory and disk are at hand: ask the primary for what comes behind them."""
        memory = self._memory
        assert memory.copy is not None and memory.opened is not None
        if self._primary is None:
            return
        standing = self._standing(memory.opened)
        if standing is LogStanding.AHEAD:
            if self._kept_back is not memory.opened:
                self._kept_back = memory.opened
                memory.note("kept back", f"etcd lacks what the disk knows: {self._primary} is not followed")
            memory.retry_ms = now.boottime_ms + self._settings.retry_ms
            return
        memory.state = BackupState.SUBSCRIBING
        commit_index = max(memory.copy.commit_index, memory.uncuttable)
        is_ours = standing is LogStanding.OURS
        memory.effects.append(
            self._words.subscribe(
                self._primary, memory.opened.disk, memory.copy, commit_index, memory.is_whole, is_ours, now
            )
        )

    def subscribe_again(self, now: Now) -> None:
        """The pause behind a lost subscription is over; it goes on while the own store still owes frames."""
        memory = self._memory
        if memory.copy is None:
            return
        if memory.copy.log_end <= memory.durable_end:
            self.subscribe(now)
        else:
            memory.retry_ms = now.boottime_ms + self._settings.retry_ms

    def said(self, message: ToBackup, now: Now) -> None:
        """The primary said something in this epoch, on the present stream."""
        self._words.heard(now)
        memory = self._memory
        if isinstance(message, Frames):  # Nearly always.
            if memory.state in _TAKES_FRAMES and (bad := self._take_frames(message)):
                self._leave_who_sends(bad, now)
            return
        match message:
            case SubscriptionAccepted() as accepted if memory.state is BackupState.SUBSCRIBING:
                self._accepted(accepted)
            case SubscriptionRefused() as refused:
                self.refused(refused, now)
            case HandedOver():
                # That it was heard: the primary waits for the end of this stream before it gives its key up.
                self.lost(now)
            case SnapshotChunk() as chunk if (
                memory.state is BackupState.JOINING and memory.joining is not None
            ):
                self._take_chunk(memory.joining, chunk, now)
            case _:
                pass

    # --- the subscription's beginning and end ---

    def _accepted(self, accepted: SubscriptionAccepted) -> None:
        memory = self._memory
        assert memory.copy is not None
        self._words.was_accepted()
        if accepted.snapshot_index and not accepted.is_snapshot_whole and memory.is_whole:
            # What it holds is not what the set has, and may be beyond it. As long as others believe in this memory, they do not
            # stand as restarted ones: it takes a new name, and begins again from disk (R5, R12).
            memory.note(
                "reload", f"applied {memory.copy.state.applied}, the log agrees up to {accepted.agreed}"
            )
            self.leave()
            memory.state = BackupState.OPENING
            memory.drop()
            return
        if accepted.is_snapshot_whole:
            memory.note("whole snapshot", f"at {accepted.snapshot_index}")
            memory.lose()
            memory.durable_end = memory.uncuttable = LogIndex(0)
            memory.is_installing = True
            memory.effects.append(self._store.begin_install(accepted))
        elif accepted.agreed < memory.copy.log_end:
            memory.note("cut", f"from {memory.copy.log_end} to {accepted.agreed}")
            memory.copy.cut(accepted.agreed)
            memory.durable_end = min(memory.durable_end, accepted.agreed)
            memory.effects.append(self._store.truncate(accepted.agreed))
        if accepted.snapshot_index:
            memory.joining = Joining(accepted, self._settings)
            memory.is_whole = False
            memory.state = BackupState.JOINING
        else:
            memory.note("following", f"from {accepted.agreed}")
            memory.state = BackupState.FOLLOWING

    def refused(self, refused: SubscriptionRefused, now: Now) -> None:
        """The primary does not take this replica, or there is none."""
        memory = self._memory
        memory.note("subscription refused", refused.reason)
        if refused.missing_from and memory.opened is not None:
            # Told by a member that has it: this disk has lost what was acknowledged on it, as a torn tail never is (R10).
            self.leave()
            memory.find_damage(refused.reason)
            return
        self.lost(now)

    def lost(self, now: Now) -> None:
        """The subscription ended: try again, from disk where a snapshot is half there."""
        memory = self._memory
        if not memory.is_subscribed:
            return
        self.leave()
        memory.retry_ms = now.boottime_ms + self._settings.retry_ms
        if memory.joining is not None and memory.joining.is_half_there:
            memory.state = BackupState.OPENING
        else:
            memory.stop_joining()
            memory.state = BackupState.READY

    def leave(self) -> None:
        """Close the stream, if there is one; the state that follows is the caller's."""
        if self._memory.is_subscribed:
            self._memory.effects.append(self._words.close())

    # --- what the primary sends ---

    def _take_chunk(self, joining: Joining, chunk: SnapshotChunk, now: Now) -> None:
        memory = self._memory
        joining.take(chunk.items)
        durable: tuple[StateItem, ...] = ()
        if joining.is_whole:
            durable = tuple(item for item in chunk.items if item.is_durable)
            if durable:
                memory.effects.append(self._store.install(durable))
        if not chunk.is_last:
            if not durable:
                self.part_taken(now)
            return
        if joining.is_whole:
            memory.effects.append(self._store.end_install())
        memory.pieces.begin(self._become_whole(joining))
        memory.pieces.go_on()
        if memory.joining is joining:
            self.acknowledge(now)

    def _become_whole(self, joining: Joining) -> Iterator[int]:
        """Make the memory of what has come, unless that is void meanwhile."""
        memory = self._memory
        for cost in joining.settle(memory.copy):
            yield cost
            if memory.joining is not joining or memory.state is not BackupState.JOINING:
                return
        if joining.is_whole:
            memory.have(joining.whole_copy())
        memory.note("memory whole", f"at {joining.snapshot_index}")
        memory.joining = None
        memory.is_whole = True
        memory.state = BackupState.FOLLOWING
        self.has_joined = True
        for held in joining.held:
            if bad := self._take_frames(held):
                raise bad
        yield from memory.apply(None)

    def part_taken(self, now: Now) -> None:
        """A part of a snapshot is in memory and, as far as it is durable, in the own store: the next may come."""
        if self._memory.state is BackupState.JOINING:
            self.acknowledge(now)

    def _leave_who_sends(self, bad: BadFrame, now: Now) -> None:
        """What is here is good, and what came behind it is not, perhaps only on this stream: it is sent again on the next."""
        memory = self._memory
        assert memory.copy is not None, "what came was to go on with it"
        details = (
            f"of {self._primary} in epoch {self._words.epoch}, behind index {memory.copy.log_end}: {bad}"
        )
        memory.effects.append(Note(memory.set_name, "bad frame", details, is_warning=True))
        self.lost(now)
        memory.retry_ms = now.boottime_ms + PAUSES_BEHIND_BAD_FRAME * self._settings.retry_ms

    def _take_frames(self, given: Frames) -> BadFrame | None:
        """Take frames up to the first that is none or does not follow; answers what is wrong with that one."""
        memory = self._memory
        if memory.joining is not None and memory.joining.is_whole:
            assert memory.joining.is_settling, "frames follow the whole snapshot"
            memory.joining.held.append(given)
            return None
        copy = memory.copy
        assert copy is not None
        bad: BadFrame | None = None
        fresh: list[bytes] = []
        log_end = copy.log_end
        try:
            for durable, transient in given.frames:
                header = check_frame(durable)
                if header.last > log_end:
                    copy.append(Frame(header, durable, transient))
                    fresh.append(durable)
                    log_end = header.last
        except BadFrame as error:
            bad = error
        if memory.joining is None:
            self._told_commit = min(given.commit_index, log_end)
        if fresh:
            memory.effects.append(self._store.append(tuple(fresh), given.commit_index))
        else:
            self.apply_told()
        return bad

    def apply_told(self) -> None:
        """Apply what the primary said is committed: when the frames that came with it are durable, for clients wait for those."""
        told, self._told_commit = self._told_commit, LogIndex(0)
        memory = self._memory
        if told and memory.copy is not None:
            copy, between = memory.copy, self._settings.between
            copy.learn(told)
            cost_max = self._settings.piece_cost
            if memory.pieces.works or not copy.apply_at_once(copy.commit_index, cost_max, between):
                memory.pieces.begin(memory.apply(between))
                memory.pieces.go_on()

    # --- what the primary hears ---

    def tell_joined(self, now: Now) -> None:
        """Say that memory is whole now."""
        self.has_joined = False
        self.acknowledge(now)

    def acknowledge(self, now: Now) -> None:
        """Say how far this replica is durable; while its memory is not whole, only that it lives."""
        memory = self._memory
        if memory.state in _TAKES_FRAMES:
            log_end = memory.durable_end if memory.joining is None else LogIndex(0)
            memory.effects.append(self._words.acknowledge(log_end, now))
            if self._told_commit:
                memory.effects.append(WakeAt(memory.set_name, now.boottime_ms))

    def mind_silence(self, now: Now) -> None:
        """Leave a primary that is silent for too long; let it know that this replica lives."""
        memory = self._memory
        if not memory.is_subscribed:
            return
        if silent_ms := self._words.silent_ms(now):
            memory.note("primary silent", f"for {silent_ms} ms")
            if memory.state is BackupState.SUBSCRIBING:
                self._words.was_not_answered()
            self.lost(now)
        elif self._words.is_heartbeat_due(now):
            self.acknowledge(now)

    def refuse_open(self) -> None:
        """Vote no on what is open while the own disk is nearly full."""
        memory = self._memory
        if memory.state is BackupState.FOLLOWING and memory.copy is not None and memory.is_reserve_low:
            memory.effects += self._words.refuse_open(memory.copy)
