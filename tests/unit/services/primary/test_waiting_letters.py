"""Dead letters that wait: those of a queue stay in their order, and what has been moved is kept no longer."""

from lockstep.core.ids import QueuePosition
from lockstep.core.records import DequeueReason
from services.primary.core.waiting_letters import WaitingLetters
from tests.unit.services.primary.primary_rig import Rig


def test_of_letters_that_never_end_no_more_are_kept_than_wait(rig: Rig) -> None:
    rig.client().declare("q")
    queue, letters = rig.state.queues.by_name["q"], WaitingLetters()
    seen: list[int] = []
    for number in range(0, 1000, 10):
        letters.add(queue, [QueuePosition(number + each) for each in range(10)], DequeueReason.EXPIRED)
        waiting = letters.take()
        count = 10 if number else 5
        seen += waiting.positions[waiting.done : waiting.done + count]
        assert waiting.went(count)
        letters.put_back(waiting)
        assert len(waiting.positions) <= 20
    assert seen == list(range(995))
    waiting = letters.take()
    assert not waiting.went(5) and not letters.ready


def test_a_queue_has_letters_while_they_wait_for_their_turn_and_while_their_bodies_are_read(rig: Rig) -> None:
    rig.client().declare("q")
    queue, letters = rig.state.queues.by_name["q"], WaitingLetters()
    for reason in (DequeueReason.EXPIRED, DequeueReason.REJECTED):
        assert not letters.has(queue.id)
        letters.add(queue, [QueuePosition(1)], reason)
        assert letters.has(queue.id)
        waiting = letters.take()
        letters.begin_reading(waiting)
        assert letters.has(queue.id)
        letters.end_reading(waiting)
        letters.take()
