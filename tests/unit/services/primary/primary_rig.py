"""One real primary core alone (min_in_sync 1), its store, etcd's directory and its clients in memory.

Law: whatever a client hears is checked when it is said: no answer and no delivery of what the commit index does not cover, and no
delivery of what a transaction has locked, or of what has expired, or before what comes first by its priority and place.
"""

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import msgspec

from lockstep.core.apply_epochs import begin_epoch
from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.commands import (
    AnyCommand,
    BeginCommand,
    BindCommand,
    CommitCommand,
    DeclareExchangeCommand,
    DeclareQueueCommand,
    Disposition,
    EndCommand,
    OutgoingMessage,
    PublishCommand,
    QueueOptions,
    RollbackCommand,
    SettleCommand,
    StartCommand,
)
from lockstep.core.decision_log import LoggedParticipants
from lockstep.core.effects import (
    AnyEffect,
    AskDecision,
    ClaimName,
    CloseClientStream,
    ListParticipants,
    LookUpNames,
    Note,
    ReadMessages,
    ReleaseName,
    SwapMap,
    TellClient,
    TellStore,
    WakeAt,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.frames import decode_records
from lockstep.core.ids import (
    BrokerId,
    DiskId,
    Epoch,
    Incarnation,
    LogIndex,
    MessageId,
    QueuePosition,
    SessionId,
    SessionKey,
    SetName,
    TransactionKey,
    index_of,
    place,
)
from lockstep.core.inputs import (
    AnyInput,
    ClientSaid,
    ClientStreamClosed,
    LeaseExtended,
    LeaseLost,
    MessagesRead,
    NameClaimed,
    NamesSeen,
    ParticipantsListed,
    StoreSaid,
    Tick,
    Verdict,
    Woken,
)
from lockstep.core.invariants import check_invariants
from lockstep.core.log_copy import LogCopy
from lockstep.core.pieces import at_once
from lockstep.core.records import AnyRecord, CommandRef, Commit, EpochBegins, Prepare, Publish, Rollback
from lockstep.core.replication import HandedOver
from lockstep.core.requests import (
    AttachSession,
    ClientMessage,
    HeldDeliveries,
    OpenConsumer,
    UnansweredSettle,
)
from lockstep.core.restoration import UNLIMITED_BYTES
from lockstep.core.server_messages import (
    Answers,
    CommandAnswered,
    ConsumerDrained,
    DeliveredMessage,
    Deliveries,
    SessionAttached,
    Told,
)
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from lockstep.core.store_protocol import Appended, AppendFrames, OpenSet, SetOpened
from lockstep.core.xa import XaStatus
from services.primary.core.gone_before import NOTHING_GONE, GoneBefore
from services.primary.core.handing_on import handed_over, roll_back_unfit
from services.primary.core.observers import TransactionObserverFactory
from services.primary.core.primary import PrimaryCore
from services.primary.core.queue_view import QueueView
from services.primary.core.settings import PrimarySettings

SET = SetName("orders")
OTHER_SET = SetName("invoices")
OWN = Member(BrokerId("b1"), DiskId("disk1"), Incarnation("inc1"))
LEASE_MS = 1 << 40
_Heard = TypeVar("_Heard")


class Rig:
    """One reign. With `holds_store` nothing is durable before `acknowledge`; `holds_claims` does the same to claims of names."""

    def __init__(
        self,
        settings: PrimarySettings | None = None,
        holds_store: bool = False,
        holds_claims: bool = False,
        predecessor: "Rig | None" = None,
        is_restarted: bool = False,
        factories: Sequence[TransactionObserverFactory] = (),
        resident_bytes_max: int = UNLIMITED_BYTES,
        gathered_bytes: int = 0,
        gathering_ms_max: int = 0,
        handed: HandedOver | None = None,
    ) -> None:
        """`gathered_bytes` 0: however little there is leaves at once; `gathering_ms_max` 0: whoever is to come back.
        `handed`: what the predecessor handed on.
        """
        self._settings = settings
        self.holds_store = holds_store
        self.holds_readings = False
        """The store answers a reading only when `read` is called."""
        self.readings: deque[ReadMessages] = deque()
        self.holds_claims = holds_claims
        self.boottime_ms: int = predecessor.boottime_ms if predecessor else 1_000
        self.wall_ms: int = predecessor.wall_ms if predecessor else 1_700_000_000_000
        self.directory: dict[tuple[str, str], SetName] = predecessor.directory if predecessor else {}
        self.claims: deque[ClaimName] = deque()
        self.unacknowledged: deque[LogIndex] = deque()
        self.notes: list[Note] = []
        self.questions: list[AskDecision] = []
        """Of prepared branches about their decisions; the test answers them."""
        self.logged: LoggedParticipants | None = LoggedParticipants()
        """What the decision log has; None: it does not answer."""
        self.lists_asked: list[int] | None = None
        """Requests for what it has, which the test answers; None: each is answered at once."""
        self.wakes: list[int] = []
        """When it was to be woken; the test does it."""
        self._inputs: deque[AnyInput] = deque()
        self._by_stream: dict[int, RigClient] = {}
        self._last_stream = 0
        self._free_bytes = 1 << 50
        copy, epoch = LogCopy(SetState(SET), LogIndex(0), 1 << 40, resident_bytes_max), 1
        gone = NOTHING_GONE
        if predecessor is not None:
            for frame in predecessor.core.context.writer.log.frames_after(LogIndex(0)):
                copy.append(frame)
            copy.commit(predecessor.core.commit_index)
            copy.apply_to(copy.log_end)
            epoch = predecessor.core.epoch + 1
            if handed is None:
                gone = at_once(GoneBefore.of(copy.state, is_restarted))
                record = EpochBegins(None, Epoch(epoch), OWN.broker, is_restarted)
                for _ in begin_epoch(copy.state, LogIndex(copy.log_end + 1), record):
                    pass
        set_map = SetMap(
            SET, Epoch(epoch), OWN.broker, OWN.incarnation, (OWN,), (), (OWN.broker,), 1, 1, OWN.incarnation
        )
        chosen = replace(
            settings or PrimarySettings(),
            retained_bytes_max=1 << 40,
            gathered_bytes=gathered_bytes,
            gathering_ms_max=gathering_ms_max,
        )
        self.core: PrimaryCore = PrimaryCore(
            copy, OWN, set_map, 1, is_restarted, chosen, self.now, factories, None, handed is not None, gone
        )
        for _ in self.core.get_ready(handed):
            pass
        self.perform(self.core.begin(self.now))
        self.feed(LeaseExtended(SET, 1, LEASE_MS))

    @property
    def now(self) -> Now:
        return Now(self.boottime_ms, self.wall_ms)

    @property
    def state(self) -> SetState:
        return self.core.context.state

    # --- driving ---

    def feed(self, given: AnyInput) -> None:
        """One input, and what its effects bring."""
        self._inputs.append(given)
        while self._inputs:
            self.perform(self.core.handle(self._inputs.popleft(), self.now))

    def pass_time(self, milliseconds: int) -> None:
        """Time passes in one go, with one tick at its end."""
        self.boottime_ms += milliseconds
        self.wall_ms += milliseconds
        self.feed(Tick(SET))

    def end_unfit(self) -> None:
        """What cannot go on under another primary ends."""
        for _ in roll_back_unfit(self.core.context, self.core.attachments):
            pass

    def hand_on(self) -> HandedOver:
        """What cannot go on under another primary ends; what a successor is told of the rest."""
        self.end_unfit()
        handed = at_once(handed_over(self.core.context, self.core.attachments, BrokerId("b2")))
        self.pass_time(1)
        return handed

    def next_reign(self, how: str) -> "Rig":
        """With the same settings; `how`: behind a "failover", a "hand-over" or a "restart" of all brokers."""
        handed = self.hand_on() if how == "hand-over" else None
        return Rig(self._settings, predecessor=self, handed=handed, is_restarted=how == "restart")

    def lose_lease(self) -> None:
        self.feed(LeaseLost(SET))

    def acknowledge(self, frames: int = 1 << 30) -> None:
        """The store has so many more frames durable; all that there are, and come while it answers, by default."""
        while frames and self.unacknowledged:
            frames -= 1
            self.acknowledged(self.unacknowledged.popleft())

    def acknowledged(self, log_end: LogIndex) -> None:
        """The store says that so much is durable."""
        self.feed(StoreSaid(SET, Appended(SET, self.core.epoch, OWN.incarnation, log_end, self._free_bytes)))

    def fill_disk(self, free_bytes: int = 0) -> None:
        """From the next answer on the store reports so much room."""
        self._free_bytes = free_bytes
        self.acknowledged(self.core.membership.durable[OWN])

    def claimed(self, verdict: Verdict | None = None) -> None:
        """etcd answers the oldest claim: by its directory, or as told."""
        claim = self.claims.popleft()
        key = claim.kind, claim.name
        if verdict is None:
            owner = self.directory.setdefault(key, SET)
            verdict = Verdict.DONE if owner == SET else Verdict.FAILED
        self.feed(NameClaimed(SET, claim.request, verdict, self.directory.get(key, SetName(""))))

    def client(
        self, name: str = "", timeout_ms: int = 10_000, outlives_hand_over: bool = False
    ) -> "RigClient":
        """A client whose session is open (when the store answers)."""
        client = RigClient(self, SessionId(name or f"client-{self._last_stream + 1}"))
        client.attach(timeout_ms, outlives_hand_over=outlives_hand_over)
        return client

    def new_stream(self, client: "RigClient") -> int:
        self._last_stream += 1
        self._by_stream[self._last_stream] = client
        return self._last_stream

    def read(self, lost: Collection[MessageId] = ()) -> None:
        """The store answers the oldest reading, from what is in frames; it does not have the `lost`."""
        reading = self.readings.popleft()
        self.feed(MessagesRead(SET, reading.request, self._contents(reading, lost)))

    def _contents(
        self, reading: ReadMessages, lost: Collection[MessageId] = ()
    ) -> tuple[tuple[bytes, bytes] | None, ...]:
        stored: dict[int, tuple[bytes, bytes]] = {}
        for frame in self.core.context.writer.log.frames_after(LogIndex(0)):
            for found in decode_records(frame):
                if isinstance(found.record, Publish):
                    first = place(found.index, found.record.ordinal)
                    for number, message in enumerate(found.record.messages, first):
                        stored[number] = message.properties, message.body
        return tuple(None if message in lost else stored.get(message) for message in reading.messages)

    # --- effects ---

    def perform(self, effects: list[AnyEffect]) -> None:
        for effect in effects:
            match effect:
                case TellStore(request=OpenSet()):
                    self._opened()
                case TellStore(request=AppendFrames(frames=frames)) if frames:
                    log_end = self.core.context.writer.log.framed_end
                    self.unacknowledged.append(log_end)
                    if not self.holds_store:
                        self.unacknowledged.popleft()
                        answer = Appended(SET, self.core.epoch, OWN.incarnation, log_end, self._free_bytes)
                        self._inputs.append(StoreSaid(SET, answer))
                case ReadMessages():
                    if self.holds_readings:
                        self.readings.append(effect)
                    else:
                        self._inputs.append(MessagesRead(SET, effect.request, self._contents(effect)))
                case TellClient():
                    self._tell(effect)
                case CloseClientStream():
                    self._by_stream[effect.stream].is_closed = True
                case ClaimName():
                    self.claims.append(effect)
                    if not self.holds_claims:
                        claim = self.claims.popleft()
                        owner = self.directory.setdefault((claim.kind, claim.name), SET)
                        verdict = Verdict.DONE if owner == SET else Verdict.FAILED
                        self._inputs.append(NameClaimed(SET, claim.request, verdict, owner))
                case ReleaseName():
                    if self.directory.get((effect.kind, effect.name)) == SET:
                        del self.directory[effect.kind, effect.name]
                case LookUpNames():
                    names = sorted(name for name, owner in self.directory.items() if owner == SET)
                    self._inputs.append(NamesSeen(SET, tuple(names)))
                case Note():
                    self.notes.append(effect)
                case AskDecision():
                    self.questions.append(effect)
                case ListParticipants() if self.lists_asked is not None:
                    self.lists_asked.append(effect.request)
                case ListParticipants():
                    self._inputs.append(ParticipantsListed(SET, effect.request, self.logged))
                case WakeAt():
                    self.wakes.append(effect.boottime_ms)
                case SwapMap():
                    raise AssertionError("a set of one broker swaps nothing")
                case _:
                    pass
        if not (self.core.stopped or self.core.is_alone):
            check_invariants(self.state)

    def _opened(self) -> None:
        log = self.core.context.writer.log
        opened = SetOpened(
            set_name=SET,
            epoch=self.core.epoch,
            incarnation=OWN.incarnation,
            disk=OWN.disk,
            log_end=log.framed_end,
            epochs=tuple(self.core.context.state.epochs.entries),
            snapshot_index=LogIndex(0),
            commit_index=log.commit_index,
            highest_epoch=self.core.epoch,
            map_bytes=b"",
            map_revision=1,
            generation="",
            damage="",
        )
        self._inputs.append(StoreSaid(SET, opened))

    def _tell(self, effect: TellClient) -> None:
        client = self._by_stream[effect.stream]
        if effect.stream != client.stream:
            return
        message = effect.message
        assert effect.serve_until_ms == 0 or self.boottime_ms < effect.serve_until_ms
        commit_index = self.core.commit_index
        if isinstance(message, Answers):
            session = self.state.sessions.get(client.session)
            for answered in message.answers:
                is_early = isinstance(client.sent.get(answered.number), BeginCommand) and not answered.code
                if session is not None and answered.number in session.answers and not is_early:
                    index = session.answers[answered.number].index
                    assert index <= commit_index, f"{answered} of record {index} was said at {commit_index}"
        elif isinstance(message, Deliveries):
            # Copies are of what was in the queue when it was read, whoever had it; it may be gone since.
            locks = {} if message.are_copies else self.state.queues.by_name[message.queue].locks
            for delivered in message.messages:
                assert index_of(delivered.position) <= commit_index, f"{delivered} is not committed"
                assert delivered.position not in locks, f"{delivered} is locked"
                has_ended = 0 < delivered.expires_ms <= self.wall_ms
                assert message.are_copies or not has_ended, f"{delivered} has expired"
            if not message.are_copies:
                self._check_order(effect.stream, message)
        client.hear(message)

    def _check_order(self, stream: int, message: Deliveries) -> None:
        """Nothing is handed out before what is free and comes first."""
        queue = self.state.queues.by_name[message.queue]
        keys = [(-each.priority, each.position) for each in message.messages]
        assert keys == sorted(keys), f"{queue}: {keys} are handed out together"
        dispatch = self.core.context.dispatch._queues.get(queue.id)
        consumers = dispatch.consumers if dispatch is not None else ()
        views = [one.view for one in consumers if (one.stream, one.number) == (stream, message.consumer)]
        if not views or type(views[0]) is not QueueView:
            # It leaves some to others, or was closed since.
            return
        for position in queue.positions():
            is_visible = index_of(position) <= message.commit_index and views[0].hands.is_free(position)
            if is_visible and not 0 < queue.expires_ms(position) <= self.wall_ms:
                found = -queue.priority(position), position
                assert found > keys[-1], f"{queue}: {keys} are handed out, and {found} is free"

    # --- looking ---

    def records(self) -> list[AnyRecord]:
        """All records that are in frames."""
        log = self.core.context.writer.log
        return [found.record for frame in log.frames_after(LogIndex(0)) for found in decode_records(frame)]

    def bodies(self, queue: str) -> list[bytes]:
        """What the queue holds, in order, whoever has it."""
        found = self.state.queues.by_name[queue]
        messages = [found.message(position) for position in found.positions()]
        return [message.body for message in messages if message is not None]

    def check_log(self) -> None:
        """A replica that applies the frames is equal, and each command has one answering record, in the order of the numbers.
        What prepares a transaction, or ends it, says how many durable records that has.
        """
        self.feed(Tick(SET))  # Begins alone wait for what comes behind them, or for time.
        self.acknowledge()
        log = self.core.context.writer.log
        assert log.framed_end == log.end == log.commit_index
        replica = SetState(SET)
        answering: dict[SessionKey, list[int]] = {}
        durable_records: Counter[TransactionKey] = Counter()
        prepared: set[TransactionKey] = set()
        for frame in log.frames_after(LogIndex(0)):
            replica.apply_frame(frame)
            for found in decode_records(frame):
                key: TransactionKey | None = getattr(found.record, "transaction", None)
                if isinstance(found.record, Prepare | Commit | Rollback):
                    assert found.record.durable_records == durable_records[found.record.transaction]
                if key is not None and key not in prepared:
                    durable_records[key] += found.is_durable
                if key is not None and isinstance(found.record, Prepare):
                    prepared.add(key)
                command: CommandRef | None = found.record.command
                if command is not None:
                    answering.setdefault(command.session, []).append(command.number)
        assert state_hash(replica) == state_hash(self.state)
        for numbers in answering.values():
            assert numbers == list(range(1, len(numbers) + 1))
        durable = SetState(SET)
        for frame in log.frames_after(LogIndex(0)):
            durable.apply_frame(frame._replace(transient=b""))
        assert state_hash(durable, durable_only=True) == state_hash(self.state, durable_only=True)


class RigClient:
    """One client session: numbers its commands and keeps what it hears."""

    def __init__(self, rig: Rig, session_id: SessionId) -> None:
        self.rig = rig
        self.session_id = session_id
        self.session = SessionKey(0)
        self.session_epoch = Epoch(0)
        self.stream = 0
        self.is_closed = False
        self.number = 0
        self.sent: dict[int, AnyCommand] = {}
        self.answers: dict[int, CommandAnswered] = {}
        self.heard: list[Told] = []
        self.in_hand: dict[tuple[str, QueuePosition], DeliveredMessage] = {}
        """Delivered and not settled by this client."""
        self.shown: list[bytes] = []
        """Bodies that its browsers were shown."""
        self._consumers = 0

    def hear(self, message: Told) -> None:
        self.heard.append(message)
        if isinstance(message, SessionAttached):
            self.session, self.session_epoch = message.session, message.session_epoch
        elif isinstance(message, Answers):
            for answered in message.answers:
                self.answers[answered.number] = answered
        elif isinstance(message, Deliveries) and message.are_copies:
            self.shown.extend(delivered.body for delivered in message.messages)
        elif isinstance(message, Deliveries):
            for delivered in message.messages:
                key = message.queue, delivered.position
                assert key not in self.in_hand, f"{key} is delivered to its holder again"
                self.in_hand[key] = delivered

    def heard_of(self, kind: type[_Heard]) -> list[_Heard]:
        return [message for message in self.heard if isinstance(message, kind)]

    # --- talking ---

    def say(self, *messages: ClientMessage) -> None:
        self.rig.feed(ClientSaid(SET, self.stream, messages))

    def attach(
        self,
        timeout_ms: int = 10_000,
        heard: int = 0,
        held: tuple[HeldDeliveries, ...] = (),
        outlives_hand_over: bool = False,
        settling: tuple[UnansweredSettle, ...] = (),
    ) -> None:
        """On a new stream; the session is opened first, then resumed."""
        self.stream = self.rig.new_stream(self)
        self.is_closed = False
        self.say(
            AttachSession(
                SET,
                self.session_id,
                self.session,
                self.session_epoch,
                timeout_ms,
                heard,
                held,
                outlives_hand_over,
                settling,
            )
        )

    def lose_stream(self) -> None:
        """Everything that was on its way with it is lost."""
        stream, self.stream = self.stream, 0
        self.rig.feed(ClientStreamClosed(SET, stream))

    def resume(self, heard: int = 0) -> None:
        """Lose the stream and attach again, with what is in hand."""
        if self.stream:
            self.lose_stream()
        epoch = self.rig.core.epoch
        by_queue: dict[str, list[QueuePosition]] = {}
        for queue, position in self.in_hand:
            by_queue.setdefault(queue, []).append(position)
        held = tuple(HeldDeliveries(queue, epoch, tuple(found)) for queue, found in by_queue.items())
        self.attach(heard=heard, held=held)

    def command(self, command: AnyCommand) -> int:
        """Send a command under the next number; answers the number."""
        self.number += 1
        command = msgspec.structs.replace(command, number=self.number)
        self.sent[self.number] = command
        self.say(command)
        return self.number

    def do(self, command: AnyCommand) -> CommandAnswered:
        """Send a command that is answered at once."""
        return self.answers[self.command(command)]

    def ok(self, command: AnyCommand) -> int:
        """Send a command that is done at once; its value."""
        answered = self.do(command)
        assert answered.code is ErrorCode.NONE, answered
        return answered.value

    # --- short words ---

    def declare(self, name: str, **options: object) -> int:
        return self.ok(DeclareQueueCommand(0, name, QueueOptions(**options)))  # type: ignore[arg-type]

    def exchange(self, name: str, *queues: str, kind: str = "fanout", is_durable: bool = True) -> None:
        """An exchange bound to queues, with their names as keys."""
        self.ok(DeclareExchangeCommand(0, name, kind, is_durable))
        for queue in queues:
            self.ok(BindCommand(0, name, queue, queue))

    def publish(self, queue: str, *bodies: bytes, **options: object) -> CommandAnswered:
        return self.do(publish(queue, *bodies, **options))

    def begin(self, timeout_ms: int = 0) -> TransactionKey:
        answered = self.do(BeginCommand(0, timeout_ms))
        assert answered.code is ErrorCode.NONE, answered
        return LogIndex(answered.value), self.rig.core.epoch

    def commit(self, transaction: TransactionKey, operations: int) -> CommandAnswered:
        return self.do(CommitCommand(0, transaction, operations))

    def rollback(self, transaction: TransactionKey) -> CommandAnswered:
        return self.do(RollbackCommand(0, transaction))

    def branch(self, xid: bytes, *work: PublishCommand) -> TransactionKey:
        """All the work of a branch, which may be prepared then."""
        key = LogIndex(self.ok(StartCommand(0, xid))), self.rig.core.epoch
        for sequence, command in enumerate(work, 1):
            self.ok(msgspec.structs.replace(command, transaction=key, sequence=sequence))
        assert self.ok(EndCommand(0, xid, len(work))) == XaStatus.OK
        return key

    def consume(self, queue: str, credit: int = 1000, is_exclusive: bool = False, selector: str = "") -> int:
        """Open a consumer; its number."""
        self._consumers += 1
        self.say(OpenConsumer(self._consumers, queue, credit, is_exclusive, selector))
        return self._consumers

    def browse(self, queue: str, credit: int = 1000, after: int = 0, selector: str = "") -> int:
        """Open a browsing consumer; its number."""
        self._consumers += 1
        position = QueuePosition(after)
        self.say(OpenConsumer(self._consumers, queue, credit, False, selector, True, position))
        return self._consumers

    def drained(self, consumer: int) -> list[int]:
        """What credit was taken back by each drain of a consumer that was answered."""
        return [one.credit for one in self.heard_of(ConsumerDrained) if one.consumer == consumer]

    def positions(self, queue: str) -> tuple[QueuePosition, ...]:
        """What is in hand of a queue, in the order of delivery."""
        return tuple(position for name, position in self.in_hand if name == queue)

    def bodies(self, queue: str) -> list[bytes]:
        return [delivered.body for (name, _), delivered in self.in_hand.items() if name == queue]

    def settle(
        self,
        queue: str,
        *positions: QueuePosition,
        disposition: int = Disposition.ACCEPT,
        transaction: TransactionKey | None = None,
        sequence: int = 0,
        excluded_consumer: int = 0,
    ) -> CommandAnswered:
        """Settle what is in hand, all of it by default."""
        named = positions or self.positions(queue)
        had = {(queue, position): self.in_hand.pop((queue, position), None) for position in named}
        number = self.command(
            SettleCommand(
                0,
                queue,
                self.rig.core.epoch,
                named,
                disposition,
                transaction,
                sequence,
                excluded_consumer,
            )
        )
        answered = self.answers[number]
        if answered.code is not ErrorCode.NONE:
            self.in_hand.update({key: delivered for key, delivered in had.items() if delivered is not None})
        return answered


def publish(queue: str, *bodies: bytes, **options: object) -> PublishCommand:
    """Messages for a queue by its name, or with `exchange` for an exchange. Options of messages are for all of them."""
    exchange = options.pop("exchange", "")
    properties = options.pop("properties", b"")
    per_message = {
        name: options.pop(name) for name in ("is_durable", "ttl_ms", "priority") if name in options
    }
    messages = tuple(OutgoingMessage(properties, body, **per_message) for body in bodies)  # type: ignore[arg-type]
    return PublishCommand(0, str(exchange), queue, messages, **options)  # type: ignore[arg-type]


def wake(rig: Rig) -> bool:
    """One more turn; whether another is asked for."""
    rig.boottime_ms += 1
    rig.wakes.clear()
    rig.feed(Woken(SET))
    return bool(rig.wakes)


def take_turns(rig: Rig, most: int = 1 << 30) -> int:
    """So many turns of those that it asks for, at most; answers how many there were."""
    count = 0
    while rig.wakes and count < most:
        assert count < 5000, "it comes to no end"
        wake(rig)
        count += 1
    return count


def is_ascending(positions: tuple[QueuePosition, ...]) -> bool:
    return all(first < second for first, second in pairwise(positions))
