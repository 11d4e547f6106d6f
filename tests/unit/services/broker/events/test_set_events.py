"""One set's events as a broker reads them from its own store's journal."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.frames import Frame
from lockstep.core.ids import Epoch, LogIndex, SetName, TimeMs
from lockstep.core.records import Commit, DeleteQueue, RollbackReason
from lockstep.core.subscriptions import DELETED_KEPT
from lockstep.core.xid import Xid
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.blocks import BLOCK_EVENTS, Block
from services.broker.core.events.builder import DecodedFrame
from services.broker.core.events.planning import Offset
from services.broker.events.block_cache import BlockCache, EncodedBlock
from services.broker.events.loaded_set import LoadedSet
from services.broker.events.set_events import ENCODED_AT_ONCE, SetEvents
from tests.counted_work import CountedCalls
from tests.unit.lockstep.core.history import SET, Log, durable_replay, message

START = Offset(LogIndex(0), Epoch(0))
XID = Xid(7, b"global", b"branch").encode()


class JournalInMemory:
    """Of the frames of a log, perhaps of the last ones only."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self.frames_of_log = frames
        self.lowest = LogIndex(1)
        self.readings = 0
        self.behind_frame: Callable[[], object] = lambda: None
        """Called behind each frame that is read: whatever else the process does meanwhile."""

    async def frames(
        self, set_name: SetName, epoch: Epoch, after: LogIndex, until: LogIndex
    ) -> AsyncIterator[DecodedFrame]:
        self.readings += 1
        if after + 1 < self.lowest:
            text = f"the lowest index that is there is {self.lowest}"
            raise Rejected(ErrorCode.OUT_OF_RANGE, text, lowest_index=self.lowest)
        for frame in self.frames_of_log:
            if frame.header.last > after and frame.header.first <= until:
                yield DecodedFrame.of(frame.durable)
                self.behind_frame()


class Rig:
    """A replica whose log a test writes."""

    def __init__(self) -> None:
        self.log = Log()
        self.journal = JournalInMemory(self.log.frames)
        self.loaded: LoadedSet | None = None
        self.events = SetEvents(SET, self._loaded, self.journal)

    def _loaded(self) -> LoadedSet:
        self.log.flush()
        return self.loaded or LoadedSet(self.log.state, self.log.state.applied, self.log.epoch)

    def end(self) -> Offset:
        return self.events.committed()

    async def read(self, start: Offset, end: Offset, *, with_content: bool = True) -> list[pb.EventBatch]:
        return [
            pb.EventBatch.FromString(batch)
            async for encoded in self.events.range(start, end, with_content=with_content)
            for batch in encoded.batches
        ]

    async def bodies(self, start: Offset, end: Offset) -> list[bytes]:
        found = []
        for batch in await self.read(start, end):
            at = 0
            for kind, length in zip(batch.events.kinds, batch.events.body_lengths, strict=False):
                if kind == pb.EventBatch.KIND_ENQUEUE:
                    found.append(batch.events.bodies[at : at + length])
                at += length
        return found


async def test_a_range_that_is_read_again_is_the_same_and_comes_from_memory() -> None:
    rig = Rig()
    queue = rig.log.queue("q")
    rig.log.publish(message((queue,), b"one"))
    end = rig.end()
    first = await rig.read(START, end)
    assert await rig.read(START, end) == first
    assert rig.journal.readings == 1


@pytest.mark.parametrize("queues", [5, ENCODED_AT_ONCE + 1])
async def test_what_went_to_very_many_queues_is_encoded_beside_the_loop(queues: int) -> None:
    rig = Rig()
    declared = tuple(rig.log.queue(f"q{number}") for number in range(queues))
    rig.log.flush()
    start = rig.end()
    rig.log.publish(message(declared, b"to all"))
    rig.log.flush()
    rig.log.state.finish()
    with CountedCalls() as counted:
        batches = await rig.read(start, rig.end())
    resources = [resource.name for batch in batches for resource in batch.resources]
    assert resources == [f"q{number}" for number in range(queues)]
    assert bool(counted.by_name["_Writer._append"]) is (queues <= ENCODED_AT_ONCE)


