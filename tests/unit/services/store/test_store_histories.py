"""Any sequence of appends, cuts, crashes and recoveries, against a model that knows what was sent and what was answered."""

import random
from dataclasses import dataclass, field, replace

import hypothesis
import pytest
from hypothesis import strategies as st

from lockstep.core.frames import Frame, check_frame, encode_frame
from lockstep.core.ids import Epoch, LogIndex, QueueId, TimeMs, place
from lockstep.core.items import Item
from lockstep.core.records import (
    AdvanceSubscription,
    AnyRecord,
    DeclareQueue,
    Dequeue,
    EpochBegins,
    Message,
    OpenSubscription,
    Publish,
)
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from lockstep.core.store_protocol import Appended, StateLoaded, Truncate, Truncated
from services.store.core.messages import Requested, Tick
from services.store.core.requests import FramesRead, ReadFrames
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, appending

QUEUE = QueueId(1)
GROUP = LogIndex(2)


@dataclass
class LogModel:
    """The log as its writer knows it. Frame i of `frames` is whole and follows frame i - 1."""

    frames: list[bytes] = field(default_factory=list)
    acknowledged: int = 0
    """Frames that were answered as durable."""
    commit: int = 0
    """Highest commit index told; always the end of an acknowledged frame."""
    epoch: int = 1
    positions: list[int] = field(default_factory=list)
    owed_lag: int | None = None
    """How far behind the log a group of readers is; None: it never acknowledges anything."""

    @property
    def end(self) -> int:
        return check_frame(self.frames[-1]).last if self.frames else 0

    @property
    def acknowledged_end(self) -> int:
        return check_frame(self.frames[self.acknowledged - 1]).last if self.acknowledged else 0

    def make(self, count: int, body_bytes: int) -> bytes:
        """The next frame: a declaration first, then publishing and accepting by turns."""
        first = self.end + 1
        records: list[AnyRecord] = []
        for index in range(first, first + count):
            if index == 1:
                records.append(DeclareQueue(None, "q", True))
            elif index % 3 == 0 and self.positions:
                position = self.positions.pop(0)
                records.append(Dequeue(None, None, 0, QUEUE, (position,)))  # type: ignore[arg-type]
            elif index % 7 == 0:
                records.append(EpochBegins(None, Epoch(self.epoch), "b", False))
            elif index == GROUP:
                records.append(OpenSubscription(None, "g", GROUP))
            elif index % 11 == 0 and self.owed_lag is not None:
                done = LogIndex(max(index - self.owed_lag, 0))
                records.append(AdvanceSubscription(None, GROUP, done))
            else:
                message = Message((QUEUE,), b"p", bytes([index % 256]) * body_bytes, is_durable=True)
                records.append(Publish(None, None, 0, (message,)))
                self.positions.append(place(index, 0))
        made = encode_frame(
            Epoch(self.epoch),
            LogIndex(first),
            LogIndex(self.commit),
            TimeMs(first),
            [(record, True) for record in records],
        )
        self.frames.append(made.durable)
        return made.durable

    def owed_after(self) -> int:
        """The highest that ever was, of what is committed: less than that a store need not have."""
        state, highest = SetState(SET), 0
        for durable in self.frames:
            if check_frame(durable).last <= self.commit:
                state.apply_frame(Frame(check_frame(durable), durable, b""))
                highest = max(highest, state.owed_after())
        return highest

    def cut(self, count: int) -> None:
        del self.frames[count:]
        self.acknowledged = min(self.acknowledged, count)
        self.positions = []

    def state(self) -> SetState:
        state = SetState(SET)
        for durable in self.frames:
            state.apply_frame(Frame(check_frame(durable), durable, b""))
        return state


def state_of(items: dict[bytes, bytes], frames: list[bytes]) -> SetState:
    state = SetState.from_items(SET, [Item(key, value, True) for key, value in sorted(items.items())])
    for durable in frames:
        state.apply_frame(Frame(check_frame(durable), durable, b""))
    return state


