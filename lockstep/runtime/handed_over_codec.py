"""The last word of a primary, translated in pieces: it may name millions of messages.

Law: whoever takes it as one message, encodes it or parses it, has the same. Its pieces are messages of their own, which protobuf
merges where they follow each other (protobuf's encoding, Last One Wins). Whatever bytes come, the result is a word or `Rejected`.
"""

from collections.abc import Generator, Iterator, Sequence

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import BrokerId, Epoch, LogIndex, QueueId, SessionKey, SetName
from lockstep.core.replication import HELD_IN_ONE, HandedOver, HeldMessages, OpenProgress
from lockstep.runtime.wire import Serialized, field_at, length_tag, parse, read_varint, varint
from lockstep.wire.v1 import primary_pb2

_Response = primary_pb2.SubscribeResponse


def _tag(descriptor: Descriptor, field: str) -> int:
    return length_tag(descriptor.fields_by_name[field].number)


_TAG = _tag(_Response.DESCRIPTOR, "handed_over")
_HELD = _tag(_Response.HandedOver.DESCRIPTOR, "held")
_POSITIONS = _tag(_Response.HeldMessages.DESCRIPTOR, "positions")
_HEAD, _POSITIONS_HEAD = varint(_TAG), varint(_POSITIONS)
_FIELDS_BEFORE = 2
"""The set and the epoch."""
OPEN_IN_ONE = 100
"""Transactions in one piece."""
_JOINED_BYTES = 64 << 10
"""Pieces are joined to so many bytes: few of them are written faster."""
PARSED_BYTES = 4 << 10
"""So much is parsed in one go, or one field if that has no parts."""
_VARINT_BYTES_MAX = 10


def encode_handed_over(message: HandedOver) -> Generator[None, None, Serialized]:
    """The message of a backup's stream that carries it; each step is half a millisecond's work, or less."""
    pieces, joined, size = list[bytes](), list[bytes](), 0
    for part in _parts(message):
        data = part.SerializeToString()
        joined.append(data)
        size += len(data)
        if size >= _JOINED_BYTES:
            pieces.append(b"".join(joined))
            joined, size = [], 0
        yield
    pieces.append(b"".join(joined))
    head = _Response(resource_set=message.set_name, epoch=message.epoch).SerializeToString()
    return head + _HEAD + varint(sum(map(len, pieces))), *pieces


def _parts(message: HandedOver) -> Iterator[primary_pb2.SubscribeResponse.HandedOver]:
    yield _Response.HandedOver(to=message.to, log_end=message.log_end, is_chosen=message.is_chosen)
    for begin in range(0, len(message.open), OPEN_IN_ONE):
        some = message.open[begin : begin + OPEN_IN_ONE]
        yield _Response.HandedOver(open=[_encode_open(one) for one in some])
    for held in message.held:
        yield _Response.HandedOver(
            held=[
                _Response.HeldMessages(session=session, queue=queue, positions=positions)
                for session, queue, positions in held.by_holder()
            ]
        )


def _encode_open(one: OpenProgress) -> primary_pb2.SubscribeResponse.OpenProgress:
    return _Response.OpenProgress(
        transaction_index=one.transaction[0],
        transaction_epoch=one.transaction[1],
        session=one.session,
        remaining_ms=one.remaining_ms,
        sessions=[session for session, _ in one.sequences],
        sequences=[taken for _, taken in one.sequences],
        ordinal=one.ordinal,
        bytes=one.bytes,
        places=one.places,
    )


def is_handed_over(data: bytes | memoryview) -> bool:
    """Whether it is a message of a backup's stream that carries one."""
    try:
        return _place_of(data) is not None
    except (IndexError, KeyError):
        return False


def decode_handed_over(data: bytes | memoryview) -> Generator[None, None, HandedOver]:
    """Of a message that `is_handed_over`, in steps as small. Raises `Rejected`."""
    found = _place_of(data)
    assert found is not None, "it carries one"
    begin, at = found
    head = parse(_Response(), data[:begin])
    taken = _Taken(_Response.HandedOver())
    try:
        while at < len(data):
            start, behind, long = at, at, False
            while at < len(data) and not long and at - start < PARSED_BYTES:
                behind, at = at, _behind_field(data, at)
                long = at - behind > PARSED_BYTES
            yield from taken.take(data, start, behind if long else at)
            if long:
                yield from taken.take_long(data, behind, at)
    except (IndexError, KeyError, DecodeError) as error:
        raise _rejected(f"{len(data)} bytes are no last word of a primary") from error
    return taken.result(SetName(head.resource_set), Epoch(head.epoch))


