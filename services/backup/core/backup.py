"""The backup role of one resource set in one epoch: opens the own store, loads what it holds, follows the primary's log.

Law: it hears the store and the primary on the present stream, in this epoch, and nobody else. Its states are those of
`backup_memory`; `own_store` and `following` are what it does in them.
"""

from collections.abc import Callable

from lockstep.core.clock import Now
from lockstep.core.cluster_map import SetMap
from lockstep.core.effects import AnyEffect
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.inputs import (
    AnyInput,
    PrimarySaid,
    PrimaryStreamClosed,
    StoreConnected,
    StoreLost,
    StoreSaid,
    Tick,
    Woken,
)
from lockstep.core.log_copy import LogCopy
from lockstep.core.replication import Frames, SubscriptionRefused
from lockstep.core.store_protocol import Appended, SetOpened
from services.backup.core.backup_memory import BackupMemory, BackupState, FoundDamage, LogStanding
from services.backup.core.following import Following
from services.backup.core.own_store import OwnStore
from services.backup.core.primary_words import PrimaryWords
from services.backup.core.settings import BackupSettings
from services.backup.core.store_words import StoreWords


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
        standing: Callable[[SetOpened], LogStanding],
        found_damage: FoundDamage | None = None,
    ) -> None:
        """`primary` None: nobody to follow (the map names this broker itself, or nobody yet); then it only loads.

        `copy` None: memory is to be loaded from disk. `first_stream`: number for the first subscription; later ones count on.
        `standing`: of a disk that was opened so; asked again while it may not follow.
        `found_damage`: what an earlier core was told of the disk.
        """
        self.set_name = set_name
        self.broker = broker
        self.epoch = epoch
        self.memory = BackupMemory(set_name, copy, is_memory_whole, settings.piece_cost)
        self.memory.found_damage = found_damage
        if copy is not None and copy.is_amid_frame:
            self.memory.pieces.begin(self.memory.apply(None))
        store = StoreWords(set_name, epoch, incarnation)
        self._words = PrimaryWords(set_name, epoch, broker, incarnation, first_stream, settings)
        self._following = Following(self.memory, primary, self._words, store, settings, standing)
        self._store = OwnStore(epoch, incarnation, self.memory, self._following, store, settings)

    @property
    def state(self) -> BackupState:
        return self.memory.state

    @property
    def copy(self) -> LogCopy | None:
        """The memory; None while there is none."""
        return self.memory.copy

    @property
    def is_memory_whole(self) -> bool:
        """The memory holds the non-durable state too (R12)."""
        return self.memory.is_whole

    @property
    def has_lost_memory(self) -> bool:
        """Memory that others may believe in is gone: the replica takes a new incarnation, with a new core."""
        return self.memory.has_been_lost

    @property
    def opened(self) -> SetOpened | None:
        """What the store said of the disk."""
        return self.memory.opened

    @property
    def disk(self) -> DiskId | None:
        opened = self.memory.opened
        return opened.disk if opened is not None else None

    @property
    def durable_end(self) -> LogIndex:
        return self.memory.durable_end

    @property
    def found_damage(self) -> FoundDamage | None:
        """Of the own disk, once it was told; the replica hands it on to its next core."""
        return self.memory.found_damage

    @property
    def stream(self) -> int:
        """Number of the present or last subscription."""
        return self._words.stream

    @property
    def is_loaded(self) -> bool:
        """Memory and disk hold the same log, and no snapshot is half there: this replica may stand for promotion."""
        return self.memory.is_loaded

    @property
    def heard_ms(self) -> int:
        """When the primary said something last, on CLOCK_BOOTTIME; 0: never."""
        return self._words.heard_ms

    @property
    def fenced_at(self) -> Epoch:
        """The epoch above this one that the own store has seen, and for which it does not open; 0: none."""
        return self.memory.fenced_at

    @property
    def can_stand_unrestarted(self) -> bool:
        """Its memory holds everything, the non-durable state too."""
        return self.memory.is_whole and self.memory.joining is None

    def begin(self, now: Now) -> list[AnyEffect]:
        """Open the own store in this epoch."""
        self._store.open()
        return self.memory.take_effects()

    def handle(self, given: AnyInput, now: Now) -> list[AnyEffect]:
        """Take one input; returns effects to perform in order."""
        memory = self.memory
        # Of every frame come one word of the primary and one of the store: they are told apart at the least cost.
        if isinstance(given, PrimarySaid):
            message = given.message
            if not isinstance(message, Frames):
                self._following.apply_told()
            if given.stream == self._words.stream:
                if message.epoch == self.epoch:
                    self._following.said(message, now)
                elif isinstance(message, SubscriptionRefused):
                    self._following.refused(message, now)
        elif isinstance(given, StoreSaid):
            if not isinstance(given.answer, Appended):
                self._following.apply_told()
            self._store.said(given.answer, now)
        else:
            self._following.apply_told()
            self._hear(given, now)
        # What is asked of most is asked here.
        if self._store.loading is not None:
            self._store.take_loaded(now)
        if self._following.has_joined:
            self._following.tell_joined(now)
        is_trimming = False
        if memory.copy is not None and (memory.joining is None or not memory.joining.is_settling):
            is_trimming = memory.copy.bodies.trim(memory.durable_end)
            clearing = memory.copy.state.clearing
            if clearing.queues and (turns := clearing.turns()) is not None:
                memory.pieces.begin(turns)
        if memory.pieces.works or is_trimming:
            memory.effects += memory.pieces.ask(self.set_name, now, is_trimming)
        return memory.take_effects()

    def _hear(self, given: AnyInput, now: Now) -> None:
        """All else than words of the primary and of the store."""
        match given:
            case StoreConnected():
                self._following.leave()
                self._store.open()
            case StoreLost():
                self._store.lost()
            case PrimaryStreamClosed() if given.stream == self.stream:
                self._following.lost(now)
            case Tick():
                self._tick(now)
            case Woken() if self.memory.pieces.works:
                self.memory.pieces.go_on()
            case _:
                pass

    def _tick(self, now: Now) -> None:
        memory = self.memory
        self._store.watch(now)
        if memory.retry_ms and now.boottime_ms >= memory.retry_ms:
            memory.retry_ms = 0
            if memory.state is BackupState.OPENING:
                self._store.open()
            elif memory.state is BackupState.READY:
                self._following.subscribe_again(now)
        else:
            self._following.mind_silence(now)
        self._following.refuse_open()
        self._store.tell_commit()

    def end(self) -> list[AnyEffect]:
        """Another role or epoch follows."""
        memory = self.memory
        self._following.apply_told()
        self._following.leave()
        if memory.is_settling:
            # A part of it, which nobody can go on with.
            memory.lose()
        memory.void_joining()
        self._store.stop_loading()
        # They would live on in what they refer to: a state is cleared by nobody while one is that clears it.
        memory.pieces.give_up()
        return memory.take_effects()

    def end_by_fault(self) -> list[AnyEffect]:
        """It has raised: the stream to the primary ends, and the memory is nobody's. The store is let know what is committed of
        the log that it has, for all of that is to be read anew. One that is being opened may have another: it missed a cut.
        """
        memory = self.memory
        memory.take_effects()
        memory.effects.append(self._words.close())
        if memory.copy is not None and memory.state is not BackupState.OPENING:
            committed = min(memory.copy.commit_index, memory.durable_end)
            memory.effects.append(self._store.tell_committed(committed))
        self._store.stop_loading()
        memory.void_joining()
        memory.have(None)
        return memory.take_effects()

    def drop_memory(self) -> list[AnyEffect]:
        """Nobody takes the memory over that this role leaves behind."""
        self.memory.have(None)
        return self.memory.take_effects()

    def may_set_aside(self, set_map: SetMap, lease_holder: Incarnation | None) -> bool:
        """Whether the disk is damaged, and nobody counts on it any more (R10).

        Nor is it counted on below the minimum, while another leads: there it stays in the map until it is replaced, which its own
        new disk may do (R4); but one whose bytes are whole, and no good to this version, stays: no other may
        be able to use them. The last member never leaves.
        """
        opened = self.memory.opened
        if self.memory.state is not BackupState.DAMAGED or opened is None:
            return False
        is_led_by_other = set_map.primary != self.broker and lease_holder == set_map.primary_incarnation
        is_stuck = is_led_by_other and len(set_map.in_sync) <= set_map.min_in_sync
        return (is_stuck and not opened.is_unusable) or not set_map.names_disk(opened.disk)

    def set_aside(self) -> list[AnyEffect]:
        """The damaged disk may go: begin again with a new one (R10)."""
        assert self.memory.state is BackupState.DAMAGED and self.memory.opened is not None
        self.memory.note("set aside", self.memory.opened.damage)
        self._store.set_aside()
        return self.memory.take_effects()

    def accept_damage(self) -> list[AnyEffect]:
        """An operator accepts what the damage took (R7): go on with what is left."""
        assert self.memory.state is BackupState.DAMAGED
        self._store.accept_damage()
        return self.memory.take_effects()
