"""Replicas on a bench: an honest store in memory, and a primary or a backup core that is driven by hand.

Law: the store does what `store_protocol.py` says, at once and in order; what it answered survives the loss of its stream. A test
decides what is lost: a stream to the store that is down swallows requests, and every other message is handed over by the test.
"""

from collections import deque
from typing import TypeVar

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.effects import (
    AnyEffect,
    Note,
    OpenSubscription,
    PromoteSelf,
    RestoreLeaseKey,
    SwapMap,
    TakeApart,
    TellBackup,
    TellPrimary,
    TellStore,
    WakeAt,
)
from lockstep.core.epoch_table import UNKNOWN_REIGN, EpochStarts, EpochTable, LogOutline, Reigns
from lockstep.core.errors import ErrorCode
from lockstep.core.frames import Frame, check_frame, encode_frame
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName, TimeMs
from lockstep.core.inputs import (
    AnyInput,
    BackupSaid,
    LeaseExtended,
    LeaseKeySeen,
    MapSeen,
    PresencesSeen,
    PrimarySaid,
    StoreConnected,
    StoreLost,
    StoreSaid,
    SwapAnswered,
    Tick,
    Verdict,
    Woken,
)
from lockstep.core.log_copy import LogCopy
from lockstep.core.records import AnyRecord, DeclareQueue, EpochBegins, OpenSession
from lockstep.core.replication import Acknowledge, Subscribe, ToBackup, ToPrimary
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import (
    FREE_BYTES_UNKNOWN,
    AcceptDamage,
    AnyStoreAnswer,
    AnyStoreRequest,
    Appended,
    AppendFrames,
    BeginInstall,
    EndInstall,
    Installed,
    InstallItems,
    ItemsInstalled,
    LoadState,
    OpenSet,
    RememberMap,
    SetAside,
    SetOpened,
    StateChunk,
    StateItem,
    StateLoaded,
    StoreRefused,
    Truncate,
    Truncated,
)
from services.backup.core.backup import BackupCore
from services.backup.core.backup_memory import LogStanding
from services.backup.core.settings import BackupSettings
from services.broker.core.replica import Replica
from services.broker.core.settings import ReplicaSettings
from services.primary.core.primary import PrimaryCore
from services.primary.core.settings import PrimarySettings

SET = SetName("orders")
RETAINED = 1 << 20
_Wanted = TypeVar("_Wanted")


def at(ms: int) -> Now:
    """The moment `ms` after the bench was set up."""
    return Now(1_000_000 + ms, 1_700_000_000_000 + ms)


def member(broker: str, number: int = 0) -> Member:
    """A replica with the disk named after its broker; `number` counts its memories."""
    return Member(BrokerId(broker), DiskId(f"disk-{broker}"), Incarnation(f"{broker}.{number}"))


def entry(
    epoch: int,
    primary: Member,
    *others: Member,
    min_in_sync: int = 1,
    learners: tuple[Member, ...] = (),
) -> SetMap:
    """A map entry that `primary` wrote."""
    return SetMap(
        SET,
        Epoch(epoch),
        primary.broker,
        primary.incarnation,
        tuple(sorted((primary, *others))),
        learners,
        (BrokerId("a"), BrokerId("b"), BrokerId("c")),
        min_in_sync,
        1,
        primary.incarnation,
    )


def seen(set_map: SetMap, revision: int, generation: str = "g") -> MapSeen:
    return MapSeen(SET, set_map, revision, set_map.encode(), generation)


def frame(
    epoch: int, first: int, *records: tuple[AnyRecord, bool], commit: int = 0, reign: int = UNKNOWN_REIGN
) -> Frame:
    """One frame; without `records` it holds one durable record with a content of its own for each (index, epoch)."""
    content = list(records) or [(DeclareQueue(None, f"q{first}e{epoch}", True), True)]
    return encode_frame(Epoch(epoch), LogIndex(first), LogIndex(commit), TimeMs(first), content, reign=reign)


