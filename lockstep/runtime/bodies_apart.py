"""Big bodies of messages, deep in the messages of a stream or call: they stay as they are on their way out, and on their way in
they are copied once, or in parts where they are very big (`big_bytes`).

Law: whoever parses what is serialised here reads the same as if the bodies had been filled in, and what is taken out of a
message goes back to its place in it; whatever bytes come, nothing is raised.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.internal.containers import RepeatedScalarFieldContainer
from google.protobuf.message import Message
from msgspec.structs import replace

from lockstep.core.commands import OutgoingMessage
from lockstep.core.server_messages import DeliveredMessage
from lockstep.runtime.big_bytes import PART_BYTES, copied
from lockstep.runtime.turns import LeftToThread
from lockstep.runtime.wire import PIECES_BYTES_MIN, Serialized, field_at, length_tag, varint

LOOKED_BYTES_MIN = 1 << 20
"""A smaller message is a parser's work: its copies cost no more than to look for what is big."""
MUCH_BYTES = 256 << 10
"""Less in a publish is filled in without a look at each body: to copy them costs less."""
_MESSAGES_A_STEP = 500
_LOOKS_MIN = 64
_BYTES_A_LOOK = 4 << 10
"""So many bytes of a message pay for a look at one of its fields: where all are smaller, a parser is faster."""
_FOUND_BYTES_A_LOOK = 8 << 10
"""The same of a body that was found."""

Apart = Mapping[int, Sequence[bytes]]
"""By the place of a message in the stream's message or the request: all of its bodies, which it was serialised without."""
Found = Mapping[int, Mapping[int, bytes]]
"""By the place of a message in the stream's message or the request: big bodies, by their place among the bodies that it has."""
_InPlace = dict[int, dict[int, memoryview]]
"""The same bodies, where they came."""
_BODIES: Any = object()
_Message = TypeVar("_Message", OutgoingMessage, DeliveredMessage)
_Table = dict[int, Any]
"""Of a message: number of a field -> the table of the message that it is, on the way to bodies, or `_BODIES`."""


class _NotLookedAt(Exception):
    """It is left to a parser: it is none of a message's, or another's, or would take too long."""


def fill_bodies(
    bodies: Sequence[bytes], column: RepeatedScalarFieldContainer[bytes]
) -> Sequence[bytes] | None:
    """Fills `column`; returns all of them and leaves it empty if one is big. Raises `TypeError` for what is no bytes."""
    if (len(bodies[0]) if len(bodies) == 1 else max(map(len, bodies), default=0)) < PIECES_BYTES_MIN:
        column.extend(bodies)
        return None
    for body in bodies:
        if not isinstance(body, bytes):
            raise TypeError(f"expected bytes, {type(body).__name__} found")
    return bodies


def put_back(bodies: Sequence[bytes], found: Mapping[int, bytes]) -> tuple[bytes, ...]:
    """These, with those that were found in their places."""
    return tuple([found.get(place, body) for place, body in enumerate(bodies)])


def messages_with_bodies(messages: Sequence[_Message], found: Mapping[int, bytes]) -> tuple[_Message, ...]:
    """The same of messages."""
    return tuple(
        [
            replace(message, body=found[place]) if place in found else message
            for place, message in enumerate(messages)
        ]
    )


