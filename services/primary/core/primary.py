"""The primary role of one resource set, for one epoch: takes commands, writes the log, decides what is committed.

Law: a record is committed when it is durable at every counted member (R3), and nobody hears of anything before; nobody hears
anything at all once the lease is over (R6). An epoch is begun by its own record and served when that is committed (R5).

    beginning --epoch record committed--> serving --stop, a higher epoch, a lost store--> stopped
"""

from collections.abc import Sequence

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.commands import Command
from lockstep.core.effects import AnyEffect, Note
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, Epoch, LogIndex
from lockstep.core.inputs import (
    AnyInput,
    BackupSaid,
    BackupStreamClosed,
    ClientSaid,
    ClientStreamClosed,
    ClientStreamDrained,
    ClientStreamFull,
    LeaseExtended,
    LeaseLost,
    MapSeen,
    MessagesRead,
    NameClaimed,
    NamesSeen,
    PresencesSeen,
    StoreConnected,
    StoreLost,
    StoreSaid,
    SwapAnswered,
    Tick,
)
from lockstep.core.log_copy import LogCopy
from lockstep.core.records import EpochBegins, RollbackReason
from lockstep.core.replication import Acknowledge, Refuse, Subscribe
from lockstep.core.requests import (
    AttachSession,
    ClientMessage,
    DetachSession,
    Heartbeat,
)
from lockstep.core.server_messages import HeartbeatAnswered
from lockstep.core.transaction_states import TransactionState
from services.primary.core.attachments import Attachments
from services.primary.core.backups import Backups, ReplicatingSubscription
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.clients import Clients
from services.primary.core.context import Context
from services.primary.core.dispatch import Dispatch
from services.primary.core.early_messages import EarlyMessages
from services.primary.core.expiry import Expiry
from services.primary.core.gate import CommitGate
from services.primary.core.housekeeping import Housekeeping
from services.primary.core.listener import PrimaryListener
from services.primary.core.map_keeping import MapKeeping
from services.primary.core.membership import Guard, Membership
from services.primary.core.name_claims import NameClaims
from services.primary.core.observers import TransactionObserverFactory, TxQueueObserverFactory
from services.primary.core.own_store import OwnStore
from services.primary.core.read_back import ReadBack
from services.primary.core.reign import DiskDamaged, ReignOver
from services.primary.core.replication_log import ReplicationLog
from services.primary.core.requests import deliver, handle_request, queue_deleted
from services.primary.core.settings import PrimarySettings
from services.primary.core.settling import give_back
from services.primary.core.transacting import append_rollback
from services.primary.core.tx_queue import TxQueues
from services.primary.core.writer import Writer