def _place_of(data: bytes | memoryview) -> tuple[int, int] | None:
    """Where its field begins, which is the last one, and where the content of that does; None: there is none. Raises `IndexError`
    and `KeyError`.
    """
    at = 0
    for _ in range(_FIELDS_BEFORE + 1):
        begin = at
        tag, at = read_varint(data, at)
        if tag == _TAG:
            size, at = read_varint(data, at)
            return (begin, at) if at + size == len(data) else None
        at = _behind_field(data, begin)
    return None


def _behind_field(data: bytes | memoryview, at: int) -> int:
    """Where the field there ends. Raises `IndexError` and `KeyError`."""
    _, _, behind = field_at(data, at)
    if behind > len(data):
        raise IndexError("it is cut short")
    return behind


def handed_over_in(
    set_name: SetName, epoch: Epoch, wire: primary_pb2.SubscribeResponse.HandedOver
) -> HandedOver:
    """The same of one that was parsed, in one step; `wire` is of no use behind that. Raises `Rejected`."""
    taken = _Taken(wire)
    taken.take_parsed()
    return taken.result(set_name, epoch)


class _Taken:
    """What was decoded so far of one word."""

    def __init__(self, wire: primary_pb2.SubscribeResponse.HandedOver) -> None:
        self._wire = wire
        self._open: list[OpenProgress] = []
        self._held = [HeldMessages()]

    def take(self, data: bytes | memoryview, begin: int, end: int) -> Iterator[None]:
        """Some fields, which are small or have no parts. Raises `DecodeError`."""
        self._wire.MergeFromString(data[begin:end])  # type: ignore[arg-type]
        self.take_parsed()
        yield

    def take_parsed(self) -> None:
        wire = self._wire
        if any(len(one.sessions) != len(one.sequences) for one in wire.open):
            raise _rejected("sessions without their operations")
        self._open += map(_decode_open, wire.open)
        for held in wire.held:
            self._add(held.session, held.queue, held.positions)
        wire.ClearField("open")
        wire.ClearField("held")

    def take_long(self, data: bytes | memoryview, begin: int, end: int) -> Iterator[None]:
        """One field that is long. Raises `DecodeError`, `IndexError` and `KeyError`."""
        tag, at = read_varint(data, begin)
        if tag != _HELD:
            yield from self.take(data, begin, end)
            return
        _, at = read_varint(data, at)
        others, packed = list[bytes | memoryview](), list[tuple[int, int]]()
        while at < end:
            start, at = at, _behind_field(data, at)
            tag, content = read_varint(data, start)
            if tag == _POSITIONS:
                packed.append((read_varint(data, content)[1], at))
            else:
                others.append(data[start:at])
            yield
        holder = parse(_Response.HeldMessages(), b"".join(others))
        self._add(holder.session, holder.queue, holder.positions)
        for start, behind in packed:
            while start < behind:
                part = min(start + PARSED_BYTES, behind)
                most = min(part + _VARINT_BYTES_MAX, behind)
                while part < most and data[part - 1] > 0x7F:
                    part += 1
                some = _POSITIONS_HEAD + varint(part - start) + bytes(data[start:part])
                self._add(holder.session, holder.queue, parse(_Response.HeldMessages(), some).positions)
                start = part
                yield

    def _add(self, session: int, queue: int, positions: Sequence[int]) -> None:
        begin = 0
        while begin < len(positions):
            room = HELD_IN_ONE - len(self._held[-1].positions)
            if not room:
                self._held.append(HeldMessages())
                continue
            some = positions[begin : begin + room]
            self._held[-1].add(SessionKey(session), QueueId(queue), some)
            begin += len(some)

    def result(self, set_name: SetName, epoch: Epoch) -> HandedOver:
        wire = self._wire
        held = tuple(self._held) if self._held[-1].positions else ()
        return HandedOver(
            set_name,
            epoch,
            BrokerId(wire.to),
            LogIndex(wire.log_end),
            tuple(self._open),
            held,
            wire.is_chosen,
        )


def _decode_open(one: primary_pb2.SubscribeResponse.OpenProgress) -> OpenProgress:
    return OpenProgress(
        (LogIndex(one.transaction_index), Epoch(one.transaction_epoch)),
        SessionKey(one.session),
        one.remaining_ms,
        tuple(zip(map(SessionKey, one.sessions), one.sequences, strict=True)),
        one.ordinal,
        one.bytes,
        one.places,
    )


def _rejected(text: str) -> Rejected:
    return Rejected(ErrorCode.INVALID_ARGUMENT, text)
