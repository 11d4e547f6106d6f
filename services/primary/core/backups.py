"""The primary's view of its backups: one ReplicatingSubscription for each stream of the log (R8).

Law: a stream carries the log without gaps from where the two logs agree. What a backup acknowledges counts for the process that
said it and for no other. A disk that the map names is only cut behind this log and appended to; a snapshot of everything goes
only to a disk that the map does not name.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

from lockstep.core.cluster_map import Member
from lockstep.core.effects import CloseBackupStream, Note, TellBackup
from lockstep.core.epoch_table import agreement
from lockstep.core.frames import Frame
from lockstep.core.ids import BrokerId, Epoch, LogIndex
from lockstep.core.item_blocks import is_block
from lockstep.core.replication import (
    FRAMES_IN_ONE,
    Frames,
    HandedOver,
    SnapshotChunk,
    Subscribe,
    SubscriptionAccepted,
    SubscriptionRefused,
)
from lockstep.core.store_protocol import StateItem
from services.primary.core.catching_up import CatchingUp
from services.primary.core.context import Context, shown
from services.primary.core.snapshot_sending import SnapshotSending

_PARTS_OF = itemgetter(Frame._fields.index("durable"), Frame._fields.index("transient"))
SNAPSHOT_TURN_CHUNKS = 4
"""Parts of a snapshot on their way to begin with, and after a tick without an acknowledgement: 4 MiB, encoded in about 25 ms, so
that commits and heartbeats go on meanwhile.
"""
PAUSES_MAX = 8
"""In one turn: each is some tenths of a millisecond for which nothing was found."""
CATCH_UP_CHUNKS = 16
"""Parts of the log on their way behind a whole snapshot: what a newcomer makes durable while the next parts travel."""
SNAPSHOT_ITEM_BYTES = 256
"""What an item counts beside its bytes: places in a queue are small and many, and each takes as long as 256 bytes of content."""
SNAPSHOT_BLOCK_BYTES = 32 * 1024
"""The same of a block, which may hold 128 places: some thousands in a part."""


@dataclass(slots=True)
class ReplicatingSubscription:
    """One backup's stream; ends with it."""

    stream: int
    member: Member
    agreed: LogIndex
    snapshot_index: LogIndex
    uncuttable: LogIndex
    """Up to here nothing can be cut on that replica any more: it holds a snapshot, or was told that so much is committed."""
    acknowledged: LogIndex
    heard_ms: int
    said_ms: int
    snapshot: SnapshotSending | None = None
    """What is left to be sent of its snapshot; the state as it was when it subscribed, whatever is applied meanwhile."""
    is_snapshot_whole: bool = False
    lacked: deque[Frame] = field(default_factory=deque)
    """Frames that it lacks and was not sent, in order, new ones behind them; a memory snapshot waits for them."""
    catching_up: CatchingUp | None = None
    """Frames behind a whole snapshot, from its first part until none of them waits."""
    has_sent_part: bool = False
    """Since the last tick, because a part was acknowledged: a whole snapshot clocks itself."""
    told_commit: LogIndex = LogIndex(0)
    has_joined: bool = False
    """Its memory is whole: it has the snapshot that it was sent, if any (R12)."""

    @property
    def bytes_behind(self) -> int:
        """Of the log that waits in memory until the newcomer can take it."""
        return self.catching_up.bytes if self.catching_up is not None else 0


