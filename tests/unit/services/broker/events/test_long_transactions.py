"""Transactions that were open for long: what a broker reads and holds when they end, where it has not followed them."""

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.records import AnyRecord, Begin
from lockstep.core.xid import Xid
from services.broker.core.events.blocks import BLOCK_EVENTS
from services.broker.core.events.builder import DecodedFrame
from services.broker.core.events.planning import Offset
from services.broker.events.kept_builders import COLLECTED_BYTES_MIN
from services.broker.events.set_events import SetEvents
from tests.unit.lockstep.core.history import SET, Log, Writer, message
from tests.unit.services.broker.core.events.event_rig import told
from tests.unit.services.broker.events.test_set_events import START, JournalInMemory, Rig

FRAMES = 100
FRAME_BYTES = 256 * 1024
LARGE = bytes(FRAME_BYTES)
SMALL = b"between"


class CountedJournal(JournalInMemory):
    """Counts frames, and may stand still, as a store does that is slow."""

    frames_read = 0
    left: int | None = None
    """Frames before it stands still; None: it does not."""

    async def frames(
        self, set_name: SetName, epoch: Epoch, after: LogIndex, until: LogIndex
    ) -> AsyncIterator[DecodedFrame]:
        async for frame in super().frames(set_name, epoch, after, until):
            if self.left == 0:
                await asyncio.Event().wait()
            self.frames_read += 1
            self.left = self.left - 1 if self.left is not None else None
            yield frame

    def count(self) -> int:
        """Of frames that were read since it was asked for last."""
        found, self.frames_read = self.frames_read, 0
        return found


