"""Messages that are alike stay packed, as their record has them, until somebody wants one of them."""

from lockstep.core.content import DroppedMessage, without_body
from lockstep.core.contents import Contents
from lockstep.core.ids import LogIndex, MessageId, QueueId, message_ids_from, place
from lockstep.core.invariants import check_invariants
from lockstep.core.packed_messages import RUN_MIN, PackedMessages, alike_of
from lockstep.core.queues import Queue
from lockstep.core.records import Message
from lockstep.core.set_state import SetState
from tests.unit.lockstep.core.history import Log, alike, bodies, message, replay

COUNT = 10


def published() -> tuple[Log, SetState, Queue]:
    """A log with one record of messages, and a replica that read it."""
    log = Log()
    queue = log.queue("q")
    log.publish(*(message((queue,), b"%d" % number, True, b"p") for number in range(COUNT)))
    log.flush()
    state = replay(log.frames)
    return log, state, state.queues.by_name["q"]


def ids_in(queue: Queue) -> tuple[MessageId, ...]:
    return tuple(queue.message_ids(queue.positions()))


def packed(contents: Contents, ids: tuple[MessageId, ...]) -> PackedMessages | None:
    return contents.packed(ids)


def test_what_is_alike_is_of_one_kind_and_never_expires() -> None:
    queues = (QueueId(3),)
    same = [Message(queues, b"p", b"%d" % number, 0, True) for number in range(RUN_MIN)]
    found = alike_of(same, [2] * RUN_MIN)
    assert found == (queues, True, (2,) * RUN_MIN)
    assert alike_of(same[1:], [2] * RUN_MIN) is None, "so few are kept one by one"
    for other in (
        Message((QueueId(4),), b"p", b"x", 0, True),
        Message(queues, b"p", b"x", 99, True),
        Message(queues, b"p", b"x", 0, False),
    ):
        assert alike_of([*same, other], [2] * (RUN_MIN + 1)) is None
    assert alike_of([Message((), b"", b"")] * RUN_MIN, [0] * RUN_MIN) is None, "nobody would have them"


def test_they_stay_packed_while_all_of_them_are_there() -> None:
    log, state, queue = published()
    ids = ids_in(queue)
    check_invariants(state)
    assert queue.size_of(queue.positions()) == queue.bytes == 2 * COUNT
    assert list(state.items()) == list(log.state.items())
    assert ids[3] in state.contents and MessageId(ids[-1] + 1) not in state.contents
    assert packed(state.contents, ids) is not None, "whoever only looks leaves them as they are"
    assert packed(log.state.contents, ids) is None, "who published them has each by itself already"


def test_whoever_wants_one_gets_it() -> None:
    _, state, queue = published()
    ids = ids_in(queue)
    found = state.contents.get(ids[3])
    assert found is not None and (found.body, found.properties, found.is_durable) == (b"3", b"p", True)
    assert packed(state.contents, ids) is None
    assert bodies(queue) == [b"%d" % number for number in range(COUNT)]
    check_invariants(state)


def test_all_of_them_leave_without_being_unpacked() -> None:
    log, state, queue = published()
    log.dequeue(log.state.queues.by_name["q"], *queue.positions())
    log.flush()
    state.apply_frame(log.frames[-1])
    assert (len(state.contents), state.contents.resident_bytes, queue.bytes) == (0, 0, 0)


def test_some_of_them_leave() -> None:
    log, state, queue = published()
    gone = queue.positions()[:3]
    log.dequeue(log.state.queues.by_name["q"], *gone)
    log.flush()
    state.apply_frame(log.frames[-1])
    assert (len(state.contents), queue.bytes) == (COUNT - 3, 2 * (COUNT - 3))
    assert bodies(queue) == [b"%d" % number for number in range(3, COUNT)]
    check_invariants(state)


def test_bodies_go_and_come_back_one_by_one() -> None:
    _, state, queue = published()
    ids = ids_in(queue)
    whole = state.contents.get(ids[1])
    assert whole is not None
    state.contents.drop(ids[:2])
    assert state.contents.resident_bytes == 2 * (COUNT - 2)
    assert state.contents.find(ids[1]) == without_body(whole)
    state.set_content(ids[1], whole)
    assert state.contents.get(ids[1]) == whole
    check_invariants(state)


def test_bodies_that_nobody_will_want_go_all_at_once() -> None:
    """A consolidator's, when they are written."""
    _, state, queue = published()
    ids = message_ids_from(LogIndex(2), 0, COUNT)
    assert list(ids) == list(ids_in(queue))
    state.contents.drop(ids, with_checksums=False)
    assert state.contents.resident_bytes == 0
    assert state.contents.packed(ids) is None, "without its bodies it is no packed record any more"
    assert queue.bytes == queue.size_of(queue.positions()) == 2 * COUNT
    removed = queue.remove(queue.positions()[:3], True)
    for batch in removed.durable:
        state.contents.release(batch, True)
    assert queue.bytes == 2 * (COUNT - 3)
    left = state.contents.find(ids[-1])
    assert type(left) is DroppedMessage and (left.size, left.queues) == (2, (queue.id,))
    check_invariants(state)


def test_a_state_keeps_no_frame_for_what_lies_in_it() -> None:
    log = Log()
    queue = log.queue("q")
    log.publish(*(message((queue,), bytes(9)) for _ in range(COUNT)))
    log.publish(*(message((queue,), bytes(99_999)) for _ in range(COUNT)))
    log.flush()
    state = replay(log.frames)
    found = state.contents.packed(message_ids_from(LogIndex(2), 0, COUNT))
    assert found is not None and found.encoded is not None and len(found.encoded) < 300


def test_few_messages_are_kept_one_by_one_whatever_is_said_of_them() -> None:
    log = Log()
    queue = log.queue("q")
    messages = tuple(message((queue,), b"x") for _ in range(RUN_MIN - 1))
    assert alike(messages) is None
    log.publish(*messages)
    log.flush()
    state = replay(log.frames)
    assert place(2, 0) in dict(state.contents.items())
    check_invariants(state)
