"""The primary role of one resource set, for one epoch: takes commands, writes the log, decides what is committed.

Law: a record is committed when it is durable at every counted member (R3), and nobody hears of anything before; nobody hears
anything at all once the lease is over (R6). An epoch is begun by its own record and served when that is committed (R5).

    beginning --epoch record committed--> serving --stop, a higher epoch, a lost store--> stopped
"""

from collections import deque
from collections.abc import Sequence

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.commands import (
    AttachSession,
    ClientMessage,
    Command,
    DetachSession,
    Heartbeat,
    HeartbeatAnswered,
)
from lockstep.core.effects import AnyEffect, Note, ReleaseName, SwapMap, TellStore
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, Epoch, Incarnation, LogIndex, QueuePosition
from lockstep.core.inputs import (
    AnyInput,
    BackupSaid,
    BackupStreamClosed,
    ClientSaid,
    ClientStreamClosed,
    LeaseExtended,
    LeaseLost,
    MapSeen,
    NameClaimed,
    PresencesSeen,
    StoreConnected,
    StoreLost,
    StoreSaid,
    SwapAnswered,
    Tick,
    Verdict,
)
from lockstep.core.log_copy import LogCopy
from lockstep.core.records import DequeueReason, EpochBegins, ForgetOutcomes, RollbackReason
from lockstep.core.replication import Acknowledge, Refuse, Subscribe
from lockstep.core.store_protocol import Appended, AppendFrames, OpenSet, SetOpened, StoreRefused
from lockstep.core.transaction_states import TransactionState
from services.primary.core.backups import Backups, ReplicatingSubscription
from services.primary.core.clients import Clients, ClientStream
from services.primary.core.context import Context
from services.primary.core.dispatch import Dispatch
from services.primary.core.expiry import Expiry
from services.primary.core.gate import CommitGate
from services.primary.core.listener import PrimaryListener
from services.primary.core.membership import Guard, Membership, SwapState
from services.primary.core.observers import TransactionObserverFactory, TxQueueObserverFactory
from services.primary.core.removing import dead_letter
from services.primary.core.replication_log import ReplicationLog
from services.primary.core.requests import deliver, handle_request, queue_deleted
from services.primary.core.settings import PrimarySettings
from services.primary.core.settling import give_back
from services.primary.core.transacting import append_rollback, roll_back_timed_out
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
        log = ReplicationLog(self.epoch, copy.retained, copy.log_end, copy.commit_index, state.time_ms)
        tx_queues = TxQueues()
        own_factory = TxQueueObserverFactory(tx_queues, self._subscribed_brokers)
        writer = Writer(log, state, (own_factory, *factories))
        queues = [queue for _, queue in sorted(state.queues.by_id.items())]
        dispatch = Dispatch(queues, settings.delivery_batch_max, settings.browse_bytes_max)
        self.context = Context(self.epoch, state, writer, dispatch, Expiry(queues), tx_queues, settings)
        self._log = log
        self._gate = CommitGate()
        self.clients = Clients(self.context, self._gate, now)
        self.backups = Backups(self.context)
        self.membership = Membership(own, set_map, map_revision)
        self.membership.durable[own] = LogIndex(0)
        self._listener = PrimaryListener(self.context)
        state.listener = self._listener
        self._began_ms = now.boottime_ms
        self._epoch_index = LogIndex(0)
        self._early: list[ClientSaid] = []
        """What clients said before this epoch serves."""
        self._in_flight: deque[LogIndex] = deque()
        """Last indexes of frames on their way to the own store."""
        self._is_store_open = False
        self._store_retry_ms = 0
        self._store_told_commit = LogIndex(0)
        self._swap_number = 0
        self._swap_request = 0
        self._swap_retry_ms = 0
        self._presences: dict[BrokerId, Incarnation] | None = None
        self._ever_subscribed: set[Member] = set()
        self._sweeps: deque[tuple[int, LogIndex]] = deque()
        self._swept_ms = now.wall_ms
        self._is_restarted = is_restarted
        self.stopped: str = ""
        """Why this reign is over; "" while it is not."""

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
        self._open_store()
        record = EpochBegins(None, self.epoch, self._own.broker, self._is_restarted)
        self._epoch_index = self.context.writer.append(record, True)
        return self._finish(now)

    def handle(self, given: AnyInput, now: Now) -> list[AnyEffect]:
        """Take one input; returns effects to perform in order."""
        if self.stopped:
            return []
        self._take(given, now)
        return self._finish(now)

    def stop(self, reason: str) -> list[AnyEffect]:
        """End this reign: nothing is said any more but that."""
        if not self.stopped:
            self._stop(reason)
        return self._take_effects()

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self._note("stopped", reason)
        self.clients.end_all(self.context.state.set_name, ErrorCode.NOT_PRIMARY, reason)
        for stream in sorted(self.backups.by_stream):
            self.backups.close(stream)
        self.context.state.listener = None

    def _take(self, given: AnyInput, now: Now) -> None:
        match given:
            case ClientSaid():
                self._client_said(given, now)
            case ClientStreamClosed():
                self._early = [said for said in self._early if said.stream != given.stream]
                self.clients.close_stream(given.stream, now)
            case BackupSaid():
                self._backup_said(given, now)
            case BackupStreamClosed():
                lost = self.backups.close(given.stream)
                if lost is not None:
                    self._backup_lost(lost)
            case StoreSaid() | StoreConnected() | StoreLost():
                self._store_input(given, now)
            case LeaseExtended():
                self.clients.serve_until_ms = given.serve_until_ms
            case LeaseLost():
                self.clients.serve_until_ms = 0
            case MapSeen():
                self._map_seen(given)
            case PresencesSeen():
                self._presences = {broker: incarnation for broker, incarnation, _ in given.presences}
            case SwapAnswered():
                self._swap_answered(given, now)
            case NameClaimed():
                stream = self.clients.claimed(given, now)
                if stream is not None:
                    self._drain(stream, now)
            case Tick():
                self._tick(now)
            case _:
                pass

    def _finish(self, now: Now) -> list[AnyEffect]:
        """After every input: settle what it caused, write, see what is committed, say what may be said."""
        if not self.stopped:
            self._settle_listened()
            self._plan_membership(now)
            self._cut_frames(now)
            self._advance(now)
        return self._take_effects()

    def _subscribed_brokers(self) -> list[BrokerId]:
        return self.backups.brokers()

    def _take_effects(self) -> list[AnyEffect]:
        effects, self.context.effects = self.context.effects, []
        return effects

    def _note(self, event: str, details: str) -> None:
        self.context.effects.append(Note(self.context.state.set_name, event, details))

    # --- clients ---

    def _client_said(self, given: ClientSaid, now: Now) -> None:
        if not self.is_serving:
            self._early.append(given)
            return
        stream = self.clients.streams.get(given.stream)
        for message in given.messages:
            if isinstance(message, AttachSession):
                if stream is None:
                    stream = self.clients.attach(given.stream, message)
            elif stream is not None:
                self._client_message(stream, message, now)
        self._settle_listened()

    def _client_message(self, stream: ClientStream, message: ClientMessage, now: Now) -> None:
        if stream.blocked_by and not isinstance(message, Heartbeat):
            stream.backlog.append(message)
            return
        match message:
            case Command():
                self.clients.command(stream, message, now)
            case Heartbeat():
                self.clients.tell_now(stream.number, HeartbeatAnswered(self.epoch, self._log.commit_index))
            case DetachSession():
                self.clients.detach(stream)
            case AttachSession():
                pass
            case _:
                handle_request(self.context, self.clients, stream, message)
        self._settle_listened()

    def _drain(self, stream: ClientStream, now: Now) -> None:
        while stream.backlog and not stream.blocked_by:
            self._client_message(stream, stream.backlog.popleft(), now)

    def _settle_listened(self) -> None:
        """Do what records that were just applied call for."""
        listener = self._listener
        while listener.came_back or listener.deleted:
            came_back, listener.came_back = listener.came_back, []
            for queue, positions in came_back:
                if queue.id in self.context.state.queues.by_id:
                    give_back(self.context, queue, positions)
            deleted, listener.deleted = listener.deleted, []
            for queue, consumers in deleted:
                queue_deleted(self.context, self.clients, queue.name, consumers)
                self._release_name("queue", queue.name)

    def _release_name(self, kind: str, name: str) -> None:
        """Give a name back when its deletion is committed, unless it was declared again meanwhile."""

        def release() -> None:
            if self.context.state.queues.get(name) is None:
                self.context.effects.append(ReleaseName(self.context.state.set_name, kind, name))

        self._gate.wait(self._log.end, release)

    # --- backups ---

    def _backup_said(self, given: BackupSaid, now: Now) -> None:
        message = given.message
        if message.epoch > self.epoch:
            self._stop(f"{message.broker} has seen epoch {message.epoch}")
            return
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
        entries = [entry for entry in self.membership.counted() if entry.disk == message.disk]
        if entries and message.commit_index > self._log.end:
            self._stop(
                f"{message.broker} knows commit index {message.commit_index}, this log ends at {self._log.end}"
            )
            self._note("damaged", "this log lacks what was committed (R5, R10)")
            return
        self._cut_frame(now)
        subscription = self.backups.subscribe(stream, message, bool(entries), now.boottime_ms)
        if subscription is None:
            return
        self._ever_subscribed.add(subscription.member)
        self.context.tx_queues.joined(message.broker)
        kind = "whole snapshot" if subscription.acknowledged < subscription.agreed else "log"
        kind = "memory snapshot" if subscription.snapshot_index and kind == "log" else kind
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
        if is_near and subscription.acknowledged >= subscription.snapshot_index:
            membership.guards[member] = Guard(member, self._log.framed_end, subscription.snapshot_index)

    def _backup_lost(self, lost: ReplicatingSubscription) -> None:
        self.membership.guards.pop(lost.member, None)
        self._note("backup lost", f"{lost.member.broker}")

    def _lost_brokers(self, now: Now) -> set[BrokerId]:
        """In-sync brokers whose replica is gone: their stream ended, their process is another, or they never came."""
        lost = set()
        is_grace_over = now.boottime_ms - self._began_ms > self._settings.subscription_grace_ms
        for entry in self.membership.set_map.in_sync:
            if entry == self._own or self.backups.of_member(entry) is not None:
                continue
            is_gone = self._presences is not None and self._presences.get(entry.broker) != entry.incarnation
            if is_grace_over or is_gone or entry in self._ever_subscribed:
                lost.add(entry.broker)
        return lost

    # --- the map ---

    def _plan_membership(self, now: Now) -> None:
        membership = self.membership
        if membership.swap_state is SwapState.SENT or now.boottime_ms < self._swap_retry_ms:
            return
        target = membership.plan(self._lost_brokers(now))
        if target is not None:
            self._swap_number += 1
            self._swap_request = self._swap_number
            membership.sent(target)
            self.context.effects.append(
                SwapMap(self.context.state.set_name, self._swap_request, membership.revision, target)
            )

    def _map_seen(self, given: MapSeen) -> None:
        membership = self.membership
        if given.set_map is None:
            self._stop("the resource set was deleted")
        elif given.set_map.epoch > self.epoch or given.set_map.primary_incarnation != self._own.incarnation:
            self._stop(f"epoch {given.set_map.epoch} began on {given.set_map.primary}")
        elif given.mod_revision > membership.revision:
            if membership.is_own(given.set_map):
                self._confirm(given.set_map, given.mod_revision)
            else:
                self._stop("the map entry was changed by somebody else")

    def _confirm(self, set_map: SetMap, revision: int) -> None:
        members = ", ".join(member.broker for member in set_map.in_sync)
        self._note("in sync", f"{members} (change {set_map.change})")
        self.membership.confirmed(set_map, revision)

    def _swap_answered(self, given: SwapAnswered, now: Now) -> None:
        membership = self.membership
        if given.request != self._swap_request or membership.swap_state is not SwapState.SENT:
            return
        if given.verdict is Verdict.DONE:
            self._confirm(membership.latest_target(), given.mod_revision)
            return
        # The entry was read again before this input: a swap of ours that landed is confirmed already.
        self._swap_retry_ms = now.boottime_ms + 100
        if given.verdict is Verdict.FAILED:
            membership.failed()
        else:
            self._note("swap in doubt", f"change {membership.latest_target().change}")
            membership.in_doubt()

    # --- the log ---

    def _cut_frames(self, now: Now) -> None:
        while self._is_store_open and len(self._in_flight) < self._settings.frames_in_flight_max:
            if not self._cut_frame(now):
                break

    def _cut_frame(self, now: Now) -> bool:
        frame = self._log.cut_frame(now.wall_ms)
        if frame is None:
            return False
        self.context.state.close_frame(frame.header)
        self._in_flight.append(frame.header.last)
        if self._is_store_open:
            self._tell_store_frames((frame.durable,))
        self.backups.broadcast(frame)
        return True

    def _tell_store_frames(self, frames: tuple[bytes, ...]) -> None:
        self._store_told_commit = self._log.commit_index
        self.context.effects.append(
            TellStore(
                self.context.state.set_name,
                AppendFrames(
                    self.context.state.set_name,
                    self.epoch,
                    self._own.incarnation,
                    frames,
                    self._log.commit_index,
                ),
            )
        )

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
        if self.is_serving and now.boottime_ms < self.clients.serve_until_ms:
            self._gate.open_to(self._log.commit_index)
            deliver(self.context, self.clients)
            self.clients.flush_answers()

    def _begin_serving(self, now: Now) -> None:
        self._note("serving", f"epoch {self.epoch}, record {self._epoch_index}")
        early, self._early = self._early, []
        for said in early:
            self._client_said(said, now)
        self._cut_frames(now)

    # --- the own store ---

    def _store_input(self, given: StoreSaid | StoreConnected | StoreLost, now: Now) -> None:
        match given:
            case StoreLost():
                self._is_store_open = False
                self._store_retry_ms = 0
            case StoreConnected():
                self._open_store()
            case StoreSaid(answer=Appended() as appended) if self._is_store_open:
                self.context.is_store_low = appended.free_bytes < self._settings.reserve_bytes
                self._own_durable(appended.log_end)
            case StoreSaid(answer=SetOpened() as opened):
                self._store_opened(opened)
            case StoreSaid(answer=StoreRefused() as refused):
                self._store_refused(refused, now)
            case _:
                pass

    def _open_store(self) -> None:
        self._is_store_open = False
        self._store_retry_ms = 0
        set_name = self.context.state.set_name
        self.context.effects.append(TellStore(set_name, OpenSet(set_name, self.epoch, self._own.incarnation)))

    def _store_opened(self, opened: SetOpened) -> None:
        """The store came back: send again from its log's end, if it kept what it had acknowledged."""
        if opened.incarnation != self._own.incarnation or opened.epoch != self.epoch:
            return
        acknowledged = self.membership.durable[self._own]
        if opened.disk != self._own.disk or opened.damage or opened.log_end < acknowledged:
            self._stop(f"the own store lost what it had acknowledged: {opened.damage or opened.log_end}")
            self._note("damaged", "the own disk (R10)")
            return
        self._is_store_open = True
        self._in_flight.clear()
        self._own_durable(opened.log_end)
        for frame in self._log.frames_after(opened.log_end):
            self._in_flight.append(frame.header.last)
            self._tell_store_frames((frame.durable,))

    def _store_refused(self, refused: StoreRefused, now: Now) -> None:
        if refused.incarnation != self._own.incarnation or refused.epoch != self.epoch:
            return
        if refused.highest_epoch > self.epoch:
            self._stop(f"the own store has seen epoch {refused.highest_epoch}")
            return
        self._note("store refused", f"{refused.code.name}: {refused.message}")
        self._is_store_open = False
        self._store_retry_ms = now.boottime_ms + 500

    def _own_durable(self, log_end: LogIndex) -> None:
        durable = self.membership.durable
        durable[self._own] = max(durable[self._own], log_end)
        while self._in_flight and self._in_flight[0] <= log_end:
            self._in_flight.popleft()

    # --- time ---

    def _tick(self, now: Now) -> None:
        for lost in self.backups.tick(now.boottime_ms):
            self._backup_lost(lost)
        if self._store_retry_ms and now.boottime_ms >= self._store_retry_ms:
            self._open_store()
        if self._is_store_open and self._store_told_commit < self._log.commit_index:
            self._tell_store_frames(())
        if self.is_serving:
            self._expire(now)
            roll_back_timed_out(self.context, now)
            self.clients.end_timed_out(now)
            self._sweep_outcomes(now)

    def _expire(self, now: Now) -> None:
        context = self.context
        for queue_id, positions in context.expiry.take_due(
            now.wall_ms, self._settings.expiry_batch_max
        ).items():
            queue = context.state.queues.by_id.get(queue_id)
            if queue is None:
                continue
            free: list[QueuePosition] = []
            taken: list[QueuePosition] = []
            for position in positions:
                if position in queue.entries:
                    is_taken = position in queue.locks or context.dispatch.is_held(queue_id, position)
                    (taken if is_taken else free).append(position)
            dead_letter(context, queue, free, DequeueReason.EXPIRED)
            context.expiry.watch_again(now.wall_ms + 1000, queue_id, taken)

    def _sweep_outcomes(self, now: Now) -> None:
        """Raise the retention floor: outcomes are kept for `outcome_retention_ms` at least (T5)."""
        if now.wall_ms - self._swept_ms < self._settings.outcome_sweep_ms:
            return
        self._swept_ms = now.wall_ms
        self._sweeps.append((now.wall_ms, self._log.end))
        floor = LogIndex(0)
        while self._sweeps and self._sweeps[0][0] <= now.wall_ms - self._settings.outcome_retention_ms:
            floor = self._sweeps.popleft()[1]
        if floor > self.context.state.retention_floor:
            self.context.writer.append(ForgetOutcomes(None, floor), True)