class BodiesApart:
    """Of one kind of stream message or request, with messages that have bodies: those of a stream in members of their oneof,
    which have many each, and those of a request one each, in a field of their own."""

    def __init__(self, descriptor: Descriptor, messages: str, *paths: tuple[str, ...]) -> None:
        """`messages`: the repeated field. `paths`: names of fields from a message to its bodies, for each of its members that has
        some; or of the one field."""
        repeated = descriptor.fields_by_name[messages]
        self._name, self._number = messages, repeated.number
        self._head = _tag(repeated.number)
        self._tags: dict[str, tuple[bytes, ...]] = {}
        self._table: _Table = {}
        kind = repeated.message_type
        assert kind is not None, f"{messages} are no messages"
        self._is_oneof = kind.fields_by_name[paths[0][0]].containing_oneof is not None
        for path in paths:
            kind, table, tags = repeated.message_type, self._table, list[bytes]()
            for name in path:
                assert kind is not None, f"{name} is in no message"
                field = kind.fields_by_name[name]
                tags.append(_tag(field.number))
                within: Any = _BODIES if name == path[-1] else {}
                table[field.number] = within
                kind, table = field.message_type, within
            self._tags[path[0]] = tuple(tags)

    def serialize(self, message: Message, apart: Apart) -> Serialized:
        """The serialised `message`, which is of no use behind that, with the bodies that its messages were left without.

        They are in a second piece of the member that has them: parsers merge the pieces of a oneof's member, and join what is
        repeated (protobuf's encoding, Last One Wins).
        """
        all_messages = getattr(message, self._name)
        [only, *_], is_oneof = self._tags, self._is_oneof
        serialized = [
            (one.WhichOneof("message") if is_oneof else only, one.SerializeToString()) for one in all_messages
        ]
        del all_messages[:]
        pieces, small = list[bytes](), [message.SerializeToString()]
        for place, (member, data) in enumerate(serialized):
            bodies = apart.get(place)
            if bodies is None:
                small += (self._head, varint(len(data)), data)
                continue
            *outer, tag = self._tags[member]
            heads = [tag + varint(len(body)) for body in bodies]
            size, head = sum(map(len, heads)) + sum(map(len, bodies)), b""
            for outer_tag in reversed(outer):
                head = outer_tag + varint(size + len(head)) + head
            small += (self._head, varint(len(data) + len(head) + size), data, head)
            for body_head, body in zip(heads, bodies, strict=True):
                small.append(body_head)
                if len(body) < PIECES_BYTES_MIN:
                    small.append(body)
                else:
                    pieces += (b"".join(small), body)
                    small = []
        pieces.append(b"".join(small))
        return tuple(pieces)

    def take_from(
        self, data: bytes | memoryview
    ) -> Generator[LeftToThread, None, tuple[bytes | memoryview, Found]]:
        """What is left for a parser, with empty bodies in the places of big ones, and these, in steps (`in_turns`).

        All is left for it where nothing is big, or where the bytes are another's or none of a message's.
        """
        rest, in_place = yield from self._find_in(data)
        found = dict[int, dict[int, bytes]]()
        since_yield = len(rest)
        for place, of_message in in_place.items():
            bodies = found[place] = {}
            for at, view in of_message.items():
                bodies[at] = yield from copied(view)
                since_yield += len(view)
                if since_yield >= PART_BYTES:
                    since_yield = 0
                    yield None
        return rest, found

    def _find_in(
        self, data: bytes | memoryview
    ) -> Generator[LeftToThread, None, tuple[bytes | memoryview, _InPlace]]:
        """The same, with the bodies where they are."""
        look = _Look(data)
        pieces, found, at, end, place = (
            list[bytes | memoryview](),
            _InPlace(),
            0,
            len(data),
            0,
        )
        try:
            while at < end:
                begin = at
                number, at, behind = look.field(at, end)
                if number == self._number:
                    inner, bodies = look.without_bodies(at, behind, self._table, self._is_oneof)
                    if bodies:
                        found[place] = bodies
                        pieces += (self._head, varint(sum(map(len, inner))), *inner)
                    else:
                        pieces.append(look.view[begin:behind])
                    place += 1
                    if place % _MESSAGES_A_STEP == 0:
                        yield None
                else:
                    pieces.append(look.view[begin:behind])
                at = behind
        except (_NotLookedAt, IndexError, KeyError):
            return data, {}
        return (b"".join(pieces), found) if found else (data, {})


class _Look:
    """At the fields of one message, for its big bodies."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.view = memoryview(data)
        self._data = data
        self._left = _LOOKS_MIN + len(data) // _BYTES_A_LOOK

    def field(self, at: int, end: int) -> tuple[int, int, int]:
        """Number of the field there if it begins with its size, or else 0; where its content begins, and where it ends.

        Raises `_NotLookedAt`, `IndexError` and `KeyError`.
        """
        self._left -= 1
        found = field_at(self._data, at)
        if found[2] > end or self._left < 0:
            raise _NotLookedAt
        return found

    def without_bodies(
        self, at: int, end: int, table: _Table, is_oneof: bool
    ) -> tuple[list[bytes | memoryview], dict[int, memoryview]]:
        """A message of the stream's or request's, in pieces, and its big bodies. Raises as `field` does."""
        if end - at < PIECES_BYTES_MIN:
            return [], {}
        bodies = dict[int, memoryview]()
        pieces, members, count = self._without(at, end, table, bodies, 0)
        if bodies and (len(members) if is_oneof else count) > 1:
            raise _NotLookedAt  # Another member of the oneof, or another body, drops what came before it.
        return pieces, bodies

    def _without(
        self, at: int, end: int, table: _Table, bodies: dict[int, memoryview], place: int
    ) -> tuple[list[bytes | memoryview], set[int], int]:
        """The same of a message in it; `place` of the next body, and behind it. Numbers of its fields that begin with sizes."""
        pieces, numbers, kept_from = list[bytes | memoryview](), set[int](), at
        while at < end:
            begin = at
            number, at, behind = self.field(at, end)
            if number:
                numbers.add(number)
                within = table.get(number)
                if within is _BODIES:
                    if behind - at >= PIECES_BYTES_MIN:
                        bodies[place] = self.view[at:behind]
                        self._left += (behind - at) // _FOUND_BYTES_A_LOOK
                        pieces += (self.view[kept_from:begin], _tag(number), b"\0")
                        kept_from = behind
                    place += 1
                elif within is not None:
                    inner, _, place = self._without(at, behind, within, bodies, place)
                    pieces += (self.view[kept_from:begin], _tag(number), varint(sum(map(len, inner))), *inner)
                    kept_from = behind
            at = behind
        pieces.append(self.view[kept_from:end])
        return pieces, numbers, place


def _tag(number: int) -> bytes:
    return varint(length_tag(number))