def frames(epoch: int, first: int, last: int, commit: int = 0) -> list[Frame]:
    return [frame(epoch, index, commit=commit) for index in range(first, last + 1)]


def copy_of(*held: Frame, commit: int = 0) -> LogCopy:
    """A memory that got these frames on a stream and has applied what is committed."""
    copy = LogCopy(SetState(SET), LogIndex(0), RETAINED)
    for each in held:
        copy.append(each)
    copy.commit(LogIndex(commit))
    return copy


def session_record(name: str = "session") -> tuple[AnyRecord, bool]:
    """A record that is not durable."""
    return OpenSession(None, name, 60_000), False


class MemoryStore:
    """One set's disk and the process before it. Lives through every loss of its stream."""

    def __init__(self, disk: str, *held: Frame, commit: int = 0, epoch: int = 0) -> None:
        self.disk = DiskId(disk)
        self.highest_epoch = Epoch(epoch)
        self.commit_index = LogIndex(commit)
        self.items: list[StateItem] = []
        self.snapshot_index = LogIndex(0)
        self.snapshot_epochs: EpochStarts = ()
        self.snapshot_reigns: Reigns = ()
        self.frames = list(held)
        self.writer = Incarnation("")
        self.map_bytes, self.map_revision, self.generation = b"", 0, ""
        self.etcd_revision, self.stamp = 0, ""
        self.damage, self.is_unusable, self.has_no_state = "", False, False
        self.is_failing = False
        """Every request but `OpenSet` is refused as after an I/O error."""
        self.is_full = False
        """Frames are refused: there is no room for the next segment."""
        self.is_failing_amid = False
        """Frames are refused when a piece of them was written, behind which the last answer was given again."""
        self.free_bytes = FREE_BYTES_UNKNOWN
        """Room on the disk, as it is told with what became durable."""
        self._installing: BeginInstall | None = None
        self._formatted = 0

    @property
    def log_end(self) -> LogIndex:
        return self.frames[-1].header.last if self.frames else self.snapshot_index

    @property
    def outline(self) -> LogOutline:
        table = EpochTable(self.snapshot_epochs, self.snapshot_reigns)
        for each in self.frames:
            table.observe(each.header.epoch, each.header.first, each.header.reign)
        return table.outline(self.log_end)

    def content(self) -> list[tuple[Epoch, LogIndex]]:
        """(epoch, last index) of every frame."""
        return [(each.header.epoch, each.header.last) for each in self.frames]

    def handle(self, request: AnyStoreRequest) -> list[AnyStoreAnswer]:
        """What the store answers, in order."""
        head = (request.set_name, request.epoch, request.incarnation)
        if request.epoch < self.highest_epoch:
            return [StoreRefused(*head, ErrorCode.WRONG_EPOCH, "a higher epoch was seen", self.highest_epoch)]
        if isinstance(request, OpenSet):
            self.highest_epoch, self.writer = request.epoch, request.incarnation
            if self._installing is not None:
                self._format()
            return [self._opened(request)]
        if self.is_failing:
            return [StoreRefused(*head, ErrorCode.UNAVAILABLE, "the disk fails", self.highest_epoch)]
        if self.is_full and isinstance(request, AppendFrames) and request.frames:
            return [StoreRefused(*head, ErrorCode.STORE_FULL, "no room", self.highest_epoch)]
        if self.is_failing_amid and isinstance(request, AppendFrames) and request.frames:
            again = Appended(*head, self.log_end, self.free_bytes)
            return [again, StoreRefused(*head, ErrorCode.UNAVAILABLE, "the disk fails", self.highest_epoch)]
        if request.incarnation != self.writer:
            return [StoreRefused(*head, ErrorCode.WRONG_EPOCH, "another writer", self.highest_epoch)]
        self.highest_epoch = request.epoch
        match request:
            case AppendFrames():
                return self._append(request)
            case Truncate():
                if request.after < min(self.commit_index, self.log_end):
                    return [StoreRefused(*head, ErrorCode.ILLEGAL_STATE, "committed", self.highest_epoch)]
                self.frames = [each for each in self.frames if each.header.last <= request.after]
                return [Truncated(*head, self.log_end)]
            case LoadState():
                held = tuple(each.durable for each in self.frames)
                chunk = StateChunk(*head, tuple(self.items), held)
                return [chunk, StateLoaded(*head, self.snapshot_index, self.log_end)]
            case BeginInstall():
                self._installing, self.items, self.frames = request, [], []
            case InstallItems():
                self.items += [item for item in request.items if item.is_durable]
                return [ItemsInstalled(*head)]
            case EndInstall():
                assert self._installing is not None, "an installation was begun"
                self.snapshot_index, self.snapshot_epochs = self._installing.index, self._installing.epochs
                self.snapshot_reigns = self._installing.reigns
                self.commit_index, self._installing = LogIndex(0), None
                return [Installed(*head, self.log_end)]
            case RememberMap():
                self.map_bytes, self.map_revision = request.map_bytes, request.revision
                self.generation, self.etcd_revision = request.generation, request.etcd_revision
                self.stamp = request.stamp
            case SetAside():
                self._format()
                return [self._opened(request)]
            case AcceptDamage():
                if self.has_no_state or 0 < request.unusable_from <= self.snapshot_index:
                    text = "nothing before that is left"
                    return [StoreRefused(*head, ErrorCode.ILLEGAL_STATE, text, self.highest_epoch)]
                if request.unusable_from and request.disk == self.disk:
                    self.frames = [each for each in self.frames if each.header.last < request.unusable_from]
                self.damage, self.commit_index = "", min(self.commit_index, self.log_end)
                return [self._opened(request)]
        return []

    def _opened(self, request: OpenSet | SetAside | AcceptDamage) -> SetOpened:
        return SetOpened(
            request.set_name,
            request.epoch,
            request.incarnation,
            self.disk,
            self.log_end,
            self.outline.epochs,
            self.snapshot_index,
            min(self.commit_index, self.log_end),
            self.highest_epoch,
            self.map_bytes,
            self.map_revision,
            self.generation,
            self.damage,
            self.etcd_revision,
            self.stamp,
            self.outline.reigns,
            self.is_unusable,
            self.has_no_state,
        )

    def _append(self, request: AppendFrames) -> list[AnyStoreAnswer]:
        head = (request.set_name, request.epoch, request.incarnation)
        for data in request.frames:
            header = check_frame(data)
            if header.last <= self.log_end:
                standing = [each.header.epoch for each in self.frames if each.header.last == header.last]
                if standing and standing != [header.epoch]:
                    text = f"another epoch stands at {header.last}"
                    return [StoreRefused(*head, ErrorCode.ILLEGAL_STATE, text, self.highest_epoch)]
                continue
            if header.first != self.log_end + 1:
                text = f"{header.first} behind {self.log_end}"
                return [StoreRefused(*head, ErrorCode.ILLEGAL_STATE, text, self.highest_epoch)]
            self.frames.append(Frame(header, data, b""))
        self.commit_index = max(self.commit_index, request.commit_index)
        return [Appended(*head, self.log_end, self.free_bytes)] if request.frames else []

    def _format(self) -> None:
        self._formatted += 1
        self.is_unusable = self.has_no_state = False
        self.disk = DiskId(f"{self.disk}-{self._formatted}")
        self.items, self.frames, self.commit_index = [], [], LogIndex(0)
        self.snapshot_index, self.snapshot_epochs, self.damage = LogIndex(0), (), ""
        self._installing = None


