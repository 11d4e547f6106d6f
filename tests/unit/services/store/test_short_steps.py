"""However many frames there are, and however small, the event loop of a store does a little at a time.

What is measured is what a core does between two jobs, in processor time. A lane's thread does the rest.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lockstep.core.ids import Epoch, LogIndex, MessageId, QueueId, place
from lockstep.core.records import DeclareQueue, Message, Publish
from lockstep.core.replication import FRAMES_IN_ONE
from lockstep.core.store_protocol import LoadState, StateChunk, StoreRefused
from lockstep.runtime.loop_watch import LONG_SECONDS
from services.store.core.disk import WriteSegment
from services.store.core.limits import StoreLimits
from services.store.core.messages import Requested, StoreInput
from services.store.core.requests import ContentsRead, FramesRead, ReadContents, ReadFrames, SurveySet
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, appending, frame

MANY = 30_000


class TimedRig(StoreRig):
    """Tells how long the longest step was."""

    longest = 0.0

    def feed(self, event: StoreInput) -> None:
        begun = time.thread_time()
        effects = self.core.handle(event, 0.0)
        self.longest = max(self.longest, time.thread_time() - begun)
        self._take(effects)


def timed_rig() -> TimedRig:
    return TimedRig(StoreLimits(segment_bytes=8 << 20, reserve_bytes=0))


@pytest.fixture(scope="module")
def frames() -> tuple[bytes, ...]:
    """Of a log with many of the smallest."""
    return tuple(frame(index) for index in range(1, MANY + 1))


@pytest.fixture
def rig(frames: tuple[bytes, ...]) -> Iterator[TimedRig]:
    """A store that has them all; no step may have been long when the test ends."""
    rig = timed_rig()
    rig.open()
    for begin in range(0, MANY, 500):
        rig.append_ok(*frames[begin : begin + 500], commit=begin)
    rig.tell_commit(MANY)
    rig.longest = 0.0
    yield rig
    assert rig.longest < LONG_SECONDS


def test_what_comes_at_once_is_appended_in_parts(frames: tuple[bytes, ...]) -> None:
    rig = timed_rig()
    rig.open()
    rig.feed(Requested(rig.stream, appending(*frames[: MANY // 2])))
    for each in frames[MANY // 2 :]:
        rig.feed(Requested(rig.stream, appending(each)))
    rig.run()
    assert rig.open().log_end == MANY
    assert rig.longest < LONG_SECONDS
    assert rig.log.count(WriteSegment.__name__) >= MANY // FRAMES_IN_ONE


def test_a_part_behind_one_that_is_refused_is_refused(frames: tuple[bytes, ...]) -> None:
    rig = StoreRig(replace(SMALL, group_frames_max=10))
    rig.open()
    answers = rig.ask(appending(*frames[:15], *frames[16:40]))
    assert [type(answer) for answer in answers[1:]] == [StoreRefused] * 3
    assert rig.open().log_end == 10


def test_a_set_is_read_in_short_steps(rig: TimedRig) -> None:
    rig.crash(power=False)
    opened = rig.open(2)
    assert (opened.log_end, opened.damage) == (MANY, "")


def test_a_state_is_loaded_in_short_steps(rig: TimedRig, frames: tuple[bytes, ...]) -> None:
    *chunks, _ = rig.ask(LoadState(SET, Epoch(1), ME))
    told = [chunk.frames for chunk in chunks if isinstance(chunk, StateChunk)]
    assert max(map(len, told)) == FRAMES_IN_ONE
    assert tuple(each for some in told for each in some) == frames


def test_frames_are_read_in_short_steps(rig: TimedRig, frames: tuple[bytes, ...]) -> None:
    answers = rig.ask_reader(ReadFrames(SET, Epoch(1), LogIndex(1)))
    told = [answer.frames for answer in answers if isinstance(answer, FramesRead)]
    assert max(map(len, told)) == FRAMES_IN_ONE
    assert tuple(each for some in told for each in some) == frames


def test_names_are_found_in_short_steps() -> None:
    rig = timed_rig()
    rig.open()
    count = 20_000
    rig.append_ok(frame(1, records=[DeclareQueue(None, f"queue {number}", True) for number in range(count)]))
    rig.longest = 0.0
    (found,) = rig.ask_reader(SurveySet(SET, Epoch(0), True))
    assert len(found.queues) == count  # type: ignore[union-attr]
    assert rig.longest < LONG_SECONDS


def test_contents_are_found_in_short_steps() -> None:
    rig = timed_rig()
    rig.open()
    count = 40_000
    messages = tuple(Message((QueueId(1),), b"", b"%d" % number, is_durable=True) for number in range(count))
    rig.append_ok(frame(1, records=[DeclareQueue(None, "q", True), Publish(None, None, 0, messages)]))
    rig.longest = 0.0
    wanted = MessageId(place(2, count - 1))
    (found,) = rig.ask_reader(ReadContents(SET, Epoch(1), (wanted,)))
    assert found == ContentsRead(((b"", b"%d" % (count - 1)),))
    assert rig.longest < LONG_SECONDS


def test_a_search_for_groups_in_what_a_file_was_before_is_no_step_of_the_loop() -> None:
    """Bodies of messages may look like the beginnings of groups from end to end."""
    rig = timed_rig()
    rig.open()
    body = (b"LKSG" + bytes(12) + (1).to_bytes(8, "little")) * (1 << 18)
    message = Message((QueueId(1),), b"", body, is_durable=True)
    rig.append_ok(frame(1, records=[DeclareQueue(None, "q", True), Publish(None, None, 0, (message,))]))
    rig.disk.flip_bit(SET, 1, 200, 1)
    rig.crash(power=False)
    rig.longest = 0.0
    assert rig.open(2).log_end == 0
    assert rig.longest < LONG_SECONDS
