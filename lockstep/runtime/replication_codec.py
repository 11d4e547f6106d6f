"""Translation between the words of `lockstep/core/replication.py` and `primary.proto`.

Law: frames pass through as bytes that nobody looks into. What waits together for one backup becomes as few gRPC messages as
possible: frames in a row are joined.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import assert_never

from lockstep.core.epoch_table import EpochStarts
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import (
    EPOCH_MAX,
    BrokerId,
    DiskId,
    Epoch,
    Incarnation,
    LogIndex,
    SetName,
)
from lockstep.core.pieces import at_once
from lockstep.core.replication import (
    FRAMES_IN_ONE,
    Acknowledge,
    Frames,
    HandedOver,
    Refuse,
    SnapshotChunk,
    Subscribe,
    SubscriptionAccepted,
    SubscriptionRefused,
    ToBackup,
)
from lockstep.core.store_protocol import StateItem
from lockstep.runtime.epochs_codec import decode_reigns, encode_epochs
from lockstep.runtime.handed_over_codec import encode_handed_over, handed_over_in
from lockstep.runtime.turns import LeftToThread
from lockstep.runtime.wire import BytesWithin, Serialized, parse
from lockstep.wire.v1 import primary_pb2, store_pb2

_Response = primary_pb2.SubscribeResponse
_PARTS = BytesWithin(_Response.DESCRIPTOR, "frames", "transient", "durable")


def encode_subscribe(subscribe: Subscribe, subscription: str) -> bytes:
    """`subscription`: the UUID by which the Acknowledge stream and Refuse name this subscription."""
    return primary_pb2.SubscribeRequest(
        resource_set=subscribe.set_name,
        epoch=subscribe.epoch,
        broker=subscribe.broker,
        disk=subscribe.disk,
        incarnation=subscribe.incarnation,
        log_end=subscribe.log_end,
        epochs=encode_epochs(subscribe.epochs, subscribe.reigns),
        commit_index=subscribe.commit_index,
        is_memory_whole=subscribe.is_memory_whole,
        applied=subscribe.applied,
        subscription=subscription,
        takes_blocks=subscribe.takes_blocks,
    ).SerializeToString()


def decode_subscribe(data: bytes) -> tuple[Subscribe, str]:
    """The words and the subscription's UUID. Raises `Rejected` for bytes that are none."""
    message = primary_pb2.SubscribeRequest()
    parse(message, data)
    if not (message.resource_set and message.broker and message.subscription):
        raise Rejected(ErrorCode.INVALID_ARGUMENT, "a subscription names its set, broker and id")
    return (
        Subscribe(
            set_name=SetName(message.resource_set),
            epoch=epoch_said(message.epoch),
            broker=BrokerId(message.broker),
            disk=DiskId(message.disk),
            incarnation=Incarnation(message.incarnation),
            log_end=LogIndex(message.log_end),
            epochs=_epochs(message.epochs),
            commit_index=LogIndex(message.commit_index),
            is_memory_whole=message.is_memory_whole,
            applied=LogIndex(message.applied),
            takes_blocks=message.takes_blocks,
            reigns=decode_reigns(message.epochs),
        ),
        message.subscription,
    )


def encode_to_backup(messages: Sequence[ToBackup], bytes_max: int) -> Iterator[Serialized]:
    """What one backup's stream carries next; joined frames make up to `bytes_max` bytes, a single one may be longer."""
    if len(messages) == 1 and isinstance(only := messages[0], Frames) and len(only.frames) == 1:
        # Nearly always: as it would be joined.
        yield _encode_frames(only, only.frames)
        return
    joined = _FrameJoiner(bytes_max)
    for message in messages:
        if isinstance(message, Frames):
            yield from joined.add(message)
        else:
            yield from joined.flush()
            if isinstance(message, HandedOver):
                yield at_once(encode_handed_over(message))
            else:
                yield _encode_one(message).SerializeToString()
    yield from joined.flush()


def decode_to_backup(data: bytes | memoryview) -> ToBackup:
    """Raises `Rejected` for bytes that are no such message."""
    rest, (transient, durable) = _PARTS.split_from(data)
    return _made_to_backup(rest, transient, durable)


def decode_long_to_backup(data: bytes | memoryview) -> Generator[LeftToThread, None, ToBackup]:
    """The same, in steps (`in_turns`)."""
    rest, (transient, durable) = yield from _PARTS.split_in_steps(data)
    return _made_to_backup(rest, transient, durable)


def _made_to_backup(
    rest: bytes | memoryview, transient: Sequence[bytes], durable: Sequence[bytes]
) -> ToBackup:
    """Of a message, and what was split from it."""
    message = parse(primary_pb2.SubscribeResponse(), rest)
    set_name, epoch = SetName(message.resource_set), Epoch(message.epoch)
    match message.WhichOneof("response"):
        case "frames":
            frames = message.frames
            durable, transient = (*frames.durable, *durable), (*frames.transient, *transient)
            if len(durable) != len(transient):
                raise Rejected(ErrorCode.INVALID_ARGUMENT, "frames without their transient parts")
            pairs = tuple(zip(durable, transient, strict=True))
            return Frames(set_name, epoch, pairs, LogIndex(frames.commit_index))
        case "accepted":
            accepted = message.accepted
            return SubscriptionAccepted(
                set_name,
                epoch,
                agreed=LogIndex(accepted.agreed),
                snapshot_index=LogIndex(accepted.snapshot_index),
                is_snapshot_whole=accepted.is_snapshot_whole,
                epochs=_epochs(accepted.epochs),
                time_ms=accepted.time_ms,
                reigns=decode_reigns(accepted.epochs),
            )
        case "refused":
            return SubscriptionRefused(
                set_name, epoch, message.refused.reason, LogIndex(message.refused.missing_from)
            )
        case "handed_over":
            return handed_over_in(set_name, epoch, message.handed_over)
        case "snapshot_chunk":
            chunk = message.snapshot_chunk
            items = tuple(StateItem(item.key, item.value, item.is_durable) for item in chunk.items)
            return SnapshotChunk(set_name, epoch, items, chunk.is_last)
        case _:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, "a message of the primary without content")


