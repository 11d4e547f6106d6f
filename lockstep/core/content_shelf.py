"""Content shelves: the contents that neighbouring records brought, and who refers to them.

Law: a shelf is small, however many contents a state has, so that what is done to a whole shelf is done in one go. The contents of
one record are on one shelf, and those that came together all in a run or all by themselves.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from lockstep.core.content import Content
from lockstep.core.content_runs import ContentRun, resident_bytes
from lockstep.core.ids import ORDINAL_BITS, MessageId, index_of, place
from lockstep.core.packed_messages import PackedMessages
from lockstep.core.taking_apart import cost_of_bytes, emptied

SHELF_BITS = ORDINAL_BITS + 6
"""A shelf is for 64 records: of alike messages a few dozen pointers each, of others at most some hundred thousand in all."""

ContentRecord = tuple[Sequence[MessageId], Sequence[Content] | PackedMessages]
"""What is there of the contents that one record brought, all in a run or all alone."""

_DURABLE = (1, 0)
_NONE: frozenset[MessageId] = frozenset()


class Shelf:
    """The contents of 64 records in a row, as long as any of them is there."""

    __slots__ = ("references", "runs", "single")

    def __init__(self) -> None:
        self.single: dict[MessageId, Content] = {}
        self.runs: dict[int, ContentRun] = {}
        """By the index of the record that brought them."""
        self.references: dict[MessageId, tuple[int, int]] = {}
        """(durable, transient) references; absent means `_DURABLE`, which nearly all have."""

    def find(self, message_id: MessageId) -> Content | None:
        content = self.single.get(message_id)
        if content is None and self.runs:
            run = self.runs.get(index_of(message_id))
            if run is not None:
                return run.get(message_id)
        return content

    def take_apart(self) -> Iterator[int]:
        """As `Contents.take_apart`."""
        yield from emptied(self.runs, lambda run: run[1].count + cost_of_bytes(run[1].resident_bytes))
        yield from emptied(self.single, lambda one: cost_of_bytes(resident_bytes([one[1]])))
        yield from emptied(self.references)

    def items(self) -> Iterator[tuple[MessageId, Content]]:
        """All contents, in no order."""
        yield from self.single.items()
        for run in self.runs.values():
            for message_id, content in enumerate(run.looked_at(), run.first):
                if content is not None:
                    yield MessageId(message_id), content

    def copy(self) -> "ShelfCopy":
        """As it is now; only references are copied, and nothing is made of each."""
        runs = [(run.first, run.packed or list(run.looked_at())) for run in self.runs.values()]
        return ShelfCopy(self.single.copy(), runs, self.references.copy())


class ShelfCopy(NamedTuple):
    """What a shelf had at some moment."""

    alone: dict[MessageId, Content]
    runs: list[tuple[int, PackedMessages | list[Content | None]]]
    references: dict[MessageId, tuple[int, int]]
    """As of `Shelf`."""

    @property
    def has_transients(self) -> bool:
        """Whether it has contents that no durable reference held."""
        return any(not durable for durable, _ in self.references.values())

    def transient_among(self, ids: Sequence[MessageId]) -> Set[MessageId]:
        """Those of these contents that no durable reference held."""
        references = self.references
        if not references:
            return _NONE
        return {message_id for message_id in ids if not references.get(message_id, _DURABLE)[0]}

    def records(self) -> Iterator[ContentRecord]:
        """By the records that brought them, in their order; nothing is made of one before it is asked for."""
        ids, begin = sorted(self.alone), 0
        runs = sorted(self.runs, key=_first_of, reverse=True)
        while begin < len(ids) or runs:
            index = index_of(min([*ids[begin : begin + 1], *map(_first_of, runs[-1:])]))
            end = bisect_left(ids, place(index + 1, 0), begin)
            pairs = [(message_id, self.alone[message_id]) for message_id in ids[begin:end]]
            begin = end
            if not runs or index_of(runs[-1][0]) > index:
                yield _of_pairs(pairs)
            elif not pairs:
                yield _of_run(*runs.pop())
            else:
                # Of a record that brought both kinds, what is transient may have come later, with a memory snapshot.
                yield _of_pairs(sorted([*pairs, *_pairs_of(_of_run(*runs.pop()))]))


def _first_of(run: tuple[int, PackedMessages | list[Content | None]]) -> int:
    return run[0]


def _of_run(first: int, run: PackedMessages | list[Content | None]) -> ContentRecord:
    if isinstance(run, PackedMessages):
        return range(first, first + len(run)), run  # type: ignore[return-value]
    return _of_pairs((MessageId(number), content) for number, content in enumerate(run, first) if content)


def _pairs_of(record: ContentRecord) -> Iterable[tuple[MessageId, Content]]:
    ids, contents = record
    return zip(ids, contents.unpack() if isinstance(contents, PackedMessages) else contents, strict=True)


def _of_pairs(pairs: Iterable[tuple[MessageId, Content]]) -> ContentRecord:
    there = list(pairs)
    return [message_id for message_id, _ in there], [content for _, content in there]
