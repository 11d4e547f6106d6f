"""Sets with many messages in a whole store: it answers with their durable state, whatever crashes, is installed or fails."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.frames import Frame, check_frame
from lockstep.core.ids import Epoch, LogIndex, SetName, index_of
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import (
    BeginInstall,
    EndInstall,
    Installed,
    InstallItems,
    StateItem,
    StateLoaded,
    StoreRefused,
)
from services.store.core.disk import AnyStep, DiskError, DiskProblem, SnapshotStep
from services.store.core.messages import ChunkSent, ReaderRequested, StreamClosed, Tick
from services.store.core.requests import AnyReaderAnswer, ContentsRead, ItemsRead, ReadContents, ReadItems
from tests.unit.lockstep.core.history import durable_replay
from tests.unit.services.store.crowd import Crowd
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig

SLOW = 2000


def is_last(answers: list[AnyReaderAnswer]) -> bool:
    """Nothing follows them."""
    return bool(answers) and (not isinstance(answers[-1], ItemsRead) or answers[-1].is_last)


class CrowdedSet:
    """One set of a store, its writer, and what both should say."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.crowd = Crowd(random)
        self.log = self.crowd.log
        limits = replace(
            SMALL,
            segment_bytes=random.choice((4096, 1 << 16)),
            chunk_bytes=random.choice((1, 200, 1024, 1 << 16)),
            batch_items_max=random.choice((5, 200)),
            unconsolidated_bytes=random.choice((1, 500, 4000)),
            unflushed_items_max=random.choice((10, 500)),
        )
        self.rig = StoreRig(limits, seed=random.randrange(1 << 30))
        self.rig.disk.fault = self._fail
        self.is_failing = False
        self.epoch = 1
        self.rig.open()
        self._sent = 0

    @property
    def end(self) -> LogIndex:
        return self.log.frames[-1].header.last

    def expected(self, last: LogIndex) -> list[StateItem]:
        frames = [frame for frame in self.log.frames if frame.header.last <= last]
        return list(durable_replay(frames).items(transient=False))

    def step(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.crowd.step()
        self.log.flush()
        self._append()
        deed = self.random.choice(
            (None, None, None, self.crash, self.load, self.load, self.read, self.read_slowly, self.install)
        )
        if deed is not None:
            deed()

    def _append(self) -> None:
        self.is_failing = self.random.random() < 0.3
        for frame in self.log.frames[self._sent :]:
            commit = frame.header.first - 1 if self.random.random() < 0.3 else frame.header.last
            self.rig.append_ok(frame.durable, commit=commit, epoch=self.epoch)
            if self.random.random() < 0.3:
                self.rig.feed(Tick())
                self.rig.run()
        self.is_failing = False
        self._sent = len(self.log.frames)

    def _fail(self, _set_name: SetName, step: AnyStep) -> None:
        if self.is_failing and isinstance(step, SnapshotStep) and self.random.random() < 0.1:
            raise DiskError(DiskProblem.FAILED, "no")

    def crash(self) -> None:
        """At rest, or while something is consolidated."""
        self.rig.feed(Tick())
        for _ in range(self.random.randint(0, 10)):
            if self.rig.has_jobs:
                self.rig.step()
        self.rig.crash(power=self.random.random() < 0.5)
        self.epoch += 1
        opened = self.rig.open(self.epoch)
        assert (opened.log_end, opened.damage) == (self.end, "")

    def load(self) -> None:
        """Perhaps beside a reader, and with a disk that fails: then again."""
        self.is_failing = self.random.random() < 0.5
        last: object = None
        while not isinstance(last, StateLoaded):
            self.rig.read.clear()
            if self.random.random() < 0.5:
                self.rig.feed(ReaderRequested(1000, ReadItems(SET, Epoch(self.epoch), b"")))
            items, frames, last = self.rig.load(self.epoch, takes_blocks=self.random.random() < 0.7)
            self._check_items(self.rig.read)
            if isinstance(last, StoreRefused):
                self.is_failing = False
                self.rig.open(self.epoch)
        self.is_failing = False
        state = SetState.from_items(SET, (StateItem(key, value, True) for key, value in items.items()))
        for data in frames:
            state.apply_frame(Frame(check_frame(data), data, b""))
        assert list(state.items(transient=False)) == self.expected(self.end)

    def _check_items(self, answers: list[AnyReaderAnswer]) -> bool:
        """Whether a reader got all of the snapshot; then it is that of the state it was said to be of."""
        return self._check_items_from(b"", answers)

    def _check_items_from(self, from_key: bytes, answers: list[AnyReaderAnswer]) -> bool:
        chunks = [answer for answer in answers if isinstance(answer, ItemsRead)]
        if not answers or not isinstance(answers[-1], ItemsRead):
            return False
        assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        (index,) = {chunk.snapshot_index for chunk in chunks}
        items = [item for chunk in chunks for item in chunk.items]
        assert index or not items
        assert not index or items == [item for item in self.expected(index) if item.key >= from_key]
        return True

    def read(self) -> None:
        """With a disk that fails, perhaps: then again."""
        self.rig.tell_commit(self.end, self.epoch)
        self.rig.run()
        self.is_failing = self.random.random() < 0.5
        while not self._check_items(self.rig.ask_reader(ReadItems(SET, Epoch(self.epoch), b""))):
            assert self.is_failing
            self.is_failing = False
        self.is_failing = False
        messages = sorted(dict(self.log.state.contents.items()))
        wanted = tuple(message_id for message_id in messages if self.random.random() < 0.1)
        (answer,) = self.rig.ask_reader(ReadContents(SET, Epoch(self.epoch), wanted))
        assert isinstance(answer, ContentsRead)
        whole = [self.log.state.contents.get(message_id) for message_id in wanted]
        assert answer.contents == tuple((each.properties, each.body) if each else None for each in whole)
        assert all(index_of(message_id) <= self.end for message_id in wanted)

    def read_slowly(self) -> None:
        """While more is appended, and perhaps consolidated: from the beginning, or from somewhere in a block."""
        keys = [b"", *(item.key for item in self.expected(self.end))]
        from_key = self.random.choice((b"", self.random.choice(keys)))
        self.rig.read.clear()
        self.rig.slow_streams.add(SLOW)
        self.rig.feed(ReaderRequested(SLOW, ReadItems(SET, Epoch(self.epoch), from_key)))
        self.rig.run()
        for _ in range(self.random.randint(0, 5)):
            for _ in range(self.random.randint(0, 20)):
                self._take_slowly()
            if self.random.random() < 0.6:
                self.crowd.step()
                self.log.flush()
                self._append()
        while not is_last(self.rig.read):
            self._take_slowly()
        self._check_items_from(from_key, self.rig.read)
        self.rig.feed(StreamClosed(SLOW))

    def _take_slowly(self) -> None:
        self.rig.feed(ChunkSent(SLOW))
        for _ in range(self.random.choice((0, 3, 1000))):
            if self.rig.has_jobs:
                self.rig.step()

    def install(self) -> None:
        """What another broker has, in blocks or not, over whatever is here."""
        state = durable_replay(self.log.frames)
        items = tuple(state.items(transient=False, in_blocks=self.random.random() < 0.5))
        head = SET, Epoch(self.epoch), ME
        begin = BeginInstall(*head, self.end, tuple(state.epochs.entries), state.time_ms)
        for request in (begin, InstallItems(*head, items[:5]), InstallItems(*head, items[5:])):
            self.rig.ask(request)
        (installed,) = self.rig.ask(EndInstall(*head))
        assert isinstance(installed, Installed)


@pytest.mark.fuzz
@given(st.randoms(use_true_random=True), st.integers(1, 15))
def test_a_crowded_set_is_what_was_appended(random: Random, steps: int) -> None:
    crowded = CrowdedSet(random)
    for _ in range(steps):
        crowded.step()
    crowded.read()
    crowded.load()
    crowded.crash()
    crowded.load()
