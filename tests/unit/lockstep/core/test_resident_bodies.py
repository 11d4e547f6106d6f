"""Which bodies leave memory when there are too many, and which never do."""

from lockstep.core.apply_messages import SHARES_AT_ONCE
from lockstep.core.ids import LogIndex
from lockstep.core.invariants import check_invariants
from lockstep.core.queues import Queue
from lockstep.core.resident_bodies import (
    QUEUES_IN_ONE,
    READ_BACK_SHARE,
    REST_SHARE,
    TURN_COST,
    ResidentBodies,
)
from lockstep.core.restoration import restore
from lockstep.core.set_state import SetState
from tests.counted_work import CountedOpcodes
from tests.unit.lockstep.core.history import SET, Log, message, replay

KIB = 1024
LIMIT = 64 * KIB
EVERYTHING = LogIndex(1 << 40)
OPCODES_MAX = 150 * TURN_COST
"""Of one step: to look at a message takes a hundred, and to let its body go some more."""

BYTES_MAX = 16 * 1024 * KIB
"""Of the bodies that go in one step: some milliseconds, for their checksums and for giving their memory back."""


def filled(count: int = 200, size: int = KIB) -> tuple[Log, Queue, ResidentBodies]:
    """A durable queue with so many messages of so many bytes, three times as much as may stay by default."""
    log = Log()
    queue, body = log.queue("q"), b"x" * size
    for _ in range(count):
        log.publish(message((queue,), body))
    return log, queue, ResidentBodies(log.state, LIMIT)


def here(queue: Queue) -> list[bool]:
    """For each message in order whether its body is here."""
    return [queue.message(position) is not None for position in queue.positions()]


