"""Contents of a snapshot on their way into a state: such as lie in a block stay together, as they were before they were written.

Law: contents of one record are all in one run or all by themselves. So whoever has neighbours of one record needs to look once.
"""

from lockstep.core.content import size_of, without_body
from lockstep.core.contents import Contents
from lockstep.core.ids import LogIndex, MessageId, index_of
from lockstep.core.item_blocks import MessagePiece
from lockstep.core.item_values import decode_content
from lockstep.core.packed_messages import RUN_MIN, PackedMessages, alike_of
from lockstep.core.restored_references import RestoredReferences


class RestoredContents:
    """Of one restoration; blocks come in the order of their numbers."""

    def __init__(
        self,
        contents: Contents,
        references: RestoredReferences,
        resident_bytes_max: int,
        with_checksums: bool,
    ) -> None:
        """Of durable contents the first ones stay whole, up to `resident_bytes_max`; `with_checksums`: see `Contents.drop`."""
        self._contents = contents
        self._references = references
        self._resident_bytes_left = resident_bytes_max
        self._with_checksums = with_checksums
        self._last_alone = MessageId(0)
        self._last_run = LogIndex(0)
        """Of which record."""

    def take_item(self, message_id: MessageId, value: bytes, is_durable: bool) -> None:
        """One that has an item of its own."""
        content = decode_content(value)
        self._references.loaded((message_id,))
        self._resident_bytes_left -= len(value)
        if is_durable and self._resident_bytes_left < 0:
            content = without_body(content, self._with_checksums)
        if index_of(message_id) == self._last_run:
            self._contents.load_run(message_id, (content,))
            return
        self._contents.load(message_id, content)
        self._last_alone = message_id

    def take_block(self, pieces: list[MessagePiece]) -> None:
        """Those that are left of one."""
        place = 0
        while place < len(pieces):
            index, behind = index_of(pieces[place].first), place + 1
            count = len(pieces[place].messages)
            while behind < len(pieces) and index_of(pieces[behind].first) == index:
                count += len(pieces[behind].messages)
                behind += 1
            is_begun = index == self._last_run
            is_alone = not is_begun and (count < RUN_MIN or index == index_of(self._last_alone))
            for piece in pieces[place:behind]:
                self._references.loaded(range(piece.first, piece.first + len(piece.messages)))  # type: ignore[arg-type]
                if is_alone:
                    self._take_alone(piece)
                else:
                    self._take_run(piece)
                    self._last_run = index
            place = behind

    def _take_alone(self, piece: MessagePiece) -> None:
        for message_id, message in enumerate(piece.messages, piece.first):
            self._resident_bytes_left -= size_of(message)
            is_kept = self._resident_bytes_left >= 0
            content = message if is_kept else without_body(message, self._with_checksums)
            self._contents.load(MessageId(message_id), content)
            self._last_alone = MessageId(message_id)

    def _take_run(self, piece: MessagePiece) -> None:
        first, messages, encoded = piece
        sizes = list(map(size_of, messages))
        self._resident_bytes_left -= sum(sizes)
        is_kept = self._resident_bytes_left >= 0
        is_packable = encoded is not None and (is_kept or not self._with_checksums)
        alike = alike_of(messages, sizes) if is_packable else None
        if alike is not None and encoded is not None:
            self._contents.load_run(first, PackedMessages(alike, bytes(encoded) if is_kept else None))
        elif is_kept:
            self._contents.load_run(first, messages)
        else:
            bodiless = [without_body(message, self._with_checksums) for message in messages]
            self._contents.load_run(first, bodiless)