class Bench:
    """A core and its store. `is_store_up` False: what is said to the store is lost, and nothing comes back."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.is_store_up = True
        self.ms = 0
        self.effects: list[AnyEffect] = []
        """Everything that the core wanted, the store's part included."""
        self._waiting: deque[AnyEffect] = deque()
        self._is_performing = False

    @property
    def now(self) -> Now:
        return at(self.ms)

    def perform(self, effects: list[AnyEffect]) -> None:
        """Effects in order; what the store answers is fed when all that was wanted before is done."""
        self.effects += effects
        self._waiting.extend(effects)
        if self._is_performing:
            return
        self._is_performing = True
        while self._waiting:
            effect = self._waiting.popleft()
            if isinstance(effect, TellStore) and self.is_store_up:
                for answer in self.store.handle(effect.request):
                    self.feed(StoreSaid(SET, answer))
            elif isinstance(effect, WakeAt) and effect.boottime_ms <= self.now.boottime_ms:
                self.feed(Woken(SET))
            elif isinstance(effect, TakeApart):
                for _ in effect.work:
                    pass
        self._is_performing = False

    def feed(self, given: AnyInput) -> None:
        raise NotImplementedError

    def lose_store(self) -> None:
        self.is_store_up = False
        self.feed(StoreLost(SET))

    def find_store(self) -> None:
        self.is_store_up = True
        self.feed(StoreConnected(SET))

    def pass_ms(self, ms: int, step_ms: int = 50) -> None:
        """Time passes, in ticks."""
        for _ in range(0, ms, step_ms):
            self.ms += step_ms
            self.feed(Tick(SET))

    def notes(self) -> list[str]:
        return [effect.event for effect in self.effects if isinstance(effect, Note)]

    def notes_of(self, event: str) -> list[str]:
        """What was said with it."""
        return [each.details for each in self.effects if isinstance(each, Note) and each.event == event]


