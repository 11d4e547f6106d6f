"""Translation between the words of `lockstep/core/store_protocol.py` and `store.proto`, for the store and for its clients.

Law: frames and items pass through as bytes that nobody looks into. A message without a request or response in it is a heartbeat:
the store answers each, unless its disk hangs.
"""

from collections.abc import Generator, Iterable, Sequence
from functools import lru_cache
from typing import assert_never

import msgspec

from lockstep.core.effects import ReadMessages
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import DiskId, Epoch, Incarnation, LogIndex, SetName
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
from lockstep.core.wire_numbers import known
from lockstep.runtime.epochs_codec import decode_epochs, decode_reigns, encode_epochs
from lockstep.runtime.turns import LeftToThread
from lockstep.runtime.wire import BytesWithin, Serialized, parse
from lockstep.wire.v1 import store_pb2

SET_NAME_BYTES_MAX = 80
"""UTF-8 bytes; percent-encoded they still fit a file's name."""
HEARTBEAT = store_pb2.AppendRequest().SerializeToString()
"""Both ways: a message that says nothing."""
_FRAMES = BytesWithin(store_pb2.AppendRequest.DESCRIPTOR, "frames", "frames")
_CHUNK_FRAMES = BytesWithin(store_pb2.AppendResponse.DESCRIPTOR, "state_chunk", "frames")
_ITEM_ENCODER = msgspec.msgpack.Encoder()
_ITEM_DECODER = msgspec.msgpack.Decoder(tuple[StateItem, ...])


@lru_cache(maxsize=1_000)
def check_set_name(name: str) -> SetName:
    """Raises `Rejected` for what cannot be a resource set's name."""
    if not name or len(name.encode()) > SET_NAME_BYTES_MAX or not name.isprintable():
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"no name of a resource set: {name[:100]!r}")
    return SetName(name)


def encode_request(request: AnyStoreRequest) -> Serialized:
    """One message of the Append stream to the store."""
    message = store_pb2.AppendRequest(
        resource_set=request.set_name, epoch=request.epoch, incarnation=request.incarnation
    )
    match request:
        case AppendFrames():
            frames = message.frames
            frames.commit_index = request.commit_index
            frames.SetInParent()
            return _FRAMES.serialize_with(message, request.frames)
        case OpenSet():
            message.open_set.SetInParent()
        case Truncate():
            message.truncate.after = request.after
            message.truncate.SetInParent()
        case LoadState():
            message.load_state.takes_blocks = request.takes_blocks
            message.load_state.SetInParent()
        case BeginInstall():
            message.begin_install.index = request.index
            message.begin_install.epochs.extend(encode_epochs(request.epochs, request.reigns))
            message.begin_install.time_ms = request.time_ms
            message.begin_install.SetInParent()
        case InstallItems():
            message.install_items.packed_items = _pack(request.items)
            message.install_items.SetInParent()
        case EndInstall():
            message.end_install.SetInParent()
        case RememberMap():
            message.remember_map.map_bytes = request.map_bytes
            message.remember_map.revision = request.revision
            message.remember_map.generation = request.generation
            message.remember_map.etcd_revision = request.etcd_revision
            message.remember_map.stamp = request.stamp
            message.remember_map.SetInParent()
        case SetAside():
            message.set_aside.disk = request.disk
            message.set_aside.SetInParent()
        case AcceptDamage():
            message.accept_damage.disk = request.disk
            message.accept_damage.unusable_from = request.unusable_from
            message.accept_damage.reason = request.reason
            message.accept_damage.SetInParent()
        case _:
            assert_never(request)
    return message.SerializeToString()


def decode_request(data: bytes | memoryview) -> AnyStoreRequest | None:
    """Inverse of `encode_request`; None for a heartbeat. Raises `Rejected`."""
    rest, (frames,) = _FRAMES.split_from(data)
    return _made_request(rest, frames)


def decode_long_request(data: bytes | memoryview) -> Generator[LeftToThread, None, AnyStoreRequest | None]:
    """The same, in steps (`in_turns`)."""
    rest, (frames,) = yield from _FRAMES.split_in_steps(data)
    return _made_request(rest, frames)


