"""A broker process: the real replicas and the real lease keeper, with a driver that performs their effects in order.

Law: as the real driver: an effect is performed completely or the process has crashed; it may crash or be stopped between any two.
What it tells a client it drops, and the stream with it, when the lease ended meanwhile (DESIGN R6).
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, assert_never

from lockstep.core.effects import (
    AnyEffect,
    AskDecision,
    ClaimName,
    CloseBackupStream,
    CloseClientStream,
    CloseSubscription,
    DropLeaseKey,
    EndBackupStreams,
    EndClientStreams,
    Halt,
    ListParticipants,
    LookUpNames,
    MarkSetBack,
    Note,
    OpenSubscription,
    PromoteSelf,
    PutPresence,
    ReadMessages,
    ReleaseName,
    RestoreLeaseKey,
    SwapMap,
    TakeApart,
    TellBackup,
    TellClient,
    TellPrimary,
    TellStore,
    WakeAt,
)
from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.inputs import (
    AnyInput,
    BackupSaid,
    BackupStreamClosed,
    ClientSaid,
    ClientStreamClosed,
    ClientStreamDrained,
    MessagesRead,
    PrimarySaid,
    PrimaryStreamClosed,
    StoreConnected,
    StoreLost,
    StoreSaid,
    Tick,
    Woken,
)
from lockstep.core.replication import Refuse
from services.broker.core.lease_keeper import LeaseTick, StoreAnswered
from services.store.core.requests import ContentsRead, ReadContents
from tests.simulation.broker_etcd import BrokerEtcd
from tests.simulation.core_faults import CoreFault, kind_of
from tests.simulation.giving_back import GivesBack
from tests.simulation.hellos import ClientHello, StoreHello, StorePing, StorePong, SubscriptionHello
from tests.simulation.loop import MS
from tests.simulation.network import Side
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

TICK_US = 100 * MS
STORE_RECONNECT_US = 50 * MS
STORE_PING_TICKS = 3
GATHERED_EVERY = 5
"""Every so many inputs a serving replica is told that more follow, as the driver does where several came together."""
READ_TIMEOUT_US = 5000 * MS
TAKE_APART_US = 1 * MS


class Broker(Process):
    """One incarnation of a broker; its host is its machine."""

    def __init__(self, world: "World", broker: BrokerId, host: str) -> None:
        super().__init__(world, f"broker {broker}", host)
        self.broker = broker
        self.incarnation = Incarnation(f"{broker}-{world.random.getrandbits(32):08x}")
        self.clocks = world.clocks[host]
        self.effects: deque[AnyEffect] = deque()
        self.fuse: int | None = None
        """The process crashes in the place of the effect that is so many effects away."""
        self.pause_fuse: tuple[int, int] | None = None
        """The same for a pause: (effects away, duration in microseconds)."""
        self.replicas = {
            set_name: world.parts.make_replica(set_name, broker, self.incarnation, world.replica_settings)
            for set_name in world.sets_of(broker)
        }
        self._streams = 0
        self._handled = 0
        self._stores: dict[SetName, Side] = {}
        self._pings: Side | None = None
        self._readings: dict[Side, None] = {}
        self._backups: dict[int, Side] = {}
        self._subscriptions: dict[tuple[SetName, int], Side] = {}
        self._clients: dict[int, Side] = {}
        self._stream_sets: dict[int, SetName] = {}
        self.etcd = BrokerEtcd(self)
        give_back_ms = world.options.give_back_ms
        self._gives_back = GivesBack(self, give_back_ms) if give_back_ms else None
        world.network.listen(f"broker:{broker}", host, self._accept)
        for set_name in self.replicas:
            self._connect_store(set_name)
        self._connect_pings()
        self._ticks = world.random.randrange(100)
        world.loop.after(world.random.randrange(TICK_US), self._tick)

    # --- inputs ---------------------------------------------------------------------------------------------------

    def feed(self, given: AnyInput) -> None:
        """An input reaches this process."""
        self.post(self._handle, given)

    def _handle(self, given: AnyInput) -> None:
        replica = self.replicas.get(given.set_name)
        if replica is not None:
            heard = self.world.as_heard(self, given)
            self.world.observer.before(self, given)
            self._handled += 1
            more_follow = self._handled % GATHERED_EVERY == 0 and replica.is_serving
            led = replica.primary
            try:
                handle = partial(replica.handle, heard, self.clocks.now(), more_follow)
                if self.world.core_faults.is_due(replica, heard):
                    effects = self.world.core_faults.raise_over(replica, heard, handle)
                else:
                    effects = handle()
            except CoreFault:
                self.world.trace(given.set_name, f"{self.name}: a core fault over {kind_of(given)}")
                effects = replica.end_by_fault(RuntimeError("drawn"), self.clocks.now())
            except Exception as error:
                if not self.world.expects_faults:
                    raise
                effects = replica.end_by_fault(error, self.clocks.now())
            if replica.primary is not None and replica.primary is not led:
                self.world.leads(replica.primary)
            if more_follow:
                # Whatever comes next: it says nothing itself.
                self.world.loop.after(0, self.feed, ClientStreamDrained(given.set_name, 0))
            if effects:
                self.effects.extend(effects)
            self.world.observe_replica(self, given, effects)

    def _tick(self) -> None:
        if not self.is_alive:
            return
        self.world.loop.after(TICK_US, self._tick)
        if self.is_paused:
            return
        self._ticks += 1
        self.etcd.handle_lease(LeaseTick())
        if self._gives_back is not None:
            self._gives_back.look()
        for set_name in self.replicas:
            self.feed(Tick(set_name))
        if self._ticks % STORE_PING_TICKS == 0 and self._pings is not None:
            self._pings.send(StorePing())

    # --- streams that others opened -------------------------------------------------------------------------------

    def source_of(self, handler: Callable[..., None], arguments: tuple[object, ...]) -> object:
        """Streams that others opened keep their order; everything else is one source."""
        return arguments[0] if handler in (self._take, self._ended) else None

    def _accept(self, side: Side) -> None:
        self._streams += 1
        stream = self._streams
        side.on_message = lambda message: self.post(self._take, stream, side, message)
        side.on_close = lambda: self.post(self._ended, stream)

    def _take(self, stream: int, side: Side, message: object) -> None:
        """The first message says what the stream is."""
        if stream in self._clients:
            self._handle(ClientSaid(self._stream_sets[stream], stream, message))  # type: ignore[arg-type]
        elif stream in self._backups:
            self._handle(BackupSaid(self._stream_sets[stream], stream, message))  # type: ignore[arg-type]
        elif isinstance(message, SubscriptionHello):
            self._backups[stream] = side
            self._stream_sets[stream] = message.set_name
            self._handle(BackupSaid(message.set_name, stream, message.subscribe))
        elif isinstance(message, ClientHello):
            self._clients[stream] = side
            self._stream_sets[stream] = message.set_name

    def _ended(self, stream: int) -> None:
        set_name = self._stream_sets.pop(stream, None)
        if set_name is None:
            return
        if self._clients.pop(stream, None) is not None:
            self._handle(ClientStreamClosed(set_name, stream))
        elif self._backups.pop(stream, None) is not None:
            self._handle(BackupStreamClosed(set_name, stream))

    # --- streams that this process opens --------------------------------------------------------------------------

    def _connect_store(self, set_name: SetName) -> None:
        if not self.is_alive:
            return
        side = self.world.network.connect(self.host, f"store:{self.broker}")
        side.send(StoreHello(set_name))

        def take(message: object) -> None:
            if isinstance(message, StorePong):
                self.post(self._store_connected, set_name, side)
            else:
                self.post(self._store_said, set_name, side, message)

        side.on_message = take
        side.on_close = lambda: self.post(self._store_gone, set_name, side)

    def _store_connected(self, set_name: SetName, side: Side) -> None:
        self._stores[set_name] = side
        self._handle(StoreConnected(set_name))

    def _store_said(self, set_name: SetName, side: Side, answer: object) -> None:
        if self._stores.get(set_name) is side:
            self.etcd.handle_lease(StoreAnswered())
            self._handle(StoreSaid(set_name, answer))  # type: ignore[arg-type]

    def _store_gone(self, set_name: SetName, side: Side) -> None:
        if self._stores.get(set_name) is side:
            del self._stores[set_name]
            self._handle(StoreLost(set_name))
        self.world.loop.after(STORE_RECONNECT_US, self._connect_store, set_name)

    def _read_messages(self, effect: ReadMessages) -> None:
        """A call of its own; answered once, if only by its end."""
        side = self.world.network.connect(self.host, f"store:{self.broker}")
        side.send(ReadContents(effect.set_name, effect.epoch, effect.messages))
        self._readings[side] = None
        found: list[tuple[bytes, bytes] | None] = []

        def end(answer: object) -> None:
            if side not in self._readings:
                return
            if isinstance(answer, ContentsRead):
                assert answer.contents, "the first is in every answer"
                found.extend(answer.contents)
                if len(found) < len(effect.messages):
                    self.world.branches.reach("bodies read back in parts")
                    side.send(ReadContents(effect.set_name, effect.epoch, effect.messages[len(found) :]))
                    return
            del self._readings[side]
            contents = tuple(found) if len(found) == len(effect.messages) else None
            self.world.branches.reach("bodies read back" if contents else "bodies not read back")
            self.feed(MessagesRead(effect.set_name, effect.request, contents))
            side.close()

        side.on_message = end
        side.on_close = lambda: end(None)
        self.world.loop.after(READ_TIMEOUT_US, end, None)

    def _connect_pings(self) -> None:
        if not self.is_alive:
            return
        side = self.world.network.connect(self.host, f"store:{self.broker}")
        side.send(StoreHello(None))
        side.on_message = lambda message: self.post(self.etcd.handle_lease, StoreAnswered())
        side.on_close = self._pings_lost
        self._pings = side

    def _pings_lost(self) -> None:
        self._pings = None
        self.world.loop.after(STORE_RECONNECT_US, self._connect_pings)

    def _open_subscription(self, effect: OpenSubscription) -> None:
        set_name, stream = effect.set_name, effect.stream
        for key in [key for key in self._subscriptions if key[0] == set_name]:
            self._subscriptions.pop(key).close()
        side = self.world.network.connect(self.host, f"broker:{effect.broker}")
        self._subscriptions[set_name, stream] = side
        side.on_message = lambda message: self.feed(PrimarySaid(set_name, stream, message))  # type: ignore[arg-type]
        side.on_close = lambda: self.post(self._subscription_gone, set_name, stream)
        side.send(SubscriptionHello(set_name, effect.subscribe))

    def _subscription_gone(self, set_name: SetName, stream: int) -> None:
        if self._subscriptions.pop((set_name, stream), None) is not None:
            self._handle(PrimaryStreamClosed(set_name, stream))

    # --- effects --------------------------------------------------------------------------------------------------

    def finish_begun(self) -> bool:
        effects = self.effects
        while effects:
            if self.fuse is not None:
                self.fuse -= 1
                if self.fuse <= 0:
                    self.world.crash_broker(self.broker, "between effects")
                    return False
            if self.pause_fuse is not None:
                away, duration_us = self.pause_fuse
                self.pause_fuse = (away - 1, duration_us) if away > 1 else None
                if away <= 1:
                    self.world.pause(self, duration_us)
                    return False
            if self.world.before_effect is not None:
                self.world.before_effect(self, effects[0])
                if not self.is_alive or self.is_paused:
                    return False
            self._perform(effects.popleft())
            if not self.is_alive:
                return False
        return True

    def _perform(self, effect: AnyEffect) -> None:
        match effect:
            case TellStore():
                side = self._stores.get(effect.set_name)
                if side is not None:
                    side.send(effect.request)
            case TellBackup():
                side = self._backups.get(effect.stream)
                if side is not None:
                    side.send(effect.message)
            case TellClient():
                side = self._clients.get(effect.stream)
                if side is not None and self._may_say(effect):
                    self.world.observer.told_client(self, effect)
                    side.send((self.etcd.addressed(effect.set_name, effect.message),))
                elif side is not None:
                    # What is not said must be missed by nobody: the stream ends with it, and the client attaches again.
                    self.world.branches.reach("lease ended before a message left")
                    side.close()
                    self._ended(effect.stream)
            case TellPrimary():
                side = self._subscriptions.get((effect.set_name, effect.stream))
                if side is not None:
                    if isinstance(effect.message, Refuse):  # a call of its own: it may be overtaken
                        self.world.loop.after(self.world.random.randrange(20 * MS), side.send, effect.message)
                    else:
                        side.send(effect.message)
            case ReadMessages():
                self._read_messages(effect)
            case OpenSubscription():
                self._open_subscription(effect)
            case CloseSubscription():
                side = self._subscriptions.pop((effect.set_name, effect.stream), None)
                if side is not None:
                    side.close()
            case CloseBackupStream():
                side = self._backups.pop(effect.stream, None)
                if side is not None:
                    side.close()
            case CloseClientStream():
                side = self._clients.pop(effect.stream, None)
                if side is not None:
                    side.close()
            case EndBackupStreams():
                self._end_streams(effect.set_name, self._backups)
            case EndClientStreams():
                self._end_streams(effect.set_name, self._clients)
            case (
                SwapMap()
                | PromoteSelf()
                | RestoreLeaseKey()
                | DropLeaseKey()
                | PutPresence()
                | MarkSetBack()
                | ClaimName()
                | ReleaseName()
                | LookUpNames()
                | AskDecision()
                | ListParticipants()
            ):
                self.etcd.perform(effect)
            case WakeAt():
                delay_us = (effect.boottime_ms - self.clocks.now().boottime_ms) * MS
                self.world.loop.after(max(delay_us, 0), self.feed, Woken(effect.set_name))
            case TakeApart():
                self._take_apart(effect.work)
            case Halt():
                self.world.halted(self, effect)
            case Note():
                self.world.note(self, effect)
            case _:
                assert_never(effect)

    def _end_streams(self, set_name: SetName, sides: dict[int, Side]) -> None:
        for stream in [stream for stream in sides if self._stream_sets[stream] == set_name]:
            sides.pop(stream).close()

    def _take_apart(self, work: Iterator[int]) -> None:
        """A step at a time: whoever has still something of it finds less and less."""
        if next(work, None) is not None:
            self.world.loop.after(TAKE_APART_US, self._take_apart, work)

    def _may_say(self, effect: TellClient) -> bool:
        if effect.serve_until_ms and self.world.parts.is_lease_checked:
            return self.clocks.boottime_ms() < effect.serve_until_ms
        return True

    def die(self) -> None:
        super().die()
        self.effects.clear()
        self.world.network.listen(f"broker:{self.broker}", self.host, None)
        self.etcd.close()
        sides = [
            *self._stores.values(),
            *self._backups.values(),
            *self._subscriptions.values(),
            *self._clients.values(),
            *self._readings,
        ]
        self._readings.clear()
        for side in sides:
            side.break_off()
        if self._pings is not None:
            self._pings.break_off()