class PrimaryCore:
    """Lives for one epoch, from the promotion to `stop`; driven by the replica that was promoted."""

    def __init__(
        self,
        copy: LogCopy,
        own: Member,
        set_map: SetMap,
        map_revision: int,
        is_restarted: bool,
        settings: PrimarySettings,
        now: Now,
        factories: Sequence[TransactionObserverFactory] = (),
    ) -> None:
        """Take over a copy of the log whose suffix is applied. `copy.retained` are frames kept for backups.

        `own`: this replica as the map names it; `is_restarted`: its memory is not that of the set's last reign (R12).
        """
        self._settings = settings
        self._own = own
        self.epoch: Epoch = set_map.epoch
        state = copy.state
        log = ReplicationLog(
            self.epoch, copy.retained, copy.transients_from, copy.log_end, copy.commit_index, state.time_ms
        )
        tx_queues = TxQueues()
        own_factory = TxQueueObserverFactory(tx_queues, self._subscribed_brokers)
        writer = Writer(log, state, (own_factory, *factories))
        queues = [queue for _, queue in sorted(state.queues.by_id.items())]
        dispatch = Dispatch(queues, settings)
        read_back = ReadBack(self.epoch, state, settings)
        self.context = Context(
            self.epoch,
            state,
            writer,
            dispatch,
            Expiry(state),
            tx_queues,
            copy.bodies,
            read_back,
            settings,
            now,
        )
        self._log = log
        self._gate = CommitGate()
        self.streams = ClientStreams(self.context, self._gate)
        self._attachments = Attachments(self.context, self.streams)
        self._names = NameClaims(self.context, self._gate, own.incarnation)
        self._clients = Clients(self.context, self.streams, self._names)
        self.backups = Backups(self.context)
        self.membership = Membership(own, set_map, map_revision)
        self.membership.durable[own] = LogIndex(0)
        self._store = OwnStore(
            self.context, self.membership, lambda member: self.backups.of_member(member) is not None
        )
        self._map = MapKeeping(self.context, self.membership, self.backups, now)
        self._housekeeping = Housekeeping(self.context, now)
        self._listener = PrimaryListener(self.context)
        state.listener = self._listener
        self._epoch_index = LogIndex(0)
        self._early = EarlyMessages(settings)
        self._is_restarted = is_restarted
        self.stopped: str = ""
        """Why this reign is over; "" while it is not."""
        self.disk_damage: str = ""
        """What was found wrong with the own disk, which its store may not know (R10)."""

    # --- driving ---

    @property
    def is_serving(self) -> bool:
        """Whether the epoch's own record is committed."""
        return 0 < self._epoch_index <= self._log.commit_index

    @property
    def log_end(self) -> LogIndex:
        return self._log.end

    @property
    def commit_index(self) -> LogIndex:
        return self._log.commit_index

    def begin(self, now: Now) -> list[AnyEffect]:
        """Fence the own store and append the epoch's first record."""
        self._store.open()
        record = EpochBegins(None, self.epoch, self._own.broker, self._is_restarted)
        self._epoch_index = self.context.writer.append(record, True)
        return self._finish(now)

    def handle(self, given: AnyInput, now: Now) -> list[AnyEffect]:
        """Take one input; returns effects to perform in order."""
        if self.stopped:
            return []
        self.context.now = now
        try:
            self._take(given, now)
        except DiskDamaged as damaged:
            self.disk_damage = damaged.reason
            self._note("damaged", damaged.reason)
            self._stop(f"the own disk is damaged: {damaged.reason}")
        except ReignOver as over:
            self._stop(over.reason)
        return self._finish(now)

    def stop(self, reason: str) -> list[AnyEffect]:
        """End this reign: nothing is said any more but that."""
        if not self.stopped:
            self._stop(reason)
        return self._take_effects()

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self._note("stopped", reason)
        self.streams.end_all(ErrorCode.NOT_PRIMARY, reason)
        for stream in sorted(self.backups.by_stream):
            self.backups.close(stream)
        self.context.state.listener = None

    def _take(self, given: AnyInput, now: Now) -> None:
        match given:
            case ClientSaid():
                self._client_said(given)
            case ClientStreamClosed():
                self._early.drop(given.stream)
                self._attachments.close_stream(given.stream)
            case ClientStreamFull() | ClientStreamDrained():
                self._attachments.pace(given.stream, isinstance(given, ClientStreamFull))
            case BackupSaid():
                self._backup_said(given, now)
            case BackupStreamClosed():
                lost = self.backups.close(given.stream)
                if lost is not None:
                    self._backup_lost(lost)
            case StoreSaid() | StoreConnected() | StoreLost():
                if isinstance(given, StoreLost):
                    self.context.read_back.lost()
                self._store.handle(given, now)
            case MessagesRead():
                self.context.read_back.answered(given, now.boottime_ms)
                # Whoever waited for the same bodies has them now, and is answered with this input.
                self.context.effects += self.context.read_back.requests(now.boottime_ms)
            case LeaseExtended():
                self.streams.serve_until_ms = given.serve_until_ms
            case LeaseLost():
                self.streams.serve_until_ms = 0
            case MapSeen():
                self._map.map_seen(given)
            case PresencesSeen():
                self._map.presences_seen(given)
            case SwapAnswered():
                self._map.answered(given, now)
            case NameClaimed():
                stream = self._clients.claimed(given)
                if stream is not None:
                    self._drain(stream)
            case NamesSeen():
                self._names.seen(given)
            case Tick():
                self._tick(now)
            case _:
                pass

    def _finish(self, now: Now) -> list[AnyEffect]:
        """After every input: settle what it caused, write, see what is committed, say what may be said."""
        if not self.stopped:
            self._settle_listened()
            self._map.plan(now)
            self._cut_frames(now)
            self._advance(now)
            self._mind_bodies(now)
        return self._take_effects()

    def _mind_bodies(self, now: Now) -> None:
        """Ask for bodies that somebody waits for; let others go, which are read back from what is durable here only."""
        context = self.context
        context.effects += context.read_back.requests(now.boottime_ms)
        context.bodies.trim(self.membership.durable[self._own])

    def _subscribed_brokers(self) -> list[BrokerId]:
        return self.backups.brokers()

    def _take_effects(self) -> list[AnyEffect]:
        effects, self.context.effects = self.context.effects, []
        return effects

    def _note(self, event: str, details: str) -> None:
        self.context.effects.append(Note(self.context.state.set_name, event, details))

    # --- clients ---

    def _client_said(self, given: ClientSaid) -> None:
        if not self.is_serving:
            why = self._early.keep(given)
            if why:
                self.streams.turn_away(
                    given.stream, ErrorCode.UNAVAILABLE, f"epoch {self.epoch} does not serve yet: {why}"
                )
            return
        stream = self.streams.by_number.get(given.stream)
        if stream is not None:
            stream.heard_ms = self.context.now.boottime_ms
        for message in given.messages:
            if isinstance(message, AttachSession):
                if stream is None:
                    stream = self._attachments.attach(given.stream, message)
            elif stream is not None:
                self._client_message(stream, message)
        self._settle_listened()

    def _client_message(self, stream: ClientStream, message: ClientMessage) -> None:
        if stream.blocked_by and not isinstance(message, Heartbeat):
            self._clients.hold_back(stream, message)
            return
        match message:
            case Command():
                self._clients.command(stream, message)
            case Heartbeat():
                # Silence without the right to serve: the client looks for somebody who has it.
                if self.streams.may_speak:
                    self.streams.tell_now(stream.number, HeartbeatAnswered(*self.streams.head()))
            case DetachSession():
                self._attachments.detach(stream)
            case AttachSession():
                pass
            case _:
                handle_request(self.context, self.streams, self._attachments, stream, message)
        self._settle_listened()
        self._log.end_command(self._settings.frame_bytes_max)

    def _drain(self, stream: ClientStream) -> None:
        while (message := self._clients.next_held_back(stream)) is not None:
            self._client_message(stream, message)

    def _settle_listened(self) -> None:
        """Do what records that were just applied call for."""
        listener = self._listener
        while listener.has_news:
            came_back, listener.came_back = listener.came_back, []
            for queue, positions in came_back:
                if queue.id in self.context.state.queues.by_id:
                    give_back(self.context, queue, positions)
            deleted, listener.deleted = listener.deleted, []
            for queue, consumers in deleted:
                queue_deleted(self.streams, queue.name, consumers)
                self._names.release_unused("queue", queue.name)
            deleted_exchanges, listener.deleted_exchanges = listener.deleted_exchanges, []
            for name in deleted_exchanges:
                self._names.release_unused("exchange", name)

    # --- backups ---

    def _backup_said(self, given: BackupSaid, now: Now) -> None:
        message = given.message
        if message.epoch > self.epoch:
            raise ReignOver(f"{message.broker} has seen epoch {message.epoch}")
        if message.epoch < self.epoch:
            self.backups.refuse_epoch(given.stream, message.epoch)
            return
        match message:
            case Subscribe():
                self._subscribe(given.stream, message, now)
            case Acknowledge():
                subscription = self.backups.acknowledged(given.stream, message.log_end, now.boottime_ms)
                if subscription is not None:
                    self._acknowledged(subscription)
            case Refuse():
                buffer = self.context.state.transactions.get(message.transaction)
                if buffer is not None and buffer.state is TransactionState.OPEN:
                    self._note("refused", f"{message.broker} refused {message.transaction}: {message.reason}")
                    append_rollback(self.context, message.transaction, RollbackReason.REFUSED)

    def _subscribe(self, stream: int, message: Subscribe, now: Now) -> None:
        for ended in self.backups.close_those_of(message.broker):
            self._backup_lost(ended)
        while self._cut_frame(now):
            pass
        is_named = any(entry.disk == message.disk for entry in self.membership.counted())
        agreed = self.backups.agreed(message)
        if is_named and message.commit_index > agreed:
            self._note("damaged", "this log lacks what was committed (R5, R10)")
            raise ReignOver(
                f"{message.broker} knows commit index {message.commit_index}, this log agrees up to {agreed}"
            )
        subscription = self.backups.subscribe(stream, message, agreed, is_named, now.boottime_ms)
        if subscription is None:
            return
        self._map.subscribed(subscription.member)
        self.context.tx_queues.joined(message.broker)
        kind = "memory snapshot" if subscription.snapshot_index else "log"
        kind = "whole snapshot" if subscription.is_snapshot_whole else kind
        self._note("subscribed", f"{message.broker} by {kind} from {subscription.agreed}")
        self._acknowledged(subscription)

    def _acknowledged(self, subscription: ReplicatingSubscription) -> None:
        member, membership = subscription.member, self.membership
        membership.durable[member] = max(
            membership.durable.get(member, LogIndex(0)), subscription.acknowledged
        )
        self.context.tx_queues.acknowledged(member.broker, subscription.acknowledged)
        if member in membership.set_map.in_sync or member in membership.guards:
            return
        is_near = self._log.end - subscription.acknowledged <= self._settings.guard_lag
        if is_near and subscription.has_joined:
            membership.guards[member] = Guard(member, self._log.framed_end, subscription.uncuttable)

    def _backup_lost(self, lost: ReplicatingSubscription) -> None:
        self.membership.guards.pop(lost.member, None)
        self._note("backup lost", f"{lost.member.broker}")

    # --- the log ---

    def _cut_frames(self, now: Now) -> None:
        while self._store.takes_frames and self._cut_frame(now):
            pass

    def _cut_frame(self, now: Now) -> bool:
        frame = self._log.cut_frame(now.wall_ms)
        if frame is None:
            return False
        self.context.state.close_frame(frame.header)
        self._store.send(frame)
        self.backups.broadcast(frame)
        return True

    def _advance(self, now: Now) -> None:
        candidate = self.membership.commit_candidate()
        # Nothing of an earlier epoch is committed by itself: only what lies before this epoch's record, together with it.
        if candidate > self._log.commit_index and candidate >= self._epoch_index:
            was_serving = self.is_serving
            self._log.committed(candidate)
            self.context.dispatch.committed(candidate)
            self.context.tx_queues.release(candidate)
            self._log.forget(candidate, self._settings.retained_bytes_max)
            if not was_serving:
                self._begin_serving(now)
        if self.is_serving and self.streams.may_speak:
            self._gate.open_to(self._log.commit_index)
            deliver(self.context, self.streams)
            self.streams.flush_answers()

    def _begin_serving(self, now: Now) -> None:
        self._note("serving", f"epoch {self.epoch}, record {self._epoch_index}")
        for said in self._early.take():
            self._client_said(said)
        self._cut_frames(now)

    # --- time ---

    def _tick(self, now: Now) -> None:
        for lost in self.backups.tick(now.boottime_ms):
            self._backup_lost(lost)
        self._store.tick(now)
        if self.is_serving:
            self._housekeeping.tick(now)
            self._names.tick(now)
            self._attachments.end_timed_out()
            self._attachments.close_silent()
