"""The journal of a broker's own store, read over a real call: what goes wrong there, and what readers of events hear of it."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex
from lockstep.runtime.channels import Channels, make_server
from lockstep.runtime.rpc import Context, service, unary_stream
from lockstep.runtime.wire import parse
from lockstep.wire.v1 import store_pb2 as pb
from services.broker.events.journal import JournalReader
from tests.unit.lockstep.core.history import SET, Log


class FakeStore:
    """Gives one frame in each piece, until a later epoch begins."""

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames
        self.refusal = Rejected(ErrorCode.WRONG_EPOCH, "epoch 1 is below 2", highest_epoch=2)
        self.pieces = 0

    async def read_journal(self, data: bytes, context: Context) -> None:
        request = parse(pb.ReadJournalRequest(), data)
        if not self.frames:
            raise self.refusal
        assert request.epoch == 1
        self.pieces += 1
        await context.write(pb.ReadJournalResponse(frames=[self.frames.pop(0)]).SerializeToString())


@pytest.fixture
def store() -> FakeStore:
    log = Log()
    for number in range(3):
        log.queue(f"q{number}")
        log.flush()
    return FakeStore([frame.durable for frame in log.frames[:2]])


@pytest_asyncio.fixture
async def journal(store: FakeStore) -> AsyncGenerator[JournalReader]:
    server, channels = make_server(), Channels()
    server.add_generic_rpc_handlers((service("Store", {"ReadJournal": unary_stream(store.read_journal)}),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield JournalReader(channels, address)
    await channels.close()
    await server.stop(0)


async def ended(journal: JournalReader) -> tuple[list[LogIndex], Rejected]:
    """The frames that a reading gave, and what ended it."""
    found: list[LogIndex] = []

    async def read() -> None:
        async for frame in journal.frames(SET, Epoch(1), LogIndex(0), LogIndex(3)):
            found.append(frame.header.last)

    with pytest.raises(Rejected) as caught:
        await read()
    return found, caught.value


async def test_a_reading_over_which_the_next_epoch_begins_may_be_repeated(
    store: FakeStore, journal: JournalReader
) -> None:
    """That the store is ahead of its broker says nothing of the reader's offsets."""
    found, error = await ended(journal)
    assert (found, store.pieces) == ([1, 2], 2)
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.details == {"set_name": SET}


async def test_what_is_gone_stays_gone(store: FakeStore, journal: JournalReader) -> None:
    store.refusal = Rejected(ErrorCode.OUT_OF_RANGE, "it is gone", lowest_index=500)
    _, error = await ended(journal)
    assert error.code is ErrorCode.OUT_OF_RANGE
    assert error.details == {"set_name": SET, "lowest_index": 500}


async def test_what_is_no_frame_is_named_by_its_set_and_place(
    store: FakeStore, journal: JournalReader, caplog: pytest.LogCaptureFixture
) -> None:
    store.frames[1] = store.frames[1][:-1] + b"?"
    found, error = await ended(journal)
    assert (found, error.code) == ([1], ErrorCode.UNAVAILABLE)
    assert error.message.startswith(f"set {SET}: behind index 1 the store at 127.0.0.1:")
    assert error.message.endswith("frame 2..2 has a wrong checksum")
    assert error.details == {"set_name": SET, "index": 1}
    assert f"event=bad_frame times=1 set={SET} index=1 " in caplog.text


async def test_a_gap_is_never_passed_over(store: FakeStore, journal: JournalReader) -> None:
    del store.frames[0]
    found, error = await ended(journal)
    assert (found, error.code) == ([], ErrorCode.UNAVAILABLE)
    assert error.message.endswith("frame 2 does not follow")