class BackupBench(Bench):
    """A backup core of broker b, with the primary's part played by the test."""

    def __init__(
        self,
        store: MemoryStore,
        epoch: int = 1,
        copy: LogCopy | None = None,
        is_memory_whole: bool = False,
        primary: str | None = "a",
        settings: BackupSettings | None = None,
        standing: LogStanding = LogStanding.OURS,
    ) -> None:
        super().__init__(store)
        self.core = BackupCore(
            SET,
            BrokerId("b"),
            Incarnation("b.0"),
            Epoch(epoch),
            BrokerId(primary) if primary is not None else None,
            copy,
            is_memory_whole,
            0,
            settings or BackupSettings(),
            lambda opened: standing,
        )
        self.perform(self.core.begin(self.now))

    def feed(self, given: AnyInput) -> None:
        self.perform(self.core.handle(given, self.now))

    def hear(self, *messages: ToBackup) -> None:
        """What the primary says on the present subscription."""
        for message in messages:
            self.feed(PrimarySaid(SET, self.core.stream, message))

    def subscriptions(self) -> list[Subscribe]:
        return [effect.subscribe for effect in self.effects if isinstance(effect, OpenSubscription)]

    def said(self) -> list[ToPrimary]:
        return [effect.message for effect in self.effects if isinstance(effect, TellPrimary)]

    def acknowledged(self) -> int:
        """The highest index said to be durable."""
        found = [message.log_end for message in self.said() if isinstance(message, Acknowledge)]
        return max(found, default=0)


LEASE_MS = 3_600_000
"""Longer than any test lasts."""


