"""Blocks of committed events in the form in which they are sent, kept for a while: what a plan counts is what its readers get a
moment later.

Law: what is kept has at most `CACHE_BYTES_MAX` bytes; what was not used for longest goes first.
"""

from collections import OrderedDict
from dataclasses import dataclass

from lockstep.core.ids import LogIndex
from services.broker.core.events.blocks import Block

CACHE_BYTES_MAX = 48 * 1024 * 1024
"""Per set."""


@dataclass(slots=True)
class EncodedBlock:
    """A block in the form in which it is sent."""

    block: Block
    batches: list[bytes]

    @property
    def bytes(self) -> int:
        return sum(map(len, self.batches))


class BlockCache:
    """Of one set."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[tuple[LogIndex, bool], EncodedBlock] = OrderedDict()
        """By (where it begins, with content); least recently used first."""

    def find(self, after: LogIndex, with_content: bool) -> EncodedBlock | None:
        """The block that begins behind `after`."""
        found = self._blocks.get((after, with_content))
        if found is not None:
            self._blocks.move_to_end((after, with_content))
        return found

    def end_around(self, after: LogIndex, with_content: bool) -> LogIndex | None:
        """Where the block ends that has `after` inside of it."""
        for (begin, has_content), encoded in self._blocks.items():
            if has_content is with_content and begin < after < encoded.block.end.index:
                return encoded.block.end.index
        return None

    def keep(self, encoded: EncodedBlock, with_content: bool) -> None:
        """In the place of one that began there too."""
        key = encoded.block.after, with_content
        replaced = self._blocks.pop(key, None)
        if replaced is not None:
            self.bytes -= replaced.bytes
        self._blocks[key] = encoded
        self.bytes += encoded.bytes
        while self.bytes > self._bytes_max:
            _, oldest = self._blocks.popitem(last=False)
            self.bytes -= oldest.bytes

    def clear(self) -> None:
        self._blocks.clear()
        self.bytes = 0