async def test_any_cut_of_a_range_gives_the_same_events() -> None:
    rig = Rig()
    queue = rig.log.queue("q")
    key = rig.log.begin(XID)
    rig.log.publish(message((queue,), b"in branch"), transaction=key)
    rig.log.prepare(key, XID)
    rig.log.flush()
    rig.log.publish(message((queue,), b"one"))
    rig.log.append(Commit(None, key))
    rig.log.flush()
    rig.log.publish(message((queue,), b"two"))
    end = rig.end()
    whole = await rig.bodies(START, end)
    assert whole == [b"one", b"in branch", b"two"]
    for index in range(1, end.index):
        cut = rig.events.offset_at(LogIndex(index))
        assert await rig.bodies(START, cut) + await rig.bodies(cut, end) == whole, f"cut at {index}"


async def test_a_replica_that_was_loaded_again_gives_the_names_of_what_came_since() -> None:
    """A primary that was deposed drops its memory; what it had read of the log goes on."""
    rig = Rig()
    rig.log.queue("q")
    rig.log.flush()
    old = durable_replay(rig.log.frames)
    rig.loaded = LoadedSet(old, old.applied, Epoch(1))
    known = rig.end()
    await rig.read(START, known)
    queue = rig.log.queue("new")
    rig.log.publish(message((queue,), b"to it"))
    rig.log.flush()
    rig.loaded = None
    assert await rig.bodies(known, rig.end()) == [b"to it"]


async def test_names_of_a_memory_that_is_taken_apart_while_it_is_read_are_asked_of_the_next_one() -> None:
    """A reign that is over, or a whole snapshot in the place of a memory: the log goes on, and what is read of it, too."""
    rig = Rig()
    first, second = rig.log.queue("first"), rig.log.queue("second")
    rig.log.flush()
    start = rig.end()
    for number in range(3):
        rig.log.publish(message((first, second), b"%d" % number))
        rig.log.flush()
    end = rig.end()
    exchanged = [b"0", b"0", b"1", b"1", b"2", b"2"]
    for steps in range(1, 12):
        again = Rig()
        again.log, again.journal.frames_of_log = rig.log, rig.log.frames
        old = durable_replay(rig.log.frames)
        again.loaded = LoadedSet(old, old.applied, Epoch(1))
        left = old.take_apart()

        def take_apart(again: Rig = again, left: Iterator[int] = left, steps: int = steps) -> None:
            again.loaded = None
            deque(islice(left, steps), maxlen=0)

        again.journal.behind_frame = take_apart
        assert await again.bodies(start, end) == exchanged, f"after {steps} steps"
        assert await again.bodies(start, end) == exchanged, "nor is anything else kept"


async def test_what_another_log_had_there_is_not_given_from_memory() -> None:
    """Data loss was accepted (R7): the same indexes have other content now."""
    rig = Rig()
    queue = rig.log.queue("q")
    rig.log.flush()
    kept = list(rig.log.frames)
    rig.log.publish(message((queue,), b"lost"))
    assert await rig.bodies(START, rig.end()) == [b"lost"]
    lost_end = rig.end()
    other = Log(durable_replay(kept), kept, Epoch(1))
    other.epoch = Epoch(2)
    other.publish(message((queue,), b"instead"))
    rig.log, rig.journal.frames_of_log = other, other.frames
    assert await rig.bodies(START, rig.end()) == [b"instead"]
    with pytest.raises(Rejected) as caught:
        await rig.read(START, lost_end)
    assert caught.value.code is ErrorCode.WRONG_EPOCH
    with pytest.raises(Rejected) as caught:
        await rig.read(lost_end, rig.end())
    assert caught.value.code is ErrorCode.WRONG_EPOCH


async def test_what_another_log_of_the_same_epoch_had_there_is_not_given_and_its_offsets_are_refused() -> (
    None
):
    """etcd was set back, and another primary has begun the epoch once more, at the same index."""
    rig = Rig()
    queue = rig.log.queue("q")
    rig.log.flush()
    kept = list(rig.log.frames)
    rig.log.epoch, rig.log.reign = Epoch(2), 7
    rig.log.publish(message((queue,), b"lost"))
    assert await rig.bodies(START, rig.end()) == [b"lost"]
    lost_end = rig.end()
    other = Log(durable_replay(kept), kept, Epoch(2), reign=8)
    other.publish(message((queue,), b"instead"))
    rig.log, rig.journal.frames_of_log = other, other.frames
    assert rig.end() == lost_end and (lost_end.reign, rig.end().reign) == (7, 8)
    assert await rig.bodies(START, rig.end()) == [b"instead"]
    for start, end in ((START, lost_end), (lost_end, rig.end())):
        with pytest.raises(Rejected, match="has begun twice") as caught:
            await rig.read(start, end)
        assert caught.value.code is ErrorCode.WRONG_EPOCH
    beyond = Offset(LogIndex(lost_end.index + 5), Epoch(2), 7)
    with pytest.raises(Rejected, match="has begun twice"):
        rig.events.check(beyond)


