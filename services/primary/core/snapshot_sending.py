"""Sending a snapshot: the items of a state for one newcomer, with all bodies, however many of them are away (R8, DESIGN 5).

Law: items leave in key order, and where much was looked at and nothing found, others have their turn first. A body that is away
is read from the own store before its item leaves; only a message that is gone meanwhile, by a record at or below the commit
index, leaves without its body: no replica that becomes a member of the set lacks that record, so nobody will ever ask for it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from lockstep.core.content import DroppedMessage, size_of
from lockstep.core.ids import MessageId
from lockstep.core.item_values import decode_content, encode_content, is_bodiless
from lockstep.core.items import MESSAGE, Item, numbers_in
from services.primary.core.read_back import Found, ReadBack, Wanted


class SnapshotSending:
    """What is left of one snapshot; ends with its subscription or its last item."""

    def __init__(self, items: Iterator[Item | None], read_back: ReadBack, bytes_max: int) -> None:
        """`items`: the state as it was, whatever is applied meanwhile (`SetState.items_in_pieces`). `bytes_max`: of a part for
        which bodies are read.
        """
        self._items = items
        self._read_back = read_back
        self._bytes_max = bytes_max
        self._ready: deque[Item] = deque()
        """Taken from `items`; they may leave. At most two parts."""
        self._behind: Item | None = None
        """Taken from `items` behind those, with its body."""
        self._part_length = 0
        """Items of the last part."""
        self._is_reading = False
        """Bodies are being read for the items behind `_ready`."""
        self._go_on: Callable[[], None] | None = None
        self.is_pausing = False
        """Much was looked at, and nothing is there that could leave: the next call goes on."""

    def is_waiting(self) -> bool:
        """Whether nothing can leave before bodies are here."""
        return self._go_on is not None

    def next(self, go_on: Callable[[], None]) -> Item | None:
        """The next item; None at the end, when it `is_pausing`, and when it `is_waiting` for bodies: `go_on` is called when they
        are here.
        """
        assert self._go_on is None, "nothing leaves while it waits"
        self.is_pausing = False
        if self._ready:
            item = self._ready.popleft()
            if len(self._ready) <= self._part_length:
                self._look_behind()
            return item
        self._look_behind()
        if self._is_reading:
            self._go_on = go_on
            return None
        following, self._behind = self._behind, None
        return following

    def _look_behind(self) -> None:
        """Have the next part read while this one leaves."""
        if not self._is_reading and self._behind is None:
            item = next(self._items, _END)
            if item is None:
                self.is_pausing = not self._ready
            elif item is not _END and _is_away(item):
                self._read(item)
            else:
                self._behind = item if item is not _END else None

    def _read(self, item: Item | None) -> None:
        """Read bodies for one part from `item` on."""
        part: list[Item] = []
        wanted: Wanted = {}
        size = 0
        while item is not None:
            part.append(item)
            content = decode_content(item.value) if _is_away(item) else None
            if isinstance(content, DroppedMessage):
                wanted[MessageId(numbers_in(item.key)[0])] = content
            size += len(item.value) if content is None else size_of(content)
            item = self._next_item() if size < self._bytes_max else None
        self._is_reading, self._part_length = True, len(part)
        self._read_back.ask(lambda: wanted, partial(self._have_read, part))

    def _next_item(self) -> Item | None:
        """However much is looked at for it; None: that was all."""
        item = next(self._items, _END)
        while item is None:
            item = next(self._items, _END)
        return item if item is not _END else None

    def _have_read(self, part: list[Item], found: Found) -> None:
        self._is_reading = False
        self._ready.extend(_with_body(item, found) for item in part)
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on()


_END = Item(b"", b"", False)
"""Behind all items; there is none like it."""


def _is_away(item: Item) -> bool:
    return item.key[:1] == MESSAGE and is_bodiless(item.value)


def _with_body(item: Item, found: Found) -> Item:
    message = found.get(MessageId(numbers_in(item.key)[0])) if _is_away(item) else None
    return item._replace(value=encode_content(message)) if message is not None else item
