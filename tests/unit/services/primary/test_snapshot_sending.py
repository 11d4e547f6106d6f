"""A snapshot whose bodies are away: all of it in order, and no more read than is about to leave."""

from collections.abc import Iterator

from lockstep.core.effects import ReadMessages
from lockstep.core.ids import Epoch
from lockstep.core.inputs import MessagesRead
from lockstep.core.item_values import decode_content
from lockstep.core.items import MESSAGE, Item
from lockstep.core.records import Message
from services.primary.core.read_back import ReadBack
from services.primary.core.settings import PrimarySettings
from services.primary.core.snapshot_sending import SnapshotSending
from tests.unit.lockstep.core.history import SET, Log, message

COUNT = 40
PART_BYTES = 50


class Sending:
    """One snapshot of messages of 10 bytes; every `kept`-th body is in memory."""

    def __init__(self, kept: int = 0) -> None:
        log = Log()
        queue = log.queue("q")
        for number in range(COUNT):
            log.publish(message((queue,), b"body %05d" % number))
        self.stored = dict(log.state.contents.items())
        for number, message_id in enumerate(self.stored):
            if not kept or number % kept:
                log.state.drop_content(message_id)
        self.read_back = ReadBack(Epoch(1), log.state, PrimarySettings())
        self.state = log.state
        self.requests = 0
        self.is_told = False
        self.snapshot = SnapshotSending(log.state.items(), self.read_back, PART_BYTES)

    def answer(self) -> bool:
        """The store answers what is asked now; whether anything was."""
        asked = self.read_back.requests(0)
        for effect in asked:
            assert isinstance(effect, ReadMessages)
            self.requests += 1
            contents = []
            for message_id in effect.messages:
                found = self.stored[message_id]
                assert isinstance(found, Message)
                contents.append((found.properties, found.body))
            self.read_back.answered(MessagesRead(SET, effect.request, tuple(contents)), 0)
        return bool(asked)

    def items(self) -> Iterator[Item]:
        """All that leaves, with answers whenever it waits."""
        while True:
            item = self.snapshot.next(self._tell)
            if item is not None:
                yield item
            elif not self.snapshot.is_waiting():
                return
            else:
                assert self.answer() and self.is_told

    def _tell(self) -> None:
        self.is_told = True


def bodies(items: list[Item]) -> list[bytes]:
    contents = [decode_content(item.value) for item in items if item.key[:1] == MESSAGE]
    return [content.body if isinstance(content, Message) else b"away" for content in contents]


def test_everything_leaves_in_key_order_with_its_body() -> None:
    for kept in (0, 1, 2, 3, 7):
        found = list(Sending(kept).items())
        assert [item.key for item in found] == sorted(item.key for item in found)
        assert bodies(found) == [b"body %05d" % number for number in range(COUNT)]


def test_no_more_is_read_than_the_part_behind_the_one_that_leaves() -> None:
    sending = Sending()
    leaving = sending.items()
    while sending.requests == 0:
        next(leaving)
    for _ in range(10):
        sending.answer()
    assert sending.requests == 2


def test_a_snapshot_that_nobody_takes_any_more_reads_no_more() -> None:
    sending = Sending()
    assert [
        item for item in iter(lambda: sending.snapshot.next(lambda: None), None) if item.key[:1] == MESSAGE
    ] == []
    for _ in range(10):
        sending.answer()
    assert sending.requests == 1


def test_a_message_that_is_gone_leaves_without_its_body() -> None:
    sending = Sending()
    (position, *_) = sending.state.queues.by_name["q"].positions()
    gone = sending.state.queues.by_name["q"].message_id(position)
    removed = sending.state.queues.by_name["q"].remove([position], True)
    for ids in removed.durable:
        sending.state.contents.release(ids, True)
    leaving = iter(lambda: sending.snapshot.next(lambda: None), None)
    assert all(item.key[:1] != MESSAGE for item in leaving)
    (effect,) = sending.read_back.requests(0)
    assert isinstance(effect, ReadMessages)
    wanted = effect.messages
    assert wanted[0] == gone
    stored = [sending.stored[message_id] for message_id in wanted]
    answer = [None, *((found.properties, found.body) for found in stored[1:] if isinstance(found, Message))]
    sending.read_back.answered(MessagesRead(SET, effect.request, tuple(answer)), 0)
    assert bodies(list(sending.items()))[:2] == [b"away", b"body 00001"]
