"""Packed messages: such as are alike stay as their record has them until somebody wants one of them.

Law: what a record says of alike messages (`Alike`) is enough to apply it. Only who delivers them, or keeps some of them without
the others, looks into their bytes.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from lockstep.core.content import Content, DroppedMessage
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.records import Alike, Message, PackedPublish, Publish

RUN_MIN = 4
"""So many neighbours are kept as one run: fewer take more room together than each by itself."""
_decode_messages = msgspec.msgpack.Decoder(list[Message]).decode
_KIND = attrgetter("queues", "is_durable", "expires_ms", "priority")


def alike_of(messages: Sequence[Message], sizes: Iterable[int], are_alike: bool = False) -> Alike | None:
    """What the messages of one record have in common, if they differ in nothing but their contents, and make a run.

    `sizes`: of each, in bytes of properties and body. `are_alike`: they do not differ, it is known already.
    """
    first = messages[0]
    if len(messages) < RUN_MIN or not first.queues or first.expires_ms or first.priority != PRIORITY_DEFAULT:
        return None
    if not are_alike and set(map(_KIND, messages)) != {_KIND(first)}:
        return None
    return Alike(first.queues, first.is_durable, tuple(sizes))


class PackedMessages(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Messages that are alike, as their record has them, or without their bodies."""

    alike: Alike
    encoded: bytes | None
    """MessagePack, an array of `Message`; None: the bodies are away, and nobody will ask for them."""

    def __len__(self) -> int:
        return len(self.alike.sizes)

    def unpack(self) -> Sequence[Content]:
        """Each by itself."""
        if self.encoded is not None:
            return _decode_messages(self.encoded)
        queues, is_durable, sizes = self.alike
        return [DroppedMessage(queues, 0, size, 0, 0, is_durable) for size in sizes]


def messages_of(record: Publish | PackedPublish) -> Sequence[Message] | PackedMessages:
    """What a record brings, packed if it can stay so."""
    if isinstance(record, Publish):
        return record.messages
    if record.alike is None or len(record.alike.sizes) < RUN_MIN:
        return _decode_messages(record.messages)
    # A copy: the record lies in a frame, which may hold much that is gone sooner.
    return PackedMessages(record.alike, bytes(record.messages))