class Backups:
    """All subscriptions of one epoch; driven by the primary core."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.by_stream: dict[int, ReplicatingSubscription] = {}
        self._ticked_ms = context.now.boottime_ms
        self._believed_ms = 0
        """From when on what is heard was said lately, on CLOCK_BOOTTIME: this process stood still before."""

    @property
    def _misses_ms(self) -> int:
        settings = self._context.settings
        return settings.heartbeat_ms * settings.heartbeat_misses

    def are_heard_lately(self, now_ms: int) -> bool:
        """Whether those whose streams are open were there a moment ago. Who stood still hears first what was said to him since,
        perhaps by backups that have left him behind that.
        """
        return now_ms - self._ticked_ms <= self._misses_ms and now_ms >= self._believed_ms

    def brokers(self) -> list[BrokerId]:
        return sorted(subscription.member.broker for subscription in self.by_stream.values())

    def of_member(self, member: Member) -> ReplicatingSubscription | None:
        for found in self.by_stream.values():
            if found.member == member:
                return found
        return None

    def close_those_of(self, broker: BrokerId) -> list[ReplicatingSubscription]:
        """End what a broker had before it subscribed anew; answers what was ended."""
        ended = [found for found in self.by_stream.values() if found.member.broker == broker]
        for subscription in ended:
            self.close(subscription.stream)
        return ended

    def agreed(self, message: Subscribe) -> LogIndex:
        """Up to where the subscriber's log is this one."""
        ours = self._context.state.epochs.outline(self._context.writer.log.end)
        return agreement(ours, message.outline)

    def needs_snapshot(self, message: Subscribe) -> bool:
        """Whether the subscriber lacks more than frames that are here."""
        return not all(self._has_of_log(message, self.agreed(message)))

    def _has_of_log(self, message: Subscribe, agreed: LogIndex) -> tuple[bool, bool]:
        """Whether the frames are here that a subscriber's disk lacks, and those that its memory does."""
        log = self._context.writer.log
        # What it knows to be committed it applies, whatever it is sent there: in another log that says nothing.
        reaches = max(message.applied, message.commit_index)
        is_memory_here = message.is_memory_whole and reaches <= agreed and agreed >= log.transients_from
        return agreed >= log.retained_from, is_memory_here

    def subscribe(
        self, stream: int, message: Subscribe, agreed: LogIndex, is_disk_named: bool, now_ms: int
    ) -> ReplicatingSubscription | None:
        """Accept a subscription and send what it lacks, or refuse it (None). The log has no record outside a frame now."""
        context = self._context
        log = context.writer.log
        if is_disk_named and agreed < log.commit_index:
            # All that is committed was acknowledged on every disk that the map names: this one lost a part of it (R10).
            reason = f"the named disk of {message.broker} agrees up to {agreed}, and {log.commit_index} was acknowledged"
            self._refuse(stream, reason, LogIndex(agreed + 1))
            return None
        assert log.framed_end == log.end, "a subscription begins between frames"
        member = Member(message.broker, message.disk, message.incarnation)
        is_retained, is_memory_whole = self._has_of_log(message, agreed)
        if is_retained and is_memory_whole:
            snapshot_index, is_whole = LogIndex(0), False
        elif is_retained and agreed >= message.commit_index:
            snapshot_index, is_whole = log.end, False
        elif not is_disk_named:
            snapshot_index, is_whole = log.end, True
        else:
            self._refuse(
                stream, f"the named disk of {message.broker} lacks frames that are not kept: agreed {agreed}"
            )
            return None
        subscription = ReplicatingSubscription(
            stream,
            member,
            agreed,
            snapshot_index,
            snapshot_index if is_whole else max(snapshot_index, message.commit_index, message.applied),
            LogIndex(0) if is_whole else agreed,
            now_ms,
            now_ms,
            has_joined=not snapshot_index,
        )
        self.by_stream[stream] = subscription
        self._tell(
            stream,
            SubscriptionAccepted(
                context.state.set_name,
                context.epoch,
                agreed,
                snapshot_index,
                is_whole,
                tuple(context.state.epochs.entries) if is_whole else (),
                context.state.time_ms,
                context.state.epochs.reigns if is_whole else (),
            ),
        )
        if not is_whole:
            subscription.lacked = log.frames_after(agreed)
            self._send_lacked(subscription)
        if snapshot_index:
            in_blocks = is_whole and message.takes_blocks
            items = context.state.items_in_pieces(durable=is_whole, in_blocks=in_blocks)
            subscription.snapshot = SnapshotSending(
                items, context.read_back, context.settings.reading_bytes_max
            )
            subscription.is_snapshot_whole = is_whole
            subscription.catching_up = CatchingUp() if is_whole else None
        if subscription.lacked:
            context.pieces.begin(self._send_all_lacked(subscription))
            context.pieces.go_on()
            context.effects += context.pieces.ask(context.state.set_name, context.now)
        elif subscription.snapshot is not None:
            self._send_snapshot(subscription, SNAPSHOT_TURN_CHUNKS)
        return subscription

    def _send_lacked(self, subscription: ReplicatingSubscription) -> int:
        """Some frames; answers how many, perhaps none: the commit index is told all the same."""
        lacked = subscription.lacked
        count = min(len(lacked), FRAMES_IN_ONE)
        self.send(subscription, [lacked.popleft() for _ in range(count)])
        return count

    def _send_all_lacked(self, subscription: ReplicatingSubscription) -> Iterator[int]:
        """In steps that say what they cost (`Pieces`), and begin the snapshot that waits for that."""
        while subscription.lacked:
            if self.by_stream.get(subscription.stream) is not subscription:
                return
            yield self._send_lacked(subscription)
        if subscription.snapshot is not None and self.by_stream.get(subscription.stream) is subscription:
            self._send_snapshot(subscription, SNAPSHOT_TURN_CHUNKS)

    def send(self, subscription: ReplicatingSubscription, frames: Iterable[Frame]) -> None:
        """Send frames, as they were serialised, with the commit index."""
        context = self._context
        subscription.told_commit = context.writer.log.commit_index
        parts = tuple(map(_PARTS_OF, frames))
        self._tell(
            subscription.stream,
            Frames(context.state.set_name, context.epoch, parts, subscription.told_commit),
        )

    def broadcast(self, frame: Frame) -> None:
        """A new frame, to everybody."""
        for stream in sorted(self.by_stream):
            subscription = self.by_stream[stream]
            if subscription.lacked:
                subscription.lacked.append(frame)
            elif subscription.catching_up is not None:
                subscription.catching_up.put(frame)
            else:
                self.send(subscription, (frame,))

    def sent(self, subscription: ReplicatingSubscription) -> LogIndex:
        """Up to where it was sent the log: no backup can have more of it."""
        catching_up, lacked = subscription.catching_up, subscription.lacked
        if lacked:
            return LogIndex(lacked[0].header.first - 1)
        return self._context.writer.log.framed_end if catching_up is None else catching_up.sent

    def disbelieve(self, subscription: ReplicatingSubscription, log_end: LogIndex) -> None:
        """End a subscription whose backup says that it has more than it was sent."""
        broker, sent = subscription.member.broker, self.sent(subscription)
        reason = f"{broker} acknowledged {log_end}, and was sent the log up to {sent}"
        self._context.effects.append(
            Note(self._context.state.set_name, "acknowledgement disbelieved", reason, is_warning=True)
        )
        self._refuse(subscription.stream, reason)
        self.close(subscription.stream)

    def acknowledged(self, subscription: ReplicatingSubscription, log_end: LogIndex, now_ms: int) -> None:
        """A backup said how far it is durable, within what it was sent."""
        subscription.heard_ms = now_ms
        subscription.acknowledged = max(subscription.acknowledged, log_end)
        subscription.has_joined = subscription.has_joined or log_end >= subscription.snapshot_index
        if subscription.snapshot is None:
            self._catch_up(subscription)
        elif subscription.is_snapshot_whole:
            # Beside a memory snapshot the log goes on: what is acknowledged need not be a part of it.
            subscription.has_sent_part, subscription.said_ms = True, now_ms
            self._send_snapshot(subscription, 1)

    def close(self, stream: int) -> ReplicatingSubscription | None:
        """End a subscription; None when it was closed already."""
        subscription = self.by_stream.pop(stream, None)
        if subscription is not None:
            self._context.effects.append(CloseBackupStream(self._context.state.set_name, stream))
            self._context.tx_queues.left(subscription.member.broker)
        return subscription

    def turn_away(self, stream: int, reason: str) -> None:
        """Refuse a stream that has no subscription yet."""
        set_name = self._context.state.set_name
        refused = SubscriptionRefused(set_name, self._context.epoch, reason)
        self._context.effects += [TellBackup(set_name, stream, refused), CloseBackupStream(set_name, stream)]

    def tick(self, now_ms: int) -> list[ReplicatingSubscription]:
        """Heartbeats out, and those closed who missed theirs; answers the closed ones."""
        settings = self._context.settings
        commit_index = self._context.writer.log.commit_index
        lost = []
        if now_ms - self._ticked_ms > self._misses_ms:
            self._believed_ms = now_ms + 2 * self._misses_ms
        self._ticked_ms = now_ms
        for stream in sorted(self.by_stream):
            subscription = self.by_stream[stream]
            if now_ms - subscription.heard_ms > self._misses_ms:
                self.close(stream)
                lost.append(subscription)
            elif (behind := subscription.bytes_behind) > settings.catching_up_bytes_max:
                details = f"{subscription.member.broker} by {behind} bytes of log"
                self._context.effects.append(
                    Note(self._context.state.set_name, "newcomer too slow", details, is_warning=True)
                )
                self.close(stream)
                lost.append(subscription)
            elif subscription.snapshot is not None:
                if not subscription.has_sent_part:
                    subscription.said_ms = now_ms
                    if subscription.snapshot.is_waiting() or subscription.lacked:
                        # Nothing yet: the newcomer hears that this primary lives.
                        chunk = SnapshotChunk(self._context.state.set_name, self._context.epoch, (), False)
                        self._tell(stream, chunk)
                    self._send_snapshot(subscription, SNAPSHOT_TURN_CHUNKS)
                subscription.has_sent_part = False
            elif (
                subscription.told_commit < commit_index
                or now_ms - subscription.said_ms >= settings.heartbeat_ms
            ):
                subscription.said_ms = now_ms
                self.send(subscription, ())
        return lost

    def reassure(self, now_ms: int) -> None:
        """Those that follow hear that this primary lives, while its last word is gathered: nothing else is said to them."""
        for subscription in self.by_stream.values():
            is_due = now_ms - subscription.said_ms >= self._context.settings.heartbeat_ms
            if is_due and subscription.snapshot is None and subscription.catching_up is None:
                subscription.said_ms = now_ms
                self.send(subscription, ())

    def hand_over(self, handed: HandedOver) -> Iterator[int]:
        """The reign ends for `handed.to`: tell everybody, behind all that they lack, for the lease key goes for all at the same
        moment. In steps that say what they cost (`Pieces`).
        """
        for stream in sorted(self.by_stream):
            subscription = self.by_stream[stream]
            if subscription.catching_up is not None and subscription.snapshot is None:
                subscription.lacked.extend(subscription.catching_up.rest())
            while subscription.lacked:
                yield self._send_lacked(subscription)
        for stream in sorted(self.by_stream):
            self._tell(stream, handed)

    def refuse_epoch(self, stream: int, epoch: Epoch) -> None:
        """The subscriber speaks of another epoch than this one."""
        self._refuse(stream, f"subscribed in epoch {epoch}, this is epoch {self._context.epoch}")

    def refuse_outsider(self, stream: int, broker: BrokerId) -> None:
        """The subscriber says that it is a broker that is none of the set's."""
        self._refuse(stream, f"{shown(broker)} is no backup of this set by its entry")

    def _refuse(self, stream: int, reason: str, missing_from: LogIndex = LogIndex(0)) -> None:
        set_name, epoch = self._context.state.set_name, self._context.epoch
        self._tell(stream, SubscriptionRefused(set_name, epoch, reason, missing_from))
        self._context.effects.append(CloseBackupStream(self._context.state.set_name, stream))

    def _send_snapshot(self, subscription: ReplicatingSubscription, chunks_max: int) -> None:
        """The next parts of a snapshot: as much as one turn may take, so that a big state stops nothing else."""
        context, stream = self._context, subscription.stream
        set_name, settings = context.state.set_name, context.settings
        snapshot = subscription.snapshot
        assert snapshot is not None, "there is something left to be sent"
        if snapshot.is_waiting() or subscription.lacked:
            return
        chunk: list[StateItem] = []
        size = chunks = 0
        go_on = partial(self._go_on, subscription, chunks_max)
        pauses = 0
        while (item := snapshot.next(go_on)) is not None or (snapshot.is_pausing and pauses < PAUSES_MAX):
            if item is None:
                pauses += 1
                continue
            chunk.append(item)
            size += len(item.key) + len(item.value)
            size += SNAPSHOT_BLOCK_BYTES if is_block(item.key) else SNAPSHOT_ITEM_BYTES
            if size >= settings.snapshot_chunk_bytes:
                self._tell(stream, SnapshotChunk(set_name, context.epoch, tuple(chunk), False))
                chunks += 1
                chunk, size = [], 0
                if chunks == chunks_max:
                    return
        is_last = not (snapshot.is_waiting() or snapshot.is_pausing)
        if chunk or not snapshot.is_waiting():
            self._tell(stream, SnapshotChunk(set_name, context.epoch, tuple(chunk), is_last))
        if not is_last:
            return
        subscription.snapshot = None
        if subscription.catching_up is not None:
            subscription.catching_up.sent = subscription.snapshot_index
        self._catch_up(subscription)

    def _catch_up(self, subscription: ReplicatingSubscription) -> None:
        """The next frames behind a whole snapshot, if they wait; the log goes directly from when none is left."""
        catching_up, chunk = subscription.catching_up, self._context.settings.snapshot_chunk_bytes
        if catching_up is None:
            return
        for _ in range(CATCH_UP_CHUNKS):
            # What does not leave now leaves with the next acknowledgement.
            frames = catching_up.turn(subscription.acknowledged, chunk, CATCH_UP_CHUNKS * chunk)
            if not frames:
                break
            self.send(subscription, frames)
        if not catching_up:
            subscription.catching_up = None

    def _go_on(self, subscription: ReplicatingSubscription, chunks_max: int) -> None:
        """Bodies that a snapshot waited for are here."""
        if self.by_stream.get(subscription.stream) is subscription:
            self._send_snapshot(subscription, chunks_max)

    def _tell(
        self,
        stream: int,
        message: SubscriptionAccepted | SubscriptionRefused | HandedOver | SnapshotChunk | Frames,
    ) -> None:
        self._context.effects.append(TellBackup(self._context.state.set_name, stream, message))