def encode_acknowledge(acknowledge: Acknowledge, subscription: str) -> bytes:
    return primary_pb2.AcknowledgeRequest(
        subscription=subscription, epoch=acknowledge.epoch, log_end=acknowledge.log_end
    ).SerializeToString()


def decode_acknowledge(data: bytes | memoryview) -> tuple[str, Epoch, LogIndex]:
    """(subscription or "", epoch, log end). Raises `Rejected` for bytes that are no such message."""
    message = primary_pb2.AcknowledgeRequest()
    parse(message, data)
    return message.subscription, epoch_said(message.epoch), LogIndex(message.log_end)


def epoch_said(number: int) -> Epoch:
    """An epoch as a peer says it. Raises `Rejected` for one above which there is none."""
    if number > EPOCH_MAX:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"epoch {number} is above {EPOCH_MAX}", epoch=number)
    return Epoch(number)


def encode_refuse(refuse: Refuse, subscription: str) -> bytes:
    index, epoch = refuse.transaction
    return primary_pb2.RefuseRequest(
        subscription=subscription,
        epoch=refuse.epoch,
        transaction_index=index,
        transaction_epoch=epoch,
        reason=refuse.reason,
    ).SerializeToString()


def to_backup_bytes(message: ToBackup) -> int:
    """About how many bytes a message has: what an outbox counts."""
    match message:
        case Frames():
            return sum([len(durable) + len(transient) + 16 for durable, transient in message.frames])
        case SnapshotChunk():
            return sum(len(item.key) + len(item.value) + 8 for item in message.items)
        case HandedOver():
            return 64 + 64 * len(message.open) + sum(16 + 8 * len(held.positions) for held in message.held)
        case SubscriptionAccepted() | SubscriptionRefused():
            return 64
        case _:
            assert_never(message)


class _FrameJoiner:
    """Frames of one epoch in a row, until they are as long, or as many, as a message should have."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pairs: list[tuple[bytes, bytes]] = []
        self._bytes = 0
        self._last: Frames | None = None

    def add(self, frames: Frames) -> Iterator[Serialized]:
        if self._last is not None and self._last.epoch != frames.epoch:
            yield from self.flush()
        self._last = frames
        for pair in frames.frames:
            more = len(pair[0]) + len(pair[1])
            if self._pairs and (self._bytes + more > self._bytes_max or len(self._pairs) == FRAMES_IN_ONE):
                yield from self.flush()
                self._last = frames
            self._pairs.append(pair)
            self._bytes += more

    def flush(self) -> Iterator[Serialized]:
        last, pairs = self._last, self._pairs
        if last is None:
            return
        self._last, self._pairs, self._bytes = None, [], 0
        yield _encode_frames(last, pairs)


def _encode_frames(last: Frames, pairs: Sequence[tuple[bytes, bytes]]) -> Serialized:
    """`pairs` with all else as `last` says it."""
    response = _Response(resource_set=last.set_name, epoch=last.epoch)
    frames = response.frames
    frames.SetInParent()
    frames.commit_index = last.commit_index
    return _PARTS.serialize_with(response, [one[1] for one in pairs], [one[0] for one in pairs])


def _encode_one(
    message: SubscriptionAccepted | SubscriptionRefused | SnapshotChunk,
) -> primary_pb2.SubscribeResponse:
    response = primary_pb2.SubscribeResponse(resource_set=message.set_name, epoch=message.epoch)
    match message:
        case SubscriptionAccepted():
            response.accepted.CopyFrom(
                primary_pb2.SubscribeResponse.Accepted(
                    agreed=message.agreed,
                    snapshot_index=message.snapshot_index,
                    is_snapshot_whole=message.is_snapshot_whole,
                    epochs=encode_epochs(message.epochs, message.reigns),
                    time_ms=message.time_ms,
                )
            )
        case SubscriptionRefused():
            response.refused.reason = message.reason
            response.refused.missing_from = message.missing_from
            response.refused.SetInParent()
        case SnapshotChunk():
            response.snapshot_chunk.is_last = message.is_last
            response.snapshot_chunk.SetInParent()
            response.snapshot_chunk.items.extend(
                store_pb2.Item(key=item.key, value=item.value, is_durable=item.is_durable)
                for item in message.items
            )
        case _:
            assert_never(message)
    return response


def _epochs(starts: Sequence[store_pb2.EpochStart]) -> EpochStarts:
    return tuple((epoch_said(start.epoch), LogIndex(start.first_index)) for start in starts)