def _made_request(rest: bytes | memoryview, frames: Sequence[bytes]) -> AnyStoreRequest | None:
    """Of a message, and what was split from it."""
    message = parse(store_pb2.AppendRequest(), rest)
    kind = message.WhichOneof("request")
    if kind is None:
        return None
    head = check_set_name(message.resource_set), Epoch(message.epoch), Incarnation(message.incarnation)
    match kind:
        case "frames":
            append = message.frames
            return AppendFrames(*head, (*append.frames, *frames), LogIndex(append.commit_index))
        case "open_set":
            return OpenSet(*head)
        case "truncate":
            return Truncate(*head, LogIndex(message.truncate.after))
        case "load_state":
            return LoadState(*head, message.load_state.takes_blocks)
        case "begin_install":
            begin = message.begin_install
            reigns = decode_reigns(begin.epochs)
            return BeginInstall(
                *head, LogIndex(begin.index), decode_epochs(begin.epochs), begin.time_ms, reigns
            )
        case "install_items":
            return InstallItems(*head, _unpack(message.install_items.packed_items))
        case "end_install":
            return EndInstall(*head)
        case "remember_map":
            remember = message.remember_map
            known = remember.revision, remember.generation, remember.etcd_revision
            return RememberMap(*head, remember.map_bytes, *known, stamp=remember.stamp)
        case "set_aside":
            return SetAside(*head, DiskId(message.set_aside.disk))
        case "accept_damage":
            accept = message.accept_damage
            return AcceptDamage(*head, DiskId(accept.disk), LogIndex(accept.unusable_from), accept.reason)
        case _:
            assert_never(kind)


def encode_answer(answer: AnyStoreAnswer) -> Serialized:
    """One message of the Append stream from the store."""
    message = store_pb2.AppendResponse(
        resource_set=answer.set_name, epoch=answer.epoch, incarnation=answer.incarnation
    )
    match answer:
        case Appended(log_end=log_end, free_bytes=free_bytes):
            appended = message.appended
            appended.log_end = log_end
            if free_bytes < FREE_BYTES_UNKNOWN:
                # 0 is "not measured" on the wire.
                appended.free_bytes = max(free_bytes, 1)
            appended.SetInParent()
        case Truncated(log_end=log_end):
            message.truncated.log_end = log_end
            message.truncated.SetInParent()
        case Installed(log_end=log_end):
            message.installed.log_end = log_end
            message.installed.SetInParent()
        case StateChunk():
            message.state_chunk.packed_items = _pack(answer.items) if answer.items else b""
            message.state_chunk.SetInParent()
            return _CHUNK_FRAMES.serialize_with(message, answer.frames)
        case ItemsInstalled():
            message.items_installed.SetInParent()
        case StateLoaded():
            message.state_loaded.snapshot_index = answer.snapshot_index
            message.state_loaded.log_end = answer.log_end
            message.state_loaded.SetInParent()
        case StoreRefused():
            message.refused.code = answer.code
            message.refused.message = answer.message
            message.refused.highest_epoch = answer.highest_epoch
            message.refused.SetInParent()
        case SetOpened():
            message.set_opened.CopyFrom(_encode_opened(answer))
        case _:
            assert_never(answer)
    return message.SerializeToString()


def decode_answer(data: bytes | memoryview) -> AnyStoreAnswer | None:
    """Inverse of `encode_answer`; None for a heartbeat. Raises `Rejected`."""
    rest, (frames,) = _CHUNK_FRAMES.split_from(data)
    return _made_answer(rest, frames)


def decode_long_answer(data: bytes | memoryview) -> Generator[LeftToThread, None, AnyStoreAnswer | None]:
    """The same, in steps (`in_turns`)."""
    rest, (frames,) = yield from _CHUNK_FRAMES.split_in_steps(data)
    return _made_answer(rest, frames)