async def test_an_offset_that_does_not_say_whose_epoch_it_names_is_compared_without() -> None:
    """A reader of an older version, or a log of one."""
    rig = Rig()
    rig.log.reign = 8
    rig.log.queue("q")
    end = rig.end()
    assert end.reign == 8 and rig.events.reigns_from(end.epoch) == ((end.epoch, 8),)
    assert rig.events.reigns_from(Epoch(end.epoch + 1)) == ()
    rig.events.check(Offset(end.index, end.epoch))
    older = Rig()
    older.log.queue("q")
    assert older.end().reign == 0
    older.events.check(Offset(end.index, end.epoch, 7))


async def test_nothing_beyond_the_commit_index_is_given() -> None:
    rig = Rig()
    rig.log.queue("q")
    end = rig.end()
    beyond = Offset(LogIndex(end.index + 1), end.epoch)
    with pytest.raises(Rejected) as caught:
        await rig.read(START, beyond)
    assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_what_is_not_committed_yet_judges_no_offset() -> None:
    """A broker was promoted, reached nobody, and was followed by one that had more of the epoch before."""
    rig = Rig()
    rig.log.queue("q")
    committed = rig.end()
    rig.log.begin_epoch(is_restarted=True)
    rig.log.flush()
    rig.loaded = LoadedSet(rig.log.state, committed.index, Epoch(2))
    beyond = Offset(LogIndex(committed.index + 5), committed.epoch)
    rig.events.check(beyond)
    rig.loaded = None
    with pytest.raises(Rejected) as caught:
        rig.events.check(beyond)
    assert caught.value.code is ErrorCode.WRONG_EPOCH
    assert caught.value.details == {"set_name": SET}


async def test_what_a_later_epoch_has_is_waited_for() -> None:
    rig = Rig()
    rig.log.queue("q")
    end = rig.end()
    for epoch in (end.epoch, end.epoch + 1):
        rig.events.check(Offset(LogIndex(end.index + 5), Epoch(epoch)))


async def test_readers_at_once_read_the_journal_once() -> None:
    rig = Rig()
    queue = rig.log.queue("q")
    rig.log.publish(message((queue,), b"one"))
    end = rig.end()
    first, *others = await asyncio.gather(*(rig.read(START, end) for _ in range(5)))
    assert all(other == first for other in others)
    assert rig.journal.readings == 1


def block(after: int, size: int) -> EncodedBlock:
    end = Offset(LogIndex(after + 1), Epoch(1))
    return EncodedBlock(Block(LogIndex(after), end, TimeMs(0), []), [bytes(size)])


