"""The committed events of one resource set as this broker can read them: blocks, made from its own store's journal when asked.

Law: what is served is committed (R11), and belongs to the log that the offset names: a block that was made of a log which lost
its end since (R7) is dropped. One reading of a set at a time makes blocks, and keeps them for a while; the others find them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Protocol

from lockstep.core.epoch_table import UNKNOWN_REIGN, Reigns
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.runtime.turns import in_turns
from services.broker.core.events.blocks import BLOCK_EVENTS, Block, BlockCutter
from services.broker.core.events.builder import ContentGone, DecodedFrame, EventBuilder
from services.broker.core.events.planning import Offset
from services.broker.core.events.state_names import NamesGone
from services.broker.events.batches import encode_batches
from services.broker.events.block_cache import BlockCache, EncodedBlock
from services.broker.events.kept_builders import KeptBuilders
from services.broker.events.loaded_set import LoadedSet

READING_BYTES = 8 * 1024 * 1024
"""Of frames, in one reading of the journal."""
ENCODED_AT_ONCE = 2 * BLOCK_EVENTS
"""Events of a block that are encoded in one step."""
COMMIT_WAIT_SECONDS = 2.0
"""A reader comes with a plan that another broker's replica gave: this one may be some milliseconds behind."""
COMMIT_LOOK_SECONDS = 0.02


class Journal(Protocol):
    """Of this broker's own store (`JournalReader`)."""

    def frames(
        self, set_name: SetName, epoch: Epoch, after: LogIndex, until: LogIndex
    ) -> AsyncIterator[DecodedFrame]: ...