def _made_answer(rest: bytes | memoryview, frames: Sequence[bytes]) -> AnyStoreAnswer | None:
    """Of a message, and what was split from it."""
    message = parse(store_pb2.AppendResponse(), rest)
    kind = message.WhichOneof("response")
    if kind is None:
        return None
    head = SetName(message.resource_set), Epoch(message.epoch), Incarnation(message.incarnation)
    match kind:
        case "appended":
            appended = message.appended
            return Appended(*head, LogIndex(appended.log_end), appended.free_bytes or FREE_BYTES_UNKNOWN)
        case "truncated":
            return Truncated(*head, LogIndex(message.truncated.log_end))
        case "installed":
            return Installed(*head, LogIndex(message.installed.log_end))
        case "items_installed":
            return ItemsInstalled(*head)
        case "state_chunk":
            chunk = message.state_chunk
            return StateChunk(*head, _unpack(chunk.packed_items), (*chunk.frames, *frames))
        case "state_loaded":
            loaded = message.state_loaded
            return StateLoaded(*head, LogIndex(loaded.snapshot_index), LogIndex(loaded.log_end))
        case "refused":
            refused = message.refused
            return StoreRefused(*head, _code(refused.code), refused.message, Epoch(refused.highest_epoch))
        case "set_opened":
            opened = message.set_opened
            return SetOpened(
                *head,
                disk=DiskId(opened.disk),
                log_end=LogIndex(opened.log_end),
                epochs=decode_epochs(opened.epochs),
                snapshot_index=LogIndex(opened.snapshot_index),
                commit_index=LogIndex(opened.commit_index),
                highest_epoch=Epoch(opened.highest_epoch),
                map_bytes=opened.map_bytes,
                map_revision=opened.map_revision,
                generation=opened.generation,
                damage=opened.damage,
                etcd_revision=opened.etcd_revision,
                stamp=opened.stamp,
                reigns=decode_reigns(opened.epochs),
                is_unusable=opened.is_unusable,
                has_no_state=opened.has_no_state,
            )
        case _:
            assert_never(kind)


def encode_items(items: Iterable[StateItem]) -> list[store_pb2.Item]:
    return [store_pb2.Item(key=item.key, value=item.value, is_durable=item.is_durable) for item in items]


def _pack(items: tuple[StateItem, ...]) -> bytes:
    """As protobuf messages, items would cost three times as much: a snapshot has millions."""
    return _ITEM_ENCODER.encode(items)


def _unpack(data: bytes) -> tuple[StateItem, ...]:
    try:
        return _ITEM_DECODER.decode(data) if data else ()
    except msgspec.MsgspecError as error:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"{len(data)} bytes are no items") from error


def _encode_opened(answer: SetOpened) -> store_pb2.AppendResponse.SetOpened:
    return store_pb2.AppendResponse.SetOpened(
        disk=answer.disk,
        log_end=answer.log_end,
        epochs=encode_epochs(answer.epochs, answer.reigns),
        snapshot_index=answer.snapshot_index,
        commit_index=answer.commit_index,
        highest_epoch=answer.highest_epoch,
        map_bytes=answer.map_bytes,
        map_revision=answer.map_revision,
        generation=answer.generation,
        damage=answer.damage,
        etcd_revision=answer.etcd_revision,
        stamp=answer.stamp,
        is_unusable=answer.is_unusable,
        has_no_state=answer.has_no_state,
    )


def _code(number: int) -> ErrorCode:
    """A code of a newer store is at least an error."""
    return known(ErrorCode, number, ErrorCode.UNAVAILABLE)


def encode_read_messages(effect: ReadMessages, answered: int) -> bytes:
    """The request of `ReadMessages`, for all but the first `answered` messages."""
    request = store_pb2.ReadMessagesRequest(
        resource_set=effect.set_name, epoch=effect.epoch, message_ids=effect.messages[answered:]
    )
    return request.SerializeToString()


def decode_messages_read(data: bytes, asked: int) -> tuple[tuple[bytes, bytes] | None, ...] | None:
    """(properties, body) of the first of the `asked` messages, one at least, None for one that is not there; None for an answer
    that is none.
    """
    response = parse(store_pb2.ReadMessagesResponse(), data)
    parts = response.is_there, response.properties, response.bodies
    count = len(response.is_there)
    if not 0 < count <= asked or any(len(part) != count for part in parts):
        return None
    return tuple(
        (properties, body) if is_there else None for is_there, properties, body in zip(*parts, strict=True)
    )