async def test_who_goes_on_behind_a_cut_inside_a_block_finds_the_blocks_behind_it() -> None:
    rig = Rig()
    queue = rig.log.queue("q")
    for _ in range(6):
        rig.log.publish(*(message((queue,)) for _ in range(BLOCK_EVENTS // 2)))
        rig.log.flush()
    blocks = [encoded.block async for encoded in rig.events.blocks(START, rig.end().index)]
    assert len(blocks) == 3
    cut = blocks[0].marks[0].offset
    assert START.index < cut.index < blocks[0].end.index
    first = [encoded.block async for encoded in rig.events.blocks(START, cut.index)]
    assert [block.end for block in first] == [cut]
    readings = rig.journal.readings
    rest = [encoded.block async for encoded in rig.events.blocks(cut, rig.end().index)]
    assert [block.end for block in rest] == [block.end for block in blocks]
    assert rig.journal.readings == readings + 1, "only what is left of the block that was cut"
    assert sum(block.events for block in (*first, *rest)) == sum(block.events for block in blocks)


def test_a_cache_counts_what_it_holds_when_a_block_is_replaced() -> None:
    """Who reads up to a plan's end cuts a block that somebody else had longer: again and again."""
    cache = BlockCache(bytes_max=1_000)
    for _ in range(100):
        cache.keep(block(5, 300), with_content=True)
        assert cache.bytes == 300
    cache.keep(block(5, 300), with_content=False)
    assert cache.bytes == 600


def test_a_cache_lets_go_what_was_not_used_for_longest() -> None:
    cache = BlockCache(bytes_max=1_000)
    for after in range(3):
        cache.keep(block(after, 300), with_content=True)
    assert cache.find(LogIndex(0), True) is not None
    cache.keep(block(3, 300), with_content=True)
    assert [cache.find(LogIndex(after), True) is not None for after in range(4)] == [True, False, True, True]
    cache.keep(block(4, 2_000), with_content=True)
    assert cache.bytes == 0, "one that is larger than all is not kept"


# --- what a broker cannot tell whole ------------------------------------------------------------------------------------


class Newcomer(Rig):
    """A broker whose store came to the set with a snapshot: it has what is behind it, and a state that has all."""

    def __init__(self, rig: Rig, snapshot: LogIndex) -> None:
        super().__init__()
        self.log = rig.log
        self.journal.frames_of_log, self.journal.lowest = rig.log.frames, LogIndex(snapshot + 1)

    async def refusal(self, start: Offset, end: Offset) -> int:
        """The lowest index that it says is there."""
        with pytest.raises(Rejected) as caught:
            await self.read(start, end)
        assert caught.value.code is ErrorCode.OUT_OF_RANGE
        assert caught.value.details["set_name"] == SET
        lowest = caught.value.details["lowest_index"]
        assert isinstance(lowest, int)
        return lowest


@pytest.mark.parametrize("end", ["commit", "commit of the prepared", "rollback", "rollback of the prepared"])
@pytest.mark.parametrize("frames_behind", [0, 1])
async def test_what_was_done_before_the_snapshot_that_a_broker_came_with_is_not_left_out(
    end: str, frames_behind: int
) -> None:
    rig = Rig()
    log, is_prepared = rig.log, end.endswith("prepared")
    queue = log.queue("q")
    key = log.begin(XID if is_prepared else b"")
    log.publish(message((queue,), b"of the transaction"), transaction=key)
    if is_prepared:
        log.prepare(key, XID)
    log.flush()
    snapshot = log.state.applied
    for _ in range(frames_behind):
        log.publish(message((queue,), b"between"))
        log.flush()
    start = rig.end()
    log.publish(message((queue,), b"before its end"))
    if end.startswith("rollback"):
        ended = log.rollback(key, RollbackReason.COORDINATOR)
    else:
        ended = log.commit_prepared(key) if is_prepared else log.commit(key)
    log.publish(message((queue,), b"behind its end"))
    log.flush()
    log.publish(message((queue,), b"last"))
    whole = await rig.bodies(start, rig.end())
    of_it = [b"of the transaction"] if end.startswith("commit") else []
    assert whole == [b"before its end", *of_it, b"behind its end", b"last"]

    newcomer = Newcomer(rig, snapshot)
    assert await newcomer.refusal(start, rig.end()) == ended + 1
    before = newcomer.events.offset_at(LogIndex(ended - 1))
    assert await newcomer.bodies(start, before) == [b"before its end"]
    assert await newcomer.refusal(before, rig.end()) == ended + 1
    assert await newcomer.bodies(newcomer.events.offset_at(ended), rig.end()) == [b"behind its end", b"last"]


async def test_what_is_before_a_transaction_that_is_not_all_there_is_told_however_much_that_is() -> None:
    rig = Rig()
    queue = rig.log.queue("q")
    key = rig.log.begin()
    rig.log.publish(message((queue,), b"of the transaction"), transaction=key)
    start = rig.end()
    for _ in range(3):
        rig.log.publish(*(message((queue,)) for _ in range(BLOCK_EVENTS)))
        rig.log.flush()
    ended = rig.log.commit(key)
    newcomer = Newcomer(rig, start.index)
    told: list[LogIndex] = []

    async def tell() -> None:
        async for encoded in newcomer.events.blocks(start, rig.end().index):
            told.append(encoded.block.end.index)

    with pytest.raises(Rejected):
        await tell()
    assert told == [ended - 3, ended - 2, ended - 1]


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_transaction_whose_first_operations_were_transient_lacks_nothing(end: str) -> None:
    """Their segment may go: what it has in the log is all there."""
    rig = Rig()
    queue = rig.log.queue("q")
    key = rig.log.begin()
    rig.log.publish(message((queue,), is_durable=False), transaction=key, is_durable=False)
    rig.log.flush()
    snapshot = rig.log.state.applied
    rig.log.publish(message((queue,), b"first"))
    rig.log.flush()
    at = rig.log.publish(message((queue,), b"durable"), transaction=key)
    rig.log.flush()
    ended = rig.log.commit(key) if end == "commit" else rig.log.rollback(key)
    rig.log.publish(message((queue,), b"last"))
    newcomer = Newcomer(rig, snapshot)
    for after in (snapshot, at - 1, at, ended - 1, ended):
        start = rig.events.offset_at(LogIndex(after))
        assert await newcomer.read(start, rig.end()) == await rig.read(start, rig.end())


async def test_a_store_that_was_started_again_and_knows_less_is_no_end_of_the_broker() -> None:
    """It hears anew of what is committed: until then it shows less than it did."""
    rig = Rig()
    queue = rig.log.queue("q")
    key = rig.log.begin()
    rig.log.publish(message((queue,), b"of the transaction"), transaction=key)
    rig.log.flush()
    rig.log.publish(message((queue,), b"other"))
    start = rig.end()
    rig.log.commit(key)
    end = rig.end()

    class StartedAgain(JournalInMemory):
        async def frames(
            self, set_name: SetName, epoch: Epoch, after: LogIndex, until: LogIndex
        ) -> AsyncIterator[DecodedFrame]:
            async for frame in super().frames(set_name, epoch, after, until):
                yield frame
                if self.readings == 2:
                    return

    again = Rig()
    again.log, again.journal = rig.log, StartedAgain(rig.log.frames)
    again.events = SetEvents(SET, again._loaded, again.journal)
    with pytest.raises(Rejected) as caught:
        await again.read(start, end)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert await again.bodies(start, end) == [b"of the transaction"]


async def test_what_is_below_names_that_are_not_kept_is_refused_and_the_rest_is_told() -> None:
    rig = Rig()
    queue = rig.log.queue("orders")
    rig.log.publish(message((queue,), b"one"))
    rig.log.append(DeleteQueue(None, queue.id))
    known = await rig.read(START, rig.end())
    for number in range(DELETED_KEPT + 1):
        short = rig.log.queue(f"q{number}")
        rig.log.publish(message((short,), b"%d" % number))
        rig.log.append(DeleteQueue(None, short.id))
    end = rig.end()
    names_from = rig.log.state.subscriptions.names_from
    assert names_from == queue.id + 5, "the deletion of the second queue"
    others = Newcomer(rig, START.index)
    for after in (START.index, LogIndex(names_from - 1)):
        assert await others.refusal(others.events.offset_at(after), end) == names_from + 1
    bodies = await others.bodies(others.events.offset_at(names_from), end)
    assert bodies == [b"%d" % number for number in range(1, DELETED_KEPT + 1)]
    assert await rig.read(START, rig.events.offset_at(LogIndex(3))) == known, "made when all were known"


async def test_a_reader_goes_on_with_a_replica_that_was_loaded_again_when_that_is_as_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its plan is older than that, and the store knows already that more is committed: nothing is left out of it."""
    monkeypatch.setattr("services.broker.events.set_events.READING_BYTES", 1)
    rig = Rig()
    first_queue = rig.log.queue("q")
    for _ in range(2):
        rig.log.publish(*(message((first_queue,), b"before") for _ in range(BLOCK_EVENTS)))
        rig.log.flush()
    behind = durable_replay(rig.log.frames)
    rig.log.publish(message((rig.log.queue("new"),), b"to it"))
    rig.log.flush()
    end = rig.end()
    reading = rig.events.range(START, end, with_content=True)
    blocks = [await anext(reading)]
    rig.loaded = LoadedSet(behind, behind.applied, Epoch(1))
    asyncio.get_running_loop().call_later(0.1, setattr, rig, "loaded", None)
    blocks += [encoded async for encoded in reading]
    assert sum(encoded.block.events for encoded in blocks) == 2 * BLOCK_EVENTS + 3
