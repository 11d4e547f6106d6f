"""What backups say to their primary: subscriptions, how far they are durable, and their votes (R3, R8).

Law: a backup that knows more to be committed than this log has ends the reign. What is acknowledged counts for the process that
said it, and a vote if it is not a learner's (R4); a learner that is near is guarded, and counts from then on. Nobody has more
than he was sent: whoever says so is heard no more, and nothing that he said outlives his next subscription.
"""

from lockstep.core.clock import Now
from lockstep.core.effects import Note
from lockstep.core.ids import BrokerId, transaction_id
from lockstep.core.inputs import BackupSaid
from lockstep.core.records import RollbackReason
from lockstep.core.replication import Acknowledge, Refuse, Subscribe
from lockstep.core.transaction_states import TransactionState
from services.primary.core.backups import Backups, ReplicatingSubscription
from services.primary.core.context import Context, shown
from services.primary.core.log_keeping import LogKeeping
from services.primary.core.map_keeping import MapKeeping
from services.primary.core.membership import Guard, Membership
from services.primary.core.reign import ReignOver
from services.primary.core.transacting import append_rollback


class BackupHearing:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(
        self,
        context: Context,
        membership: Membership,
        backups: Backups,
        map_keeping: MapKeeping,
        log_keeping: LogKeeping,
    ) -> None:
        self._context = context
        self._membership = membership
        self._backups = backups
        self._map = map_keeping
        self._log = log_keeping
        end = context.writer.log.end
        self._waiting: dict[int, Subscribe] = {}
        """Those who need a snapshot, by their streams, while deleted queues are cleared: nobody reads a state before that."""
        self._lately = end, end
        """How far everything was committed at the last two ticks, or would have been."""

    def said(self, given: BackupSaid, now: Now) -> None:
        """Take a backup's message; raises `ReignOver`."""
        context, message = self._context, given.message
        if not self._may_replicate(message.broker):
            # Refused, it may not want to hear that: what it says behind it counts no more.
            if isinstance(message, Subscribe):
                self._backups.refuse_outsider(given.stream, message.broker)
            return
        if message.epoch > context.epoch:
            raise ReignOver(f"{message.broker} has seen epoch {message.epoch}")
        if message.epoch < context.epoch:
            context.figures.fenced += 1
            self._backups.refuse_epoch(given.stream, message.epoch)
            return
        match message:
            case Acknowledge(log_end=log_end):
                known = self._backups.by_stream.get(given.stream)
                if known is None:
                    return  # It is closed already.
                if log_end > self._backups.sent(known):
                    self._backups.disbelieve(known, log_end)
                    self._lost(known)
                else:
                    self._backups.acknowledged(known, log_end, now.boottime_ms)
                    self._acknowledged(known)
            case Subscribe():
                if context.state.clearing.queues and self._backups.needs_snapshot(message):
                    self._waiting[given.stream] = message
                else:
                    self._subscribe(given.stream, message, now)
            case Refuse():
                self._refused(given.stream, message)

    def _may_replicate(self, broker: BrokerId) -> bool:
        """Whether the entry names a broker as one of the set's, and another one than this: only those are given its contents."""
        return broker in self._membership.set_map.brokers and broker != self._membership.own.broker

    def closed(self, number: int) -> None:
        """A backup's stream is gone."""
        self._waiting.pop(number, None)
        lost = self._backups.close(number)
        if lost is not None:
            self._lost(lost)

    def go_on(self, now: Now) -> None:
        """Take subscriptions that waited; raises `ReignOver`."""
        while self._waiting and not self._context.state.clearing.queues:
            stream = next(iter(self._waiting))
            self._subscribe(stream, self._waiting.pop(stream), now)

    def tick(self, now: Now) -> None:
        """Heartbeats out; those who missed theirs are lost."""
        for lost in self._backups.tick(now.boottime_ms):
            self._lost(lost)
        log = self._context.writer.log
        self._lately = self._lately[1], log.commit_index if self._is_committing else log.end

    def _subscribe(self, stream: int, message: Subscribe, now: Now) -> None:
        for ended in self._backups.close_those_of(message.broker):
            self._lost(ended)
        self._log.cut_all(now)
        is_named = any(entry.disk == message.disk for entry in self._membership.counted())
        agreed = self._backups.agreed(message)
        if is_named and message.commit_index > agreed:
            self._note("damaged", "this log lacks what was committed (R5, R10)")
            raise ReignOver(
                f"{message.broker} knows commit index {message.commit_index}, this log agrees up to {agreed}"
            )
        subscription = self._backups.subscribe(stream, message, agreed, is_named, now.boottime_ms)
        if subscription is None:
            return
        self._map.subscribed(subscription.member)
        self._context.tx_queues.joined(message.broker)
        kind = "memory snapshot" if subscription.snapshot_index else "log"
        kind = "whole snapshot" if subscription.is_snapshot_whole else kind
        self._note("subscribed", f"{message.broker} by {kind} from {subscription.agreed}")
        self._membership.subscribed(subscription.member, subscription.acknowledged)
        self._acknowledged(subscription)

    def _acknowledged(self, subscription: ReplicatingSubscription) -> None:
        member, membership = subscription.member, self._membership
        membership.durable[member] = subscription.acknowledged
        self._context.tx_queues.acknowledged(member.broker, subscription.acknowledged)
        if member in membership.set_map.in_sync or member in membership.guards:
            return
        if subscription.has_joined and self._is_near(subscription):
            framed_end = self._context.writer.log.framed_end
            membership.guards[member] = Guard(member, framed_end, subscription.uncuttable)

    def _is_near(self, subscription: ReplicatingSubscription) -> bool:
        """Whether commits would not wait for it for long: it has what was committed a moment ago, however much that is by now."""
        end = self._lately[0] if self._is_committing else self._context.writer.log.end
        return end - subscription.acknowledged <= self._context.settings.guard_lag

    @property
    def _is_committing(self) -> bool:
        """Otherwise all that was appended waits, and is committed at once as soon as it can be, but for a guard that lacks it."""
        return self._log.is_serving and not self._membership.is_below_minimum()

    def _refused(self, stream: int, message: Refuse) -> None:
        """A vote against a transaction, of a member or of a learner."""
        subscription, context = self._backups.by_stream.get(stream), self._context
        if subscription is None or subscription.member not in self._membership.counted():
            return
        buffer = context.state.transactions.get(message.transaction)
        if buffer is not None and buffer.state is TransactionState.OPEN:
            name = transaction_id(context.state.set_name, message.transaction)
            self._note("refused", f"transaction={name} backup={message.broker} {shown(message.reason)}")
            append_rollback(context, message.transaction, RollbackReason.REFUSED)

    def _lost(self, lost: ReplicatingSubscription) -> None:
        self._membership.guards.pop(lost.member, None)
        self._note("backup lost", f"{lost.member.broker}")

    def _note(self, event: str, details: str) -> None:
        self._context.effects.append(Note(self._context.state.set_name, event, details))
