"""Big frames of several resource sets at once, to one store: each is a message that any client may send, and takes its way.

A broker has one connection to its store for all of its sets. A limit of what is unfinished on one connection is there for those
who begin messages and do not end them; a replication stream that it ends is a store that is lost, though nothing is wrong.
"""

import asyncio
from pathlib import Path

import pytest

from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.store_protocol import Appended, AppendFrames, OpenSet, SetOpened
from services.store.core.limits import MIB
from tests.integration.store_process import ME, StoreProcess, StoreStream, publishing

BODY_BYTES = 32 * MIB
"""`message_bytes_max` of the broker."""


@pytest.mark.parametrize("sets", [1, 3, 6])
async def test_each_set_has_its_biggest_message_stored_while_others_have_theirs(
    tmp_path: Path, sets: int
) -> None:
    store = StoreProcess(tmp_path / "data")
    async with store.running() as channel:
        streams = {SetName(f"s{number}"): StoreStream(channel) for number in range(sets)}
        for name, stream in streams.items():
            assert isinstance(await stream.ask(OpenSet(name, Epoch(1), ME)), SetOpened)

        async def append(name: SetName, stream: StoreStream) -> None:
            frame = publishing(1, 2, body_bytes=BODY_BYTES)
            answer = await stream.ask(AppendFrames(name, Epoch(1), ME, (frame,), LogIndex(0)))
            assert isinstance(answer, Appended), answer

        await asyncio.gather(*(append(name, stream) for name, stream in streams.items()))