class SetEvents:
    """Of one set; lives as long as the process."""

    def __init__(self, set_name: SetName, loaded: Callable[[], LoadedSet], journal: Journal) -> None:
        """`loaded` raises `Rejected` UNAVAILABLE while this broker has no memory of the set."""
        self.set_name = set_name
        self._loaded = loaded
        self._journal = journal
        self._blocks = BlockCache()
        self._builders = KeptBuilders()
        self._reading = asyncio.Lock()

    # --- what is committed --------------------------------------------------------------------------------------------

    def committed(self) -> Offset:
        """The commit index as this broker knows it. Raises `Rejected` UNAVAILABLE while it has no memory of the set."""
        return self.offset_at(self._loaded().commit_index)

    def check(self, offset: Offset) -> None:
        """Raises `Rejected` WRONG_EPOCH if the offset names content that this log does not have, nor ever will: epochs ascend, so
        behind what is committed nothing is of an earlier one. What is not committed says nothing: it may still be cut.
        """
        loaded = self._loaded()
        index = min(offset.index, loaded.commit_index)
        epoch = loaded.state.epochs.epoch_at(index)
        if epoch == offset.epoch and self._is_rival(offset):
            raise Rejected(
                ErrorCode.WRONG_EPOCH,
                f"epoch {epoch} of {self.set_name} has begun twice, and {offset.index} of it is in the other log",
                set_name=self.set_name,
            )
        if epoch in (offset.epoch, None) or (epoch < offset.epoch and index < offset.index):
            return
        raise Rejected(
            ErrorCode.WRONG_EPOCH,
            f"{self.set_name} has at {index} a record of epoch {epoch}: {offset.index} of epoch {offset.epoch} is not in it",
            set_name=self.set_name,
        )

    async def wait_for(self, index: LogIndex) -> None:
        """Until this broker knows that `index` is committed. Raises `Rejected` UNAVAILABLE if that takes too long."""
        deadline = asyncio.get_running_loop().time() + COMMIT_WAIT_SECONDS
        while self.committed().index < index:
            if asyncio.get_running_loop().time() >= deadline:
                raise Rejected(
                    ErrorCode.UNAVAILABLE,
                    f"{self.set_name} is committed here up to {self.committed().index}, {index} is asked for",
                    set_name=self.set_name,
                )
            await asyncio.sleep(COMMIT_LOOK_SECONDS)

    def offset_at(self, index: LogIndex) -> Offset:
        """With the epoch of the record there; 0 if that is not known any more."""
        epochs = self._loaded().state.epochs
        epoch = epochs.epoch_at(index) or Epoch(0)
        return Offset(index, epoch, epochs.reign_in(epoch))

    def reigns_from(self, epoch: Epoch) -> Reigns:
        """Of this epoch and those behind it, as far as they are known here."""
        return tuple(found for found in self._loaded().state.epochs.reigns if found[0] >= epoch)

    def _is_rival(self, offset: Offset) -> bool:
        """Whether the epoch that it names is another primary's here."""
        reign = self._loaded().state.epochs.reign_in(offset.epoch)
        return reign != offset.reign and UNKNOWN_REIGN not in (reign, offset.reign)

    # --- blocks -------------------------------------------------------------------------------------------------------

    async def blocks(
        self, start: Offset, until: LogIndex, *, with_content: bool = True
    ) -> AsyncIterator[EncodedBlock]:
        """The blocks from `start` on, the last one cut at `until`, which is committed here. Raises `Rejected` as `check`, and
        OUT_OF_RANGE or UNAVAILABLE as the store does; OUT_OF_RANGE, too, in front of what this broker cannot tell whole.
        """
        self.check(start)
        position = start.index
        while position < until:
            found = self._cached(position, with_content)
            if found is None or found.block.end.index > until:
                async with self._reading:
                    found = self._cached(position, with_content)
                    if found is None:
                        # What follows a cut inside a block goes to the block's end: those behind it are still good.
                        end = self._blocks.end_around(position, with_content)
                        until_block = until if end is None else min(until, end)
                        found = await self._read_patiently(position, until_block, with_content)
                    elif found.block.end.index > until:
                        found = await self._read_patiently(position, until, with_content, is_kept=False)
            yield found
            position = found.block.end.index

    async def range(self, start: Offset, end: Offset, *, with_content: bool) -> AsyncIterator[EncodedBlock]:
        """The blocks of a range that somebody was given. Raises `Rejected` as `blocks`, and UNAVAILABLE while it is not committed
        here."""
        self.check(start)
        self.check(end)
        await self.wait_for(end.index)
        self.check(end)
        async for encoded in self.blocks(start, end.index, with_content=with_content):
            yield encoded

    def _cached(self, after: LogIndex, with_content: bool) -> EncodedBlock | None:
        found = self._blocks.find(after, with_content)
        if found is None:
            return None
        end = found.block.end
        epoch = self._loaded().state.epochs.epoch_at(end.index)
        if epoch not in (end.epoch, None) or self._is_rival(end):
            self._blocks.clear()
            self._builders.clear()
            return None
        return found

    async def _read_patiently(
        self, after: LogIndex, until: LogIndex, with_content: bool, *, is_kept: bool = True
    ) -> EncodedBlock:
        """As `_read`. The store hears of the commit index with the next frame, or some tenths of a second later."""
        deadline = asyncio.get_running_loop().time() + COMMIT_WAIT_SECONDS
        while (found := await self._read(after, until, with_content, is_kept=is_kept)) is None:
            if asyncio.get_running_loop().time() >= deadline:
                text = f"{self.set_name} has nothing behind {after} that is committed and its store shows"
                raise Rejected(ErrorCode.UNAVAILABLE, text, set_name=self.set_name)
            await asyncio.sleep(COMMIT_LOOK_SECONDS)
        return found

    async def _read(
        self, after: LogIndex, until: LogIndex, with_content: bool, *, is_kept: bool
    ) -> EncodedBlock | None:
        """Make blocks from `after` on, and keep them; answers the first, None if the store shows none that is committed, or the
        memory that has the names is dropped meanwhile.

        They end before a transaction that is not all there: whoever goes on from their end hears OUT_OF_RANGE, with the index
        behind it. So does whoever begins where names are not kept any more.
        """
        loaded = self._loaded()
        # It may have been loaded again since `until` was committed here, and lack names of what came since, which the store has.
        until = min(until, loaded.commit_index)
        if until <= after:
            return None
        self._builders.follow(loaded.state)
        builder = self._builders.at(after)
        cutter = BlockCutter(builder, until)
        first: EncodedBlock | None = None
        size = 0
        frames = self._journal.frames(self.set_name, loaded.epoch, after, until)
        try:
            async with aclosing(frames):  # type: ignore[type-var]
                async for frame in frames:
                    await self._take_earlier(builder, frame)
                    position = builder.position
                    if position < loaded.state.subscriptions.names_from:
                        break
                    block = await in_turns(cutter.feed_in_steps(frame))
                    if position < loaded.state.subscriptions.names_from:
                        return first  # Names that it has asked for may not have been there any more.
                    size += frame.header.frame_bytes
                    if block is not None:
                        encoded = await self._encoded(block, with_content, is_kept=is_kept)
                        first = first or encoded
                        # Other work of this process goes between blocks.
                        await asyncio.sleep(0)
                        if size >= READING_BYTES:
                            break
        except NamesGone:
            return first
        except ContentGone as gone:
            if first is not None:
                return first
            if gone.end - 1 > after:
                return await self._read(after, LogIndex(gone.end - 1), with_content, is_kept=is_kept)
            raise self._out_of_range(str(gone), LogIndex(gone.end + 1)) from gone
        block = cutter.rest()
        if block is not None:
            encoded = await self._encoded(block, with_content, is_kept=is_kept)
            first = first or encoded
        self._builders.keep(builder)
        names_from = loaded.state.subscriptions.names_from
        if first is None and after < names_from:
            text = f"names of what was deleted up to {names_from} are not kept any more"
            raise self._out_of_range(text, LogIndex(names_from + 1))
        return first

    async def _take_earlier(self, builder: EventBuilder, frame: DecodedFrame) -> None:
        """If a transaction that ends in this frame began before the reading did."""
        needed = builder.earlier_needed(frame)
        if needed is None:
            return
        first, lowest = needed, LogIndex(0)
        collector: EventBuilder | None = None
        while collector is None and first < builder.known_after:
            try:
                collector = await self._collected(first, builder.known_after)
            except Rejected as error:
                found = error.details.get("lowest_index")
                if error.code is not ErrorCode.OUT_OF_RANGE or not isinstance(found, int) or found <= lowest:
                    raise
                lowest = LogIndex(found)
                first = LogIndex(max(needed, lowest - 1))
        builder.take_earlier(needed, collector)

    async def _collected(self, first: LogIndex, until: LogIndex) -> EventBuilder:
        """A collector of what is open at `until`. It takes frame by frame, for there may be hours of them, and other work of this
        process goes between; a reader that gives up meanwhile finds it where it was left.

        Raises `Rejected` as the store does, and UNAVAILABLE for one that was started again and knows less to be committed.
        """
        collector = self._builders.collector(first, until)
        frames = self._journal.frames(self.set_name, self._loaded().epoch, collector.position, until)
        try:
            async with aclosing(frames):  # type: ignore[type-var]
                async for frame in frames:
                    collector.collect(frame, until)
                    await asyncio.sleep(0)
        finally:
            self._builders.keep_collector(collector, until)
        if collector.position < until:
            text = (
                f"the store of {self.set_name} shows its log up to {collector.position}, "
                f"and showed what is behind {until}"
            )
            raise Rejected(ErrorCode.UNAVAILABLE, text, set_name=self.set_name)
        return collector

    def _out_of_range(self, text: str, lowest: LogIndex) -> Rejected:
        return Rejected(ErrorCode.OUT_OF_RANGE, text, set_name=self.set_name, lowest_index=lowest)

    async def _encoded(self, block: Block, with_content: bool, *, is_kept: bool) -> EncodedBlock:
        """In a thread, if it is of a frame that went to very many queues, or has very much otherwise."""
        start = self.offset_at(block.after)
        given = self.set_name, block.transactions, start, block.end, with_content
        if block.events > ENCODED_AT_ONCE:
            batches = await asyncio.to_thread(encode_batches, *given)
        else:
            batches = encode_batches(*given)
        encoded = EncodedBlock(block, batches)
        block.transactions = []
        if is_kept:
            self._blocks.keep(encoded, with_content)
        return encoded
