"""No page of a long queue is empty, wherever what a memory snapshot brings belongs between what is there and what is gone."""

from lockstep.core.contents import Contents
from lockstep.core.ids import MessageId, QueueId, QueuePosition, place
from lockstep.core.items import Changes
from lockstep.core.queues import Queue
from lockstep.core.records import DeclareQueue, Message

PAGE = 4


def positions(*indexes: int) -> list[QueuePosition]:
    return [QueuePosition(place(index, 0)) for index in indexes]


class Rig:
    def __init__(self) -> None:
        changes = Changes()
        self.contents = Contents(changes)
        self.queue = Queue(QueueId(1), DeclareQueue(None, "q", True), self.contents, changes, PAGE)

    def content(self, at: list[QueuePosition]) -> list[MessageId]:
        ids = [MessageId(position) for position in at]
        for message_id in ids:
            self.contents.add((message_id,), (Message((QueueId(1),), b"", b"."),), 1, 0, 1)
        return ids

    def append(self, *indexes: int) -> None:
        at = positions(*indexes)
        self.queue.append(at, self.content(at), len(at), True)

    def remove(self, *indexes: int) -> None:
        self.queue.remove(positions(*indexes), True)

    def lay_over(self, *indexes: int) -> None:
        at = positions(*indexes)
        for _ in self.queue.restore(list(zip(at, self.content(at), strict=True)), (), False):
            pass

    def check(self) -> None:
        assert self.queue.head() == self.queue.positions(limit=1)[0]


def test_a_page_is_split_whose_second_half_is_gone() -> None:
    rig = Rig()
    rig.append(10, 20, 30)
    rig.append(40, 50, 60, 70)
    rig.append(80)
    rig.remove(30, 40, 50, 60, 70)
    rig.lay_over(11, 12)
    rig.check()
    rig.remove(10, 20)
    rig.queue.remove(positions(11, 12), False)
    rig.check()


def test_what_comes_lies_before_all_that_was_there() -> None:
    rig = Rig()
    for index in range(100, 110):
        rig.append(index)
    rig.remove(*range(100, 110))
    for index in range(10, 20):
        rig.lay_over(index)
    rig.queue.remove(positions(10, 11, 12, 13), False)
    rig.check()
