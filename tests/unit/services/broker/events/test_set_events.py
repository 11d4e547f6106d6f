"""One set's events as a broker reads them from its own store's journal."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.frames import Frame
from lockstep.core.ids import Epoch, LogIndex, SetName, TimeMs
from lockstep.core.records import Commit
from lockstep.core.xid import Xid
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.blocks import BLOCK_EVENTS, Block
from services.broker.core.events.builder import DecodedFrame
from services.broker.core.events.planning import Offset
from services.broker.events.block_cache import BlockCache, EncodedBlock
from services.broker.events.loaded_set import LoadedSet
from services.broker.events.set_events import SetEvents
from tests.unit.lockstep.core.history import SET, Log, durable_replay, message

START = Offset(LogIndex(0), Epoch(0))
XID = Xid(7, b"global", b"branch").encode()


class JournalInMemory:
    """Of the frames of a log."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self.frames_of_log = frames
        self.readings = 0

    async def frames(
        self, set_name: SetName, epoch: Epoch, after: LogIndex, until: LogIndex
    ) -> AsyncIterator[DecodedFrame]:
        self.readings += 1
        for frame in self.frames_of_log:
            if frame.header.last > after and frame.header.first <= until:
                yield DecodedFrame.of(frame.durable)


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


async def test_nothing_beyond_the_commit_index_is_given() -> None:
    rig = Rig()
    rig.log.queue("q")
    end = rig.end()
    beyond = Offset(LogIndex(end.index + 1), end.epoch)
    with pytest.raises(Rejected) as caught:
        await rig.read(START, beyond)
    assert caught.value.code is ErrorCode.UNAVAILABLE


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