class PrimaryBench(Bench):
    """A primary core of broker a, which has its lease, with its backups' and etcd's parts played by the test."""

    def __init__(
        self,
        set_map: SetMap,
        store: MemoryStore | None = None,
        copy: LogCopy | None = None,
        is_restarted: bool = False,
        settings: PrimarySettings | None = None,
    ) -> None:
        super().__init__(store or MemoryStore("disk-a"))
        own = set_map.member(set_map.primary)
        assert own is not None, "the primary is in sync"
        held = copy or copy_of()
        held.apply_to(held.log_end)
        self.revision = 10
        self.core = PrimaryCore(
            held, own, set_map, self.revision, is_restarted, settings or PrimarySettings(), self.now
        )
        for _ in self.core.get_ready():
            pass
        self.perform(self.core.begin(self.now))
        self.feed(LeaseExtended(SET, 7, self.now.boottime_ms + LEASE_MS))

    def feed(self, given: AnyInput) -> None:
        self.perform(self.core.handle(given, self.now))

    def subscribe(
        self,
        stream: int,
        who: Member,
        log_end: int = 0,
        epochs: EpochStarts = (),
        commit_index: int = 0,
        is_memory_whole: bool = False,
        applied: int = 0,
        takes_blocks: bool = False,
    ) -> list[ToBackup]:
        """A backup subscribes; returns what it is told at once."""
        before = len(self.effects)
        said = Subscribe(
            SET,
            self.core.epoch,
            who.broker,
            who.disk,
            who.incarnation,
            LogIndex(log_end),
            epochs,
            LogIndex(commit_index),
            is_memory_whole,
            LogIndex(applied),
            takes_blocks,
        )
        self.feed(BackupSaid(SET, stream, said))
        return self.told(stream, before)

    def acknowledge(self, stream: int, who: Member, log_end: int) -> None:
        said = Acknowledge(SET, self.core.epoch, who.broker, who.incarnation, LogIndex(log_end))
        self.feed(BackupSaid(SET, stream, said))

    def told(self, stream: int, since: int = 0) -> list[ToBackup]:
        return [
            effect.message
            for effect in self.effects[since:]
            if isinstance(effect, TellBackup) and effect.stream == stream
        ]

    def swaps(self) -> list[SwapMap]:
        return [effect for effect in self.effects if isinstance(effect, SwapMap)]

    def write(self, name: str) -> LogIndex:
        """A durable record, as a command would append it; returns its index."""
        index = self.core.context.writer.append(DeclareQueue(None, name, True), True)
        self.feed(Tick(SET))
        return index


def epoch_record(epoch: int, broker: str = "a", is_restarted: bool = False) -> tuple[AnyRecord, bool]:
    return EpochBegins(None, Epoch(epoch), broker, is_restarted), True


class ReplicaBench(Bench):
    """A replica of broker a in process `p1`, with etcd's part played by the test."""

    def __init__(self, store: MemoryStore | None = None, settings: ReplicaSettings | None = None) -> None:
        super().__init__(store or MemoryStore("disk-a"))
        self.replica = Replica(SET, BrokerId("a"), Incarnation("p1"), settings or ReplicaSettings())
        self.find_store()

    def feed(self, given: AnyInput) -> None:
        self.perform(self.replica.handle(given, self.now))

    def own(self) -> Member:
        """This replica as the map would name it now."""
        return Member(BrokerId("a"), self.store.disk, self.replica.incarnation)

    def hold_lease(self, lease_id: int = 7, for_ms: int = 3_000) -> None:
        self.feed(LeaseExtended(SET, lease_id, self.now.boottime_ms + for_ms))

    def see_key(self, holder: str | None) -> None:
        self.feed(LeaseKeySeen(SET, Incarnation(holder) if holder is not None else None))

    def see_presences(self, *members: Member) -> None:
        self.feed(PresencesSeen(SET, tuple((each.broker, each.incarnation, 5) for each in members)))

    def wanted(self, kind: type[_Wanted]) -> list[_Wanted]:
        """All effects of one kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def answer(self, verdict: Verdict, revision: int = 0) -> None:
        """etcd's answer to the last promotion or restoration."""
        last = [effect for effect in self.effects if isinstance(effect, PromoteSelf | RestoreLeaseKey)][-1]
        self.feed(SwapAnswered(SET, last.request, verdict, LogIndex(revision)))


def leading(store: MemoryStore | None = None) -> ReplicaBench:
    """The primary of epoch 2, alone in the set, serving under lease 7; the entry has revision 11."""
    bench = ReplicaBench(store)
    bench.hold_lease()
    bench.feed(seen(entry(1, Member(BrokerId("a"), bench.store.disk, Incarnation("p0.0"))), 10))
    bench.see_key(None)
    bench.answer(Verdict.DONE, 11)
    assert bench.replica.is_serving
    return bench