class History:
    """One run: the model, the store, and what must hold whenever the store was opened."""

    def __init__(self, seed: int) -> None:
        drawn = random.Random(seed)
        lag = drawn.choice((None, 0, 30))
        limits = replace(SMALL, page_bytes=drawn.choice((1, 512, 4096)))
        self.model, self.rig = LogModel(owed_lag=lag), StoreRig(limits, seed=seed)
        self.check_opening()

    def append(self, counts: list[int], body_bytes: int, steps: int | None) -> None:
        """Send frames, one request each; perform `steps` steps of what that comes to, or all."""
        for count in counts:
            data = self.model.make(count, body_bytes)
            self.rig.feed(
                Requested(self.rig.stream, appending(data, commit=self.model.commit, epoch=self.model.epoch))
            )
        self._perform(steps)

    def commit(self, share: float, steps: int | None) -> None:
        """Tell the store that some of what it acknowledged is committed."""
        count = int(self.model.acknowledged * share)
        if count:
            self.model.commit = max(self.model.commit, check_frame(self.model.frames[count - 1]).last)
        self.rig.feed(Requested(self.rig.stream, appending(commit=self.model.commit, epoch=self.model.epoch)))
        self._perform(steps)

    def truncate(self, share: float, steps: int | None) -> None:
        """Cut what is not committed, some or all of it, and go on in a new epoch."""
        self._perform(None)
        self.rig.answers.clear()
        kept = [
            count for count in range(len(self.model.frames) + 1) if self._end_of(count) >= self.model.commit
        ]
        count = kept[int(share * (len(kept) - 1))]
        self.model.epoch += 1
        request = Truncate(SET, Epoch(self.model.epoch), ME, LogIndex(self._end_of(count)))
        self.rig.feed(Requested(self.rig.stream, request))
        # Until it is answered, nobody knows which of the frames behind the cut are still there.
        uncut, self.model.acknowledged = self.model.frames, min(self.model.acknowledged, count)
        self._perform(steps)
        if any(isinstance(answer, Truncated) for _, answer in self.rig.answers):
            self.model.cut(count)
        else:
            self.model.frames = uncut
            self.crash(power=True)

    def crash(self, power: bool) -> None:
        self._note_answers()
        self.rig.crash(power)
        self.model.epoch += 1
        self.check_opening()

    def check_opening(self) -> None:
        """Open, and compare what the store says and holds with the model."""
        model, opened = self.model, self.rig.open(self.model.epoch)
        self.rig.answers.clear()
        assert opened.damage == ""
        assert opened.log_end >= model.acknowledged_end
        assert opened.commit_index <= opened.log_end
        ends = [self._end_of(count) for count in range(len(model.frames) + 1)]
        assert opened.log_end in ends, "the log ends with a frame that was sent"
        model.cut(ends.index(opened.log_end))
        model.acknowledged = len(model.frames)
        items, frames, loaded = self.rig.load(model.epoch)
        self.rig.answers.clear()
        assert isinstance(loaded, StateLoaded)
        assert loaded.log_end == opened.log_end
        assert loaded.snapshot_index <= model.commit
        assert frames == [data for data in model.frames if check_frame(data).first > loaded.snapshot_index]
        assert state_hash(state_of(items, frames)) == state_hash(model.state())
        model.positions = [*model.state().queues.by_id[QUEUE].positions()] if model.frames else []
        self.check_owed(LogIndex(opened.commit_index))

    def check_owed(self, commit: LogIndex) -> None:
        """Readers get all that is owed, as it was written and piece by piece."""
        index = min(self.model.owed_after(), commit)
        expected = [
            data
            for data in self.model.frames
            if check_frame(data).last > index and check_frame(data).last <= commit
        ]
        found: list[bytes] = []
        while index < commit:
            request = ReadFrames(SET, Epoch(self.model.epoch), LogIndex(index + 1), commit, bytes_max=2000)
            *pieces, last = self.rig.ask_reader(request)
            assert isinstance(last, FramesRead), last
            for piece in pieces:
                assert isinstance(piece, FramesRead), piece
                found += piece.frames
            if not pieces:
                break
            index = check_frame(found[-1]).last
        assert found == expected

    def _end_of(self, count: int) -> int:
        return check_frame(self.model.frames[count - 1]).last if count else 0

    def _perform(self, steps: int | None) -> None:
        while self.rig.has_jobs and (steps is None or steps > 0):
            self.rig.step()
            steps = steps - 1 if steps is not None else None
        self._note_answers()

    def _note_answers(self) -> None:
        for _, answer in self.rig.answers:
            assert isinstance(answer, Appended | Truncated), answer
            if isinstance(answer, Appended):
                while self.model.acknowledged_end < answer.log_end:
                    self.model.acknowledged += 1
        self.rig.answers = [pair for pair in self.rig.answers if isinstance(pair[1], Truncated)]