class LongRig(Rig):
    """A log in which a transaction does something, and then much else is done."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: CountedJournal = CountedJournal(self.log.frames)
        self.events = SetEvents(SET, self._loaded, self.journal)
        self.queue = self.log.queue("q")
        self.key = self.log.begin()
        self.log.publish(message((self.queue,), b"of the transaction"), transaction=self.key)
        self.log.flush()

    def write_between(self, body: bytes = LARGE) -> None:
        for _ in range(FRAMES):
            self.log.publish(message((self.queue,), body))
            self.log.flush()

    def commit(self) -> tuple[Offset, Offset]:
        """A range that has nothing but the commit."""
        start = self.end()
        self.log.commit(self.key)
        return start, self.end()

    async def give_up(self, start: Offset, end: Offset, frames: int) -> None:
        """Read, and give up when so many frames were read."""
        self.journal.left = frames
        reading = asyncio.ensure_future(self.read(start, end))
        while self.journal.left and not reading.done():
            await asyncio.sleep(0)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        self.journal.left = None


async def test_what_lies_between_a_begin_and_its_commit_is_not_held_in_memory() -> None:
    rig = LongRig()
    rig.write_between()
    start, end = rig.commit()
    tracemalloc.start()
    try:
        assert await rig.bodies(start, end) == [b"of the transaction"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rig.journal.count() > FRAMES
    assert peak < 8 * FRAME_BYTES


async def test_other_work_goes_between_the_frames_of_an_earlier_part() -> None:
    rig = LongRig()
    rig.write_between(SMALL)
    start, end = rig.commit()
    frames_seen: set[int] = set()
    is_done = False

    async def work() -> None:
        while not is_done:
            frames_seen.add(rig.journal.frames_read)
            await asyncio.sleep(0)

    working = asyncio.ensure_future(work())
    await rig.read(start, end)
    is_done = True
    await working
    assert len(frames_seen) > FRAMES


async def test_a_reader_that_gives_up_and_comes_back_finds_what_was_read_for_it() -> None:
    rig = LongRig()
    rig.write_between()
    start, end = rig.commit()
    few, many = 5, FRAMES * 2 // 5
    assert few * FRAME_BYTES < COLLECTED_BYTES_MIN < many * FRAME_BYTES
    for frames in (many, few, few):
        await rig.give_up(start, end, frames)
    assert await rig.bodies(start, end) == [b"of the transaction"]
    assert rig.journal.count() <= FRAMES + 10, "each try reads the frame of the commit"


async def test_one_that_gives_up_behind_the_earlier_part_does_not_read_it_again() -> None:
    rig = LongRig()
    rig.write_between()
    start, end = rig.commit()
    for _ in range(5):
        rig.log.publish(message((rig.queue,), SMALL))
        rig.log.flush()
    await rig.give_up(start, rig.end(), FRAMES + 4)
    assert rig.journal.count() == FRAMES + 4
    assert await rig.bodies(start, end) == [b"of the transaction"]
    assert rig.journal.count() <= 10


async def test_who_comes_back_when_what_was_read_for_him_is_gone_meanwhile_goes_on_behind_it() -> None:
    """Nothing is owed below some index any more; what the transaction did is above."""
    rig = LongRig()
    rig.log.rollback(rig.key)
    rig.key = rig.log.begin()
    rig.write_between()
    rig.log.publish(message((rig.queue,), b"late"), transaction=rig.key)
    start, end = rig.commit()
    await rig.give_up(start, end, FRAMES // 2)
    rig.journal.lowest = LogIndex(end.index - 10)
    assert await rig.bodies(start, end) == [b"late"]


async def test_who_comes_back_when_what_the_transaction_did_is_gone_meanwhile_hears_so() -> None:
    rig = LongRig()
    rig.write_between()
    start, end = rig.commit()
    await rig.give_up(start, end, FRAMES // 2)
    rig.journal.lowest = LogIndex(end.index - 10)
    with pytest.raises(Rejected) as caught:
        await rig.read(start, end)
    assert caught.value.code is ErrorCode.OUT_OF_RANGE


@pytest.mark.parametrize("frames_behind", [0, 1])
async def test_what_is_gone_is_asked_for_once(frames_behind: int) -> None:
    """What these transactions did first was transient, and is not kept."""
    rig = Rig()
    log, queue = rig.log, rig.log.queue("q")
    keys = [log.begin() for _ in range(5)]
    for key in keys:
        log.publish(message((queue,), is_durable=False), transaction=key, is_durable=False)
    log.flush()
    rig.journal.lowest = LogIndex(log.state.applied + 1)
    for _ in range(frames_behind):
        log.publish(message((queue,), SMALL))
        log.flush()
    start = rig.end()
    for key in keys:
        log.publish(message((queue,), b"durable"), transaction=key)
        log.flush()
        log.commit(key)
        log.flush()
    assert await rig.bodies(start, rig.end()) == [b"durable"] * len(keys)
    assert rig.journal.readings == 2 + frames_behind


async def test_what_an_epoch_has_aborted_in_an_earlier_part_is_not_open_behind_it() -> None:
    rig = LongRig()
    rig.log.begin_epoch()
    rig.log.publish(message((rig.queue,), SMALL))
    start = rig.end()
    rig.log.rollback(rig.key)
    rig.log.flush()
    rig.log.publish(message((rig.queue,), b"last"))
    assert await rig.bodies(start, rig.end()) == [b"last"]


@pytest.mark.parametrize("with_content", [False, True])
async def test_a_reader_that_keeps_up_reads_no_part_of_the_log_for_a_commit(with_content: bool) -> None:
    """A plan comes first, which has content."""
    rig = LongRig()
    at = START

    async def follow() -> None:
        nonlocal at
        end = rig.end()
        async for _ in rig.events.blocks(at, end.index):
            pass
        await rig.read(at, end, with_content=with_content)
        at = end

    for _ in range(FRAMES):
        rig.log.publish(message((rig.queue,), SMALL))
        await follow()
    rig.journal.count()
    rig.log.commit(rig.key)
    await follow()
    assert rig.journal.count() <= 4


async def test_a_plan_that_ends_inside_of_what_was_looked_at_makes_nobody_read_the_log_again() -> None:
    """Its end was lowered for another set's sake: the block that it cuts begins where no reading ended."""
    rig = LongRig()
    rig.write_between(SMALL)
    async for _ in rig.events.blocks(START, rig.end().index):
        pass
    planned = rig.end()
    for _ in range(2):
        rig.log.publish(*(message((rig.queue,)) for _ in range(BLOCK_EVENTS)))
        rig.log.flush()
    rig.log.commit(rig.key)
    cut = rig.end()
    rig.log.publish(message((rig.queue,), b"behind the cut"))
    async for _ in rig.events.blocks(planned, rig.end().index):
        pass
    rig.journal.count()
    assert (await rig.bodies(planned, cut))[-1] == b"of the transaction"
    assert rig.journal.count() <= 10


class NamedLog(Log):
    """Branches have names as clients give them."""

    def append(self, record: AnyRecord, is_durable: bool = True) -> LogIndex:
        if isinstance(record, Begin) and record.xid:
            record = msgspec.structs.replace(record, xid=Xid(7, record.xid, b"branch").encode())
        return super().append(record, is_durable)


@pytest.mark.parametrize("seed", range(12))
async def test_whoever_reads_from_wherever_in_whichever_order_hears_the_same(seed: int) -> None:
    chance = random.Random(seed)
    writer, rig = Writer(chance), Rig()
    writer.log = rig.log = log = NamedLog()
    log.begin_epoch()
    writer.write(200)
    rig.journal.frames_of_log = log.frames
    names_from = log.state.subscriptions.names_from
    expected = [(done.index, done.events) for done in told(log) if done.events]
    for _ in range(60):
        first, last = sorted(chance.choices(range(names_from, log.state.applied + 1), k=2))
        start, end = rig.events.offset_at(LogIndex(first)), rig.events.offset_at(LogIndex(last))
        batches = await rig.read(start, end, with_content=chance.random() < 0.5)
        found = [(done.index, done.events) for batch in batches for done in batch.transactions]
        assert found == [each for each in expected if first < each[0] <= last], (first, last)
