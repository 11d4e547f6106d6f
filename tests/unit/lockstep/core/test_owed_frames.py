"""What a store lacks leaves in order, in requests of some frames, each when the one before is durable."""

from collections import deque

from lockstep.core.ids import LogIndex
from lockstep.core.owed_frames import REQUEST_BYTES, OwedFrames
from lockstep.core.replication import FRAMES_IN_ONE
from tests.unit.services.replicas import frames


def test_a_request_has_no_more_frames_than_a_store_takes_at_once() -> None:
    lacked = frames(1, 1, FRAMES_IN_ONE + 5)
    owed = OwedFrames(deque(lacked))
    first = owed.request(LogIndex(0))
    assert len(first) == FRAMES_IN_ONE and owed.sent == FRAMES_IN_ONE and owed
    assert owed.request(LogIndex(FRAMES_IN_ONE - 1)) == (), "it has not got what left before"
    owed.put(last := frames(1, FRAMES_IN_ONE + 6, FRAMES_IN_ONE + 6)[0])
    second = owed.request(LogIndex(FRAMES_IN_ONE))
    assert first + second == tuple(frame.durable for frame in (*lacked, last)) and not owed
    assert owed.request(owed.sent) == ()


def test_big_frames_leave_a_few_at_a_time_and_the_biggest_alone() -> None:
    big = [frame._replace(durable=bytes(REQUEST_BYTES // 2 + 1)) for frame in frames(1, 1, 3)]
    owed = OwedFrames(deque(big))
    assert [len(owed.request(owed.sent)) for _ in range(3)] == [2, 1, 0]