shares = st.floats(0, 1)
some_steps = st.none() | st.integers(0, 12)
operations = st.one_of(
    st.tuples(
        st.just("append"),
        st.lists(st.integers(1, 4), min_size=1, max_size=5),
        st.sampled_from([0, 30, 300, 6000]),
        some_steps,
    ),
    st.tuples(st.just("commit"), shares, some_steps),
    st.tuples(st.just("truncate"), shares, some_steps),
    st.tuples(st.just("crash"), st.booleans()),
)


@pytest.mark.fuzz
@hypothesis.given(seed=st.integers(0, 1 << 32), steps=st.lists(operations, min_size=3, max_size=25))
def test_no_crash_loses_or_changes_what_was_acknowledged(seed: int, steps: list[tuple[object, ...]]) -> None:
    history = History(seed)
    for name, *arguments in steps:
        getattr(history, str(name))(*arguments)
    history.crash(power=True)
    history.crash(power=False)


@pytest.mark.fuzz
@hypothesis.given(
    seed=st.integers(0, 1 << 32), steps=st.lists(operations, min_size=3, max_size=12), data=st.data()
)
def test_a_flipped_bit_is_found_or_hit_nothing_that_was_committed(
    seed: int, steps: list[tuple[object, ...]], data: st.DataObject
) -> None:
    history = History(seed)
    for name, *arguments in steps:
        getattr(history, str(name))(*arguments)
    history.crash(power=False)
    history.commit(1.0, None)
    for _ in range(2):
        # A quiet second after the last append is when the commit index is written down.
        history.rig.feed(Tick())
        history.rig.run()
    segments = history.rig.disk.directories[SET].segments
    number = data.draw(st.sampled_from(sorted(segments))) if segments else None
    if number is None:
        return
    used = len(bytes(segments[number].cached).rstrip(b"\0"))
    history.rig.disk.flip_bit(SET, number, data.draw(st.integers(0, used - 1)), data.draw(st.integers(0, 7)))
    frames = list(history.model.frames)
    history.rig.crash(power=False)
    opened = history.rig.open(history.model.epoch + 1)
    if not opened.damage:
        assert opened.log_end >= history.model.commit, (
            "what was committed is there, or the store says what is wrong"
        )
    _, loaded, _ = history.rig.load(history.model.epoch + 1)
    assert set(loaded) <= set(frames), "nothing is served that was not written"


def test_a_lying_disk_is_noticed_by_these_tests() -> None:
    lost = 0
    for seed in range(20):
        history = History(seed)
        history.rig.disk.is_syncing = False
        chance = random.Random(seed)
        history.append([1, 2, 3], chance.choice([0, 300]), None)
        try:
            history.crash(power=True)
        except AssertionError:
            lost += 1
    assert lost > 0