def test_nothing_goes_below_the_limit() -> None:
    log, queue, bodies = filled(count=LIMIT // KIB)
    bodies.trim(EVERYTHING)
    assert all(here(queue)) and log.state.contents.resident_bytes == LIMIT


def test_bodies_go_until_the_limit_is_met_and_the_head_stays() -> None:
    log, queue, bodies = filled()
    bodies.trim(EVERYTHING)
    assert log.state.contents.resident_bytes == LIMIT
    assert here(queue)[0] and not any(here(queue)[1:137]) and all(here(queue)[137:])
    check_invariants(log.state)


def test_a_body_that_the_own_store_does_not_have_stays() -> None:
    log, queue, bodies = filled()
    durable_end = LogIndex(queue.positions()[20] >> 24)
    assert not bodies.trim(durable_end), "nothing more could be done before more is durable"
    assert not any(here(queue)[1:21]) and all(here(queue)[21:])
    with CountedOpcodes() as waiting:
        assert not bodies.trim(durable_end)
    assert waiting.total < 100, "nothing is looked at meanwhile"
    assert all(here(queue)[21:])
    bodies.trim(EVERYTHING)
    assert log.state.contents.resident_bytes == LIMIT


def test_what_is_durable_goes_whatever_of_other_queues_is_not() -> None:
    log = Log()
    queues = [log.queue("a"), log.queue("b")]
    for queue in queues:
        for _ in range(100):
            log.publish(message((queue,), b"x" * KIB))
    bodies = ResidentBodies(log.state, LIMIT)
    ends = [LogIndex(queues[0].positions()[count] >> 24) for count in (20, 60)]
    for durable_end in ends:
        bodies.trim(durable_end)
    assert not any(here(queues[0])[1:61]) and all(here(queues[0])[61:]) and all(here(queues[1]))


def test_behind_what_was_taken_beyond_what_had_gone_another_head_stays() -> None:
    log, queue, bodies = filled()
    bodies.trim(EVERYTHING)
    log.dequeue(queue, *queue.positions()[:150])
    for _ in range(100):
        log.publish(message((queue,), b"x" * KIB))
    bodies.trim(EVERYTHING)
    assert here(queue)[0] and not here(queue)[1]
    assert log.state.contents.resident_bytes == LIMIT


def test_where_nothing_more_can_go_nothing_is_looked_at_before_more_has_come() -> None:
    log = Log()
    fleeting, queue = log.queue("fleeting", is_durable=False), log.queue("q")
    bodies = ResidentBodies(log.state, LIMIT)
    log.publish(*[message((queue,), b"x" * KIB)] * 3)
    log.publish(*[message((fleeting,), b"x" * KIB, is_durable=False)] * 100, is_durable=False)
    for durable_end in (LogIndex(0), EVERYTHING, EVERYTHING):
        bodies.trim(durable_end)
    assert here(queue) == [True, False, False]
    with CountedOpcodes() as resting:
        bodies.trim(EVERYTHING)
    assert resting.total < 100


def test_every_body_goes_once_however_long_the_queue_grows() -> None:
    log, queue, bodies = filled(0)
    for _ in range(500):
        log.publish(message((queue,), b"x" * KIB))
        bodies.trim(EVERYTHING)
        assert log.state.contents.resident_bytes <= LIMIT + KIB
    assert here(queue)[0]


def test_a_transient_message_stays() -> None:
    log = Log()
    queue = log.queue("q")
    for _ in range(100):
        log.publish(message((queue,), b"x" * KIB, is_durable=False), is_durable=False)
    ResidentBodies(log.state, LIMIT).trim(EVERYTHING)
    assert all(here(queue))


def test_a_message_that_a_transient_queue_has_too_stays() -> None:
    log = Log()
    queue, fleeting = log.queue("q"), log.queue("fleeting", is_durable=False)
    bodies = ResidentBodies(log.state, LIMIT)
    for _ in range(100):
        log.publish(message((queue, fleeting), b"x" * KIB))
    bodies.trim(EVERYTHING)
    assert all(here(queue)) and all(here(fleeting))


def test_small_bodies_stay() -> None:
    log = Log()
    queue = log.queue("q")
    bodies = ResidentBodies(log.state, LIMIT)
    for _ in range(400):
        log.publish(*[message((queue,), b"x" * 200)] * 2)
    bodies.trim(EVERYTHING)
    assert all(here(queue))


def test_what_was_read_back_and_not_taken_goes_again_the_oldest_first() -> None:
    log, queue, bodies = filled()
    bodies.trim(EVERYTHING)
    ids = queue.message_ids(queue.positions())
    body = message((queue,), b"x" * KIB)
    room = LIMIT // READ_BACK_SHARE // KIB
    for first in range(1, 1 + 3 * room, room):
        bodies.bring_back(dict.fromkeys(ids[first : first + room], body))
        assert all(here(queue)[first : first + room])
        bodies.trim(EVERYTHING)
    assert not any(here(queue)[1 : 1 + 2 * room]) and all(here(queue)[1 + 2 * room : 1 + 3 * room])
    check_invariants(log.state)


def test_what_comes_back_for_a_message_that_is_gone_is_not_kept() -> None:
    log, queue, bodies = filled()
    bodies.trim(EVERYTHING)
    gone = queue.positions()[1]
    (message_id,) = queue.message_ids((gone,))
    log.dequeue(queue, gone)
    bodies.bring_back({message_id: message((queue,), b"x" * KIB)})
    assert message_id not in log.state.contents
    check_invariants(log.state)


def test_a_restoration_keeps_the_oldest_bodies_and_all_transient_ones() -> None:
    log, _queue, _ = filled()
    fleeting = log.queue("fleeting", is_durable=False)
    log.publish(message((fleeting,), b"y" * KIB), is_durable=False)
    state = SetState(SET)
    restore(state, log.state.items(), resident_bytes_max=LIMIT)
    first_away = here(state.queues.by_name["q"]).index(False)
    assert 60 <= first_away <= 64 and not any(here(state.queues.by_name["q"])[first_away:])
    assert here(state.queues.by_name["fleeting"]) == [True]
    check_invariants(state)


def test_what_is_delivered_first_by_its_priority_stays_as_the_head_does() -> None:
    log = Log()
    queue = log.queue("q")
    for number in range(200):
        log.publish(message((queue,), b"x" * (KIB // 4), priority=9 if number % 20 == 10 else 4))
    ResidentBodies(log.state, LIMIT // 4).trim(EVERYTHING)
    kept = [number for number, is_here in enumerate(here(queue)) if is_here]
    assert kept[:2] == [0, 10], "a head has 256 bytes"
    assert not {30, 50, 70}.intersection(kept) and log.state.contents.resident_bytes <= LIMIT // 4
    check_invariants(log.state)


def test_nothing_goes_while_a_message_is_put_into_many_queues() -> None:
    log = Log()
    queues = tuple(log.queue(f"q{number}") for number in range(SHARES_AT_ONCE + 1))
    for _ in range(2 * LIMIT // KIB):
        log.publish(message((log.state.queues.by_name["q7"],), b"x" * KIB))
    log.state.clearing.is_in_pieces = True
    bodies = ResidentBodies(log.state, LIMIT)
    log.publish(message(queues, b"x" * 2 * KIB))
    assert log.state.unfinished is not None
    before = log.state.contents.resident_bytes
    bodies.trim(EVERYTHING)
    assert log.state.contents.resident_bytes == before
    log.state.finish()
    bodies.trim(EVERYTHING)
    assert log.state.contents.resident_bytes <= LIMIT
    check_invariants(log.state)


def test_what_could_not_go_and_is_gone_leaves_no_room_to_others() -> None:
    log = Log()
    queue, fleeting = log.queue("q"), log.queue("fleeting", is_durable=False)
    bodies = ResidentBodies(log.state, LIMIT)
    for _ in range(4 * LIMIT // KIB):
        log.publish(message((fleeting,), b"x" * KIB, is_durable=False), is_durable=False)
        bodies.trim(EVERYTHING)
    for position in fleeting.positions():
        log.dequeue(fleeting, position, is_durable=False)
        bodies.trim(EVERYTHING)
    for _ in range(2 * LIMIT // KIB):
        log.publish(message((queue,), b"x" * KIB))
        bodies.trim(EVERYTHING)
        assert log.state.contents.resident_bytes <= LIMIT + LIMIT // REST_SHARE + KIB


def test_what_comes_where_all_was_looked_at_is_looked_at_when_the_rest_was() -> None:
    log = Log()
    queues = [log.queue("first"), log.queue("last")]
    bodies = ResidentBodies(log.state, LIMIT)
    for queue in queues:
        log.publish(*[message((queue,), b"x" * KIB)] * 50)
    bodies.trim(EVERYTHING)
    log.publish(*[message((queues[1],), b"x" * KIB)] * 50)
    bodies.trim(EVERYTHING)
    log.publish(*[message((queues[0],), b"x" * KIB)] * 200)
    while bodies.trim(EVERYTHING):
        pass
    assert log.state.contents.resident_bytes <= LIMIT


def test_what_could_not_go_and_is_gone_amid_a_turn_ends_it_no_sooner() -> None:
    log = Log()
    queue, fleeting = log.queue("q"), log.queue("fleeting", is_durable=False)
    bodies = ResidentBodies(log.state, LIMIT)
    log.publish(*[message((fleeting,), b"x" * KIB, is_durable=False)] * 256, is_durable=False)
    assert not bodies.trim(EVERYTHING)
    for _ in range(10):
        log.publish(*[message((queue,), b"x" * 256)] * 100)
    assert bodies.trim(EVERYTHING)
    log.dequeue(fleeting, *fleeting.positions(), is_durable=False)
    while bodies.trim(EVERYTHING):
        pass
    assert log.state.contents.resident_bytes <= LIMIT


def test_a_step_looks_at_little_of_a_long_queue_and_all_is_trimmed_in_some() -> None:
    log = Log()
    queue = log.queue("q")
    for _ in range(60):
        log.publish(*[message((queue,), b"y" * 8)] * 100)  # A head of small messages.
    for _ in range(80):
        log.publish(*[message((queue,), b"x" * KIB)] * 50)
    log.flush()
    state = replay(log.frames)  # There what was published together is packed.
    assert trimmed_in_steps(state, ResidentBodies(state, LIMIT)) > 5
    assert state.contents.resident_bytes <= LIMIT
    check_invariants(state)


def test_a_step_asks_some_of_many_queues_and_all_are_asked_in_some() -> None:
    log = Log()
    fleeting = log.queue("fleeting", is_durable=False)
    log.publish(*[message((fleeting,), b"x" * KIB, is_durable=False)] * 100, is_durable=False)
    for number in range(20 * QUEUES_IN_ONE):
        log.queue(f"short {number}")
    long = log.queue("long")
    log.publish(*[message((long,), b"x" * KIB)] * 50)
    assert trimmed_in_steps(log.state, ResidentBodies(log.state, LIMIT)) > 2
    assert here(long) == [True] + 49 * [False]


def test_a_step_looks_for_what_is_delivered_first_in_some_of_many_queues() -> None:
    log = Log()
    for number in range(20):
        queue = log.queue(f"q{number}")
        for _ in range(3):
            log.publish(*[message((queue,), b"x" * KIB, priority=9)] * 100)
    fleeting = log.queue("fleeting", is_durable=False)
    bodies = ResidentBodies(log.state, LIMIT)
    for _ in range(2):
        log.publish(*[message((fleeting,), b"x" * KIB, is_durable=False)] * 100, is_durable=False)
        while bodies.trim(EVERYTHING):
            pass
    log.publish(*[message((fleeting,), b"x" * KIB, is_durable=False)] * 100, is_durable=False)
    assert trimmed_in_steps(log.state, bodies) > 1, "nothing more can go, and that is seen in some steps"


def test_little_goes_in_a_step_where_bodies_are_large() -> None:
    log, queue, bodies = filled(64, 1024 * KIB)
    ids, body = queue.message_ids(queue.positions()), message((queue,), b"x" * 1024 * KIB)
    assert trimmed_in_steps(log.state, bodies) > 3
    assert here(queue) == [True] + 63 * [False]
    bodies.bring_back(dict.fromkeys(ids[1:], body))
    assert trimmed_in_steps(log.state, bodies) > 3
    assert not any(here(queue)[1:])


def test_little_goes_in_a_step_of_what_was_read_back_below_the_limit() -> None:
    log, queue, _ = filled(100, 1024 * KIB)
    limit = 64 * 1024 * KIB
    bodies = ResidentBodies(log.state, limit)
    while bodies.trim(EVERYTHING):
        pass
    log.dequeue(queue, *queue.positions()[-40:])
    body = message((queue,), b"x" * 1024 * KIB)
    bodies.bring_back(dict.fromkeys(queue.message_ids(queue.positions()[1:37]), body))
    assert log.state.contents.resident_bytes <= limit
    assert trimmed_in_steps(log.state, bodies) > 2
    assert sum(here(queue)[1:37]) == limit // READ_BACK_SHARE // (1024 * KIB)


def trimmed_in_steps(state: SetState, bodies: ResidentBodies) -> int:
    """Trims until nothing more can go, in steps of which each does little; answers how many there were."""
    steps = 1
    while True:
        before = state.contents.resident_bytes
        with CountedOpcodes() as step:
            is_more = bodies.trim(EVERYTHING)
        assert step.total < OPCODES_MAX, f"step {steps}"
        assert before - state.contents.resident_bytes < BYTES_MAX, f"step {steps}"
        if not is_more:
            return steps
        steps += 1
