"""Runs of contents: neighbours in ids, which came with one record and mostly go together.

Law: a run is packed as long as all of it is there and nobody asked for one of it; from then on it has each by itself.
"""

from collections.abc import Sequence

from lockstep.core.content import Content, size_of, size_of_all, without_body
from lockstep.core.packed_messages import PackedMessages
from lockstep.core.records import Message


class ContentRun:
    """The contents of one publish record, while any of them is here."""

    __slots__ = ("_contents", "count", "first", "left", "packed", "resident_bytes")

    def __init__(self, first: int, messages: Sequence[Content] | PackedMessages, size: int) -> None:
        self.first = first
        self.packed: PackedMessages | None = None
        """All of them, if they are together still; None: `_contents` has them."""
        self._contents: list[Content | None] = []
        """By id, from `first` on; None where one is gone."""
        if isinstance(messages, PackedMessages):
            self.packed = messages
            self.count = len(messages.alike.sizes)
        else:
            self._contents += messages
            self.count = len(messages)
        self.left = self.count
        self.resident_bytes = size

    @classmethod
    def restored(cls, first: int, contents: Sequence[Content] | PackedMessages) -> "ContentRun":
        """One of a snapshot; more of it may follow (`extend`)."""
        if isinstance(contents, PackedMessages):
            return cls(first, contents, sum(contents.alike.sizes) if contents.encoded is not None else 0)
        return cls(first, contents, resident_bytes(contents))

    def extend(self, first: int, more: Sequence[Content] | PackedMessages) -> None:
        """More that is here, behind all the others."""
        contents, begin = self.contents, first - self.first
        assert begin >= self.count, f"{first} is not behind the {self.count} from {self.first} on"
        added = more.unpack() if isinstance(more, PackedMessages) else more
        contents += [None] * (begin - self.count)
        contents += added
        self.count = len(contents)
        self.left += len(added)
        self.resident_bytes += resident_bytes(added)

    @property
    def contents(self) -> list[Content | None]:
        """Each by itself from now on; the run's own list."""
        if self.packed is not None:
            self._contents, self.packed = list(self.packed.unpack()), None
        return self._contents

    def looked_at(self) -> Sequence[Content | None]:
        """The same for whoever only looks."""
        return self._contents if self.packed is None else self.packed.unpack()

    def get(self, number: int) -> Content | None:
        offset = number - self.first
        return self.contents[offset] if 0 <= offset < self.count else None

    def has(self, number: int) -> bool:
        offset = number - self.first
        return 0 <= offset < self.count and (self.packed is not None or self._contents[offset] is not None)

    def has_next(self, begin: int, numbers: Sequence[int]) -> bool:
        """Whether these neighbours are the next ones that are here, from `begin` on."""
        if numbers[0] < begin or numbers[-1] >= self.first + self.count:
            return False
        if self.packed is not None:
            return numbers[0] == begin
        between, these = begin - self.first, numbers[0] - self.first
        return not any(self._contents[between:these]) and all(self._contents[these : these + len(numbers)])

    def size_of(self, begin: int, end: int) -> int:
        """Bytes of some that are here, by their places."""
        if self.packed is not None:
            return sum(self.packed.alike.sizes[begin:end])
        return size_of_all(self._contents[begin:end])  # type: ignore[arg-type]

    def replace(self, number: int, content: Content) -> int:
        """Another form of one that is here; answers how many more bytes of bodies are here."""
        contents, offset = self.contents, number - self.first
        before = contents[offset]
        assert before is not None, f"message {number} is not here"
        more = resident_bytes((content,)) - resident_bytes((before,))
        contents[offset] = content
        self.resident_bytes += more
        return more

    def remove(self, begin: int, end: int) -> int:
        """Some that are here go, by their places; answers how many bytes of bodies go with them."""
        contents = self.contents
        gone = contents[begin:end]
        assert all(gone), f"not all of {begin} to {end} of run {self.first} are here"
        size = resident_bytes(gone)
        contents[begin:end] = [None] * len(gone)
        self.left -= end - begin
        self.resident_bytes -= size
        return size

    def forget_bodies(self) -> None:
        """Let go of them, for good."""
        if self.packed is not None:
            self.packed = PackedMessages(self.packed.alike, None)
        else:
            self._contents = [content and without_body(content, False) for content in self._contents]
        self.resident_bytes = 0


def resident_bytes(contents: Sequence[Content | None]) -> int:
    """Of those whose bodies are here."""
    return sum([size_of(content) for content in contents if type(content) is Message])
