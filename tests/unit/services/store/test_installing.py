"""Installing a snapshot, consolidating, and reading what is stored."""

from dataclasses import replace
from random import Random

import pytest

from lockstep.core.epoch_table import Reigns
from lockstep.core.errors import ErrorCode
from lockstep.core.frames import Frame, check_frame
from lockstep.core.ids import Epoch, LogIndex, MessageId, QueueId, QueuePosition, index_of, place
from lockstep.core.records import DeclareQueue, Dequeue, Message, Publish
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import (
    BeginInstall,
    EndInstall,
    Installed,
    InstallItems,
    LoadState,
    StateItem,
    StateLoaded,
    StoreRefused,
)
from services.store.core.messages import ReaderRequested, Requested, Tick
from services.store.core.requests import (
    ContentsRead,
    FramesRead,
    ItemsRead,
    ReadContents,
    ReadFrames,
    ReadItems,
    ReadRefused,
)
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, frame

QUEUE = QueueId(1)


def content_frame(first: int, count: int = 1) -> bytes:
    """Frame 1 declares a queue; others publish `body-<index>`."""
    records = [
        DeclareQueue(None, "q", True)
        if index == 1
        else Publish(None, None, 0, (Message((QUEUE,), b"", b"body-%d" % index, is_durable=True),))
        for index in range(first, first + count)
    ]
    return frame(first, records=list(records))


def items_at(index: int) -> tuple[StateItem, ...]:
    state = SetState(SET)
    data = content_frame(1, index)
    state.apply_frame(Frame(check_frame(data), data, b""))
    return tuple(StateItem(item.key, item.value, item.is_durable) for item in state.items())


def installation(index: int, epoch: int = 2, reigns: Reigns = ()) -> list[object]:
    items = items_at(index)
    head = SET, Epoch(epoch), ME
    return [
        BeginInstall(*head, LogIndex(index), ((Epoch(1), LogIndex(1)),), 7, reigns),
        InstallItems(*head, items[:5]),
        InstallItems(*head, items[5:]),
        EndInstall(*head),
    ]


def test_an_installed_snapshot_is_the_set() -> None:
    rig = StoreRig()
    first = rig.open()
    rig.append_ok(frame(1), frame(2))
    requests = installation(50, reigns=((Epoch(1), 7),))
    *_, installed = [answer for request in requests for answer in rig.ask(request)]  # type: ignore[arg-type]
    assert isinstance(installed, Installed)
    assert installed.log_end == 50
    assert rig.append_ok(content_frame(51), epoch=2) == 51
    rig.crash()
    opened = rig.open(2)
    assert (opened.log_end, opened.snapshot_index, opened.commit_index, opened.disk) == (
        51,
        50,
        0,
        first.disk,
    )
    assert (opened.epochs, opened.reigns) == (((1, 1),), ((1, 7),))
    items, frames, _ = rig.load(2)
    assert items == {item.key: item.value for item in items_at(50)}
    assert frames == [content_frame(51)]


def test_a_snapshot_that_was_sent_is_committed_as_far_as_the_primary_says() -> None:
    """It may reach beyond that (R8); who reads hears of nothing that may still be lost (R11)."""
    rig = StoreRig()
    rig.open()
    for request in installation(50):
        rig.ask(request)  # type: ignore[arg-type]
    assert known_of(rig) == (0, None)
    rig.tell_commit(30, epoch=2)
    rig.run()
    assert known_of(rig) == (30, None)
    rig.feed(Tick())
    rig.run()
    rig.crash()
    rig.open(2)
    assert known_of(rig) == (30, None)
    rig.tell_commit(50, epoch=2)
    rig.run()
    assert known_of(rig) == (50, 50)


def test_a_snapshot_that_was_sent_stays_one_though_an_empty_segment_behind_it_is_let_go() -> None:
    rig = StoreRig()
    rig.open()
    for request in installation(50):
        rig.ask(request)  # type: ignore[arg-type]
    for _ in range(3):
        rig.append_ok(content_frame(51), epoch=2, commit=30)
        rig.truncate(50, epoch=2)
    for _ in range(5):
        rig.feed(Tick())
        rig.run()
    assert known_of(rig) == (30, None)
    rig.crash()
    rig.open(2)
    assert known_of(rig) == (30, None)


def test_who_reads_from_below_a_snapshot_that_was_sent_is_told_so_however_little_is_committed() -> None:
    rig = StoreRig()
    rig.open()
    for request in installation(50):
        rig.ask(request)  # type: ignore[arg-type]
    rig.tell_commit(30, epoch=2)
    rig.run()
    (answer,) = rig.ask_reader(ReadFrames(SET, Epoch(2), LogIndex(40)))
    assert isinstance(answer, ReadRefused) and answer.code is ErrorCode.OUT_OF_RANGE
    (answer,) = rig.ask_reader(ReadFrames(SET, Epoch(2), LogIndex(51)))
    assert answer == FramesRead((), True)


def known_of(rig: StoreRig) -> tuple[int, int | None]:
    """The commit index, and the index of the snapshot that readers are shown."""
    (answer, *_) = rig.ask_reader(ReadItems(SET, Epoch(2), b""))
    shown = answer.snapshot_index if isinstance(answer, ItemsRead) else None
    return rig.core.status()[0].commit_index, shown


def test_what_is_consolidated_behind_a_snapshot_that_was_sent_is_committed() -> None:
    rig = StoreRig()
    rig.open()
    for request in installation(50):
        rig.ask(request)  # type: ignore[arg-type]
    for index in range(51, 200):
        rig.append_ok(content_frame(index), epoch=2, commit=index)
    assert rig.core.status()[0].snapshot_index > 50
    rig.crash()
    opened = rig.open(2)
    assert opened.commit_index >= opened.snapshot_index > 50


def test_reigns_outlive_the_frames_that_told_them() -> None:
    rig = StoreRig()
    rig.open()
    for index in range(1, 101):
        epoch = 1 + index // 50
        rig.append_ok(frame(index, epoch=epoch, reign=6 + epoch), epoch=epoch, commit=index)
    for _ in range(2):
        rig.crash()
        opened = rig.open(3)
        assert opened.snapshot_index > 50, "their first frames are gone"
        assert (opened.epochs, opened.reigns) == (((1, 1), (2, 50), (3, 100)), ((1, 7), (2, 8), (3, 9)))
        for index in range(101, 151):
            rig.append_ok(frame(index, epoch=3, reign=9), epoch=3, commit=index)


def test_a_disk_whose_name_was_lost_has_a_new_one_with_its_new_content() -> None:
    """R1: two that have none would be taken for one another."""
    rig = StoreRig()
    first = rig.open()
    rig.append_ok(frame(1))
    rig.disk.directories[SET].meta = b"rubbish"
    rig.crash()
    assert rig.open(2).damage == "the meta file was lost"
    for request in installation(50):
        rig.ask(request)  # type: ignore[arg-type]
    for epoch in (2, 3):
        opened = rig.open(epoch)
        assert (opened.log_end, opened.damage) == (50, "")
        assert opened.disk not in ("", first.disk)
        rig.crash()


def test_a_crash_at_any_step_of_an_installation_leaves_an_empty_set_with_a_new_disk_or_a_whole_one() -> None:
    """Histories 18 and 24."""
    outcomes = set()
    for steps in (0, 1, *range(2, 60, 2)):
        for seed in range(2):
            rig = StoreRig(seed=seed)
            old = rig.open()
            for index in range(1, 40):
                rig.append_ok(frame(index))
            for request in installation(50):
                rig.feed(Requested(rig.stream, request))  # type: ignore[arg-type]
            for _ in range(steps):
                if rig.has_jobs:
                    rig.step()
            is_answered = any(isinstance(answer, Installed) for _, answer in rig.answers)
            rig.crash()
            opened = rig.open(2)
            assert opened.damage == ""
            outcome = "old" if opened.log_end == 39 else "new" if opened.log_end == 50 else "empty"
            outcomes.add(outcome)
            if outcome == "empty":
                assert opened.log_end == 0
                assert opened.disk != old.disk
                assert rig.load(2)[0] == {}
            if outcome == "new":
                assert rig.load(2)[0] == {item.key: item.value for item in items_at(50)}
            assert outcome == "new" or not is_answered
    assert outcomes == {"old", "empty", "new"}


def test_an_installation_that_its_sender_gave_up_is_undone_by_the_next_opening() -> None:
    rig = StoreRig()
    old = rig.open()
    for request in installation(50)[:2]:
        rig.ask(request)  # type: ignore[arg-type]
    refused = rig.append(frame(1), epoch=2)
    assert isinstance(refused, StoreRefused)
    assert refused.code is ErrorCode.ILLEGAL_STATE
    opened = rig.open(2)
    assert opened.log_end == 0
    assert opened.disk != old.disk


def test_nothing_beyond_the_commit_index_is_consolidated_and_the_last_segment_stays() -> None:
    """History 11: what the consolidator has applied can never be cut again."""
    rig = StoreRig()
    rig.open()
    for index in range(1, 200):
        rig.append_ok(content_frame(index), commit=min(index - 1, 60))
    assert 0 < rig.core.status()[0].snapshot_index <= 60
    assert len(rig.disk.directories[SET].segments) > 5
    rig.tell_commit(199)
    rig.run()
    status = rig.core.status()[0]
    assert status.snapshot_index > 60
    assert 1 <= len(rig.disk.directories[SET].segments) <= 2, "the segment that is written to stays"
    items, frames, loaded = rig.load()
    assert isinstance(loaded, StateLoaded)
    assert len(frames) == 199 - status.snapshot_index
    assert sum(b"body-" in value for value in items.values()) == status.snapshot_index - 1


ROOMY = replace(SMALL, segment_bytes=1 << 20, unconsolidated_bytes=4096, unflushed_items_max=100)


def accepting_frame(index: int, first: int, count: int) -> bytes:
    """Accepts the messages that the frames from `first` on published."""
    positions = tuple(QueuePosition(place(LogIndex(first + each), 0)) for each in range(count))
    return frame(index, records=[Dequeue(None, None, 0, QUEUE, positions)])


def test_messages_accepted_in_a_segment_that_is_still_written_to_are_not_loaded_again() -> None:
    """A few bytes of journal end thousands of messages: a recovery that loaded them would depend on what had passed through."""
    rig = StoreRig(ROOMY)
    rig.open()
    rig.append_ok(content_frame(1))
    for index in range(2, 1002):
        rig.append_ok(content_frame(index), commit=index)
    for number in range(100):
        index = 1002 + number
        rig.append_ok(accepting_frame(index, 2 + 10 * number, 10), commit=index)
    rig.tell_commit(1101)
    rig.run()
    assert len(rig.disk.directories[SET].segments) == 1
    rig.crash()
    rig.open(2)
    items, _, _ = rig.load(2)
    assert len(items) < 2 * ROOMY.unflushed_items_max + 2 * (4096 // 8)


def test_what_was_consolidated_is_flushed_once_nothing_is_appended() -> None:
    rig = StoreRig(replace(ROOMY, unflushed_items_max=1_000_000, unflushed_quiet_items_max=10))
    rig.open()
    for index in range(1, 200):
        rig.append_ok(content_frame(index), commit=index)
    assert "SnapshotFlush" not in rig.log
    for _ in range(3):
        rig.feed(Tick())
        rig.run()
    assert rig.log.count("SnapshotFlush") == 1
    rig.crash()
    assert rig.open(2).snapshot_index > 100


def test_readers_get_nothing_beyond_the_commit_index() -> None:
    """R11."""
    rig = StoreRig()
    rig.open()
    for index in range(1, 100):
        rig.append_ok(content_frame(index), commit=min(index - 1, 70))
    frames = [
        data
        for answer in rig.ask_reader(ReadFrames(SET, Epoch(1), LogIndex(0)))
        for data in frames_of(answer)
    ]
    assert check_frame(frames[-1]).last == 70
    chunks = rig.ask_reader(ReadItems(SET, Epoch(1), b""))
    assert all(isinstance(chunk, ItemsRead) for chunk in chunks)
    assert isinstance(chunks[-1], ItemsRead)
    assert chunks[-1].is_last


def frames_of(answer: object) -> tuple[bytes, ...]:
    assert isinstance(answer, FramesRead), answer
    return answer.frames


def test_contents_are_read_from_the_snapshot_and_from_the_journal() -> None:
    rig = StoreRig()
    rig.open()
    for index in range(1, 100):
        rig.append_ok(content_frame(index), commit=index - 1)
    snapshot_index = rig.core.status()[0].snapshot_index
    assert 2 < snapshot_index < 99
    wanted = tuple(
        MessageId(place(index, 0)) for index in (99, 2, 1, snapshot_index, snapshot_index + 1, 500)
    )
    (answer,) = rig.ask_reader(ReadContents(SET, Epoch(1), wanted))
    assert isinstance(answer, ContentsRead)
    expected = [99, 2, None, snapshot_index, snapshot_index + 1, None]
    assert answer.contents == tuple((b"", b"body-%d" % index) if index else None for index in expected)


def test_a_piece_without_items_ends_no_answer() -> None:
    """What is left of a block comes alone in it."""
    rig = StoreRig(replace(SMALL, chunk_bytes=1))
    rig.open()
    for index in range(1, 100):
        rig.append_ok(content_frame(index), commit=index)
    for index in range(100, 200):
        rig.append_ok(accepting_frame(index, 2 + (index - 100) // 2 * 2, 1), commit=index)
    rig.crash()
    rig.open(2)
    rig.tell_commit(199, epoch=2)
    rig.run()
    snapshot = rig.disk.directories[SET].snapshot
    assert [key for key in snapshot.items if key[:1] == b"m" and key[9:] == b"A"]
    items, frames, _ = rig.load(2)
    state = SetState.from_items(SET, (StateItem(key, value, True) for key, value in items.items()))
    for data in frames:
        state.apply_frame(Frame(check_frame(data), data, b""))
    assert len(state.contents) == 49
    chunks = rig.ask_reader(ReadItems(SET, Epoch(2), b""))
    read = [item for chunk in chunks if isinstance(chunk, ItemsRead) for item in chunk.items]
    assert read == [StateItem(key, value, True) for key, value in items.items()]


def test_where_there_is_no_snapshot_contents_are_not_looked_for_in_it() -> None:
    """The database does not even come into being for a reader."""
    rig = StoreRig()
    rig.open()
    for index in range(1, 4):
        rig.append_ok(content_frame(index), commit=index)
    wanted = MessageId(place(2, 0)), MessageId(place(9, 0))
    (answer,) = rig.ask_reader(ReadContents(SET, Epoch(1), wanted))
    assert isinstance(answer, ContentsRead)
    assert answer.contents == ((b"", b"body-2"), None)
    assert not [step for step in rig.log if "Snapshot" in step and step != "ReadSnapshotMeta"]


@pytest.mark.parametrize("commit", [0, 39])
@pytest.mark.parametrize("seed", range(4))
def test_one_answer_has_as_many_contents_as_there_is_room_for(seed: int, commit: int) -> None:
    """In whatever order they are asked for, and wherever they are; who lacks some asks again, and gets every one."""
    size = 30_000
    limits = replace(SMALL, segment_bytes=1 << 20, unconsolidated_bytes=1 << 19, contents_bytes=4 * size)
    rig, random = StoreRig(limits), Random(seed)
    rig.open()
    rig.append_ok(content_frame(1))
    for index in range(2, 40):
        body = index.to_bytes(2, "big") * (size // 2)
        message = Message((QUEUE,), b"", body, is_durable=True)
        rig.append_ok(
            frame(index, records=[Publish(None, None, 0, (message,))]), commit=min(commit, index - 1)
        )
    assert bool(rig.core.status()[0].snapshot_index) == bool(commit)
    left = [MessageId(place(index, 0)) for index in (*range(2, 40), 3, 500)]
    random.shuffle(left)
    answers = 0
    while left:
        (answer,) = rig.ask_reader(ReadContents(SET, Epoch(1), tuple(left)))
        assert isinstance(answer, ContentsRead) and answer.contents
        for message_id, content in zip(left, answer.contents, strict=False):
            index = index_of(message_id)
            assert content == (None if index == 500 else (b"", index.to_bytes(2, "big") * (size // 2)))
        distinct = {content for content in answer.contents if content is not None}
        assert sum(len(body) for _, body in distinct) <= limits.contents_bytes + (64 << 10) + size
        left, answers = left[len(answer.contents) :], answers + 1
    assert answers > 1


def test_no_request_has_the_store_look_for_more_than_some_messages_at_once() -> None:
    rig = StoreRig(replace(SMALL, contents_max=3))
    rig.open()
    for index in range(1, 10):
        rig.append_ok(content_frame(index))
    wanted = tuple(MessageId(place(index, 0)) for index in range(2, 9))
    (answer,) = rig.ask_reader(ReadContents(SET, Epoch(1), wanted))
    assert isinstance(answer, ContentsRead) and len(answer.contents) == 3


def test_a_block_that_cannot_be_read_is_damage_of_the_set() -> None:
    """It comes back as empty when it is set aside, and does not fail for ever."""
    rig = StoreRig()
    rig.open()
    for index in range(1, 100):
        rig.append_ok(content_frame(index), commit=index)
    snapshot = rig.disk.directories[SET].snapshot
    key = next(key for key in snapshot.items if key.endswith(b"B"))
    snapshot.items[key] = snapshot.items[key]._replace(value=b"\xc1")
    *_, answer = rig.ask(LoadState(SET, Epoch(1), ME))
    assert isinstance(answer, StoreRefused)
    assert rig.open(2).damage.startswith("a block of the snapshot")


@pytest.mark.parametrize("seed", range(8))
def test_a_read_under_way_goes_on_when_a_snapshot_begins_to_be_installed(seed: int) -> None:
    """Whichever of their steps comes first."""
    rig = StoreRig(seed=seed)
    rig.open()
    for index in range(1, 6):
        rig.append_ok(content_frame(index), commit=index - 1)
    before = len(rig.read)
    rig.feed(ReaderRequested(1000, ReadContents(SET, Epoch(1), (MessageId(place(5, 0)),))))
    begin = BeginInstall(SET, Epoch(2), ME, LogIndex(50), ((Epoch(1), LogIndex(1)),), 7)
    rig.feed(Requested(rig.stream, begin))
    rig.run()
    (answer,) = rig.read[before:]
    assert isinstance(answer, ContentsRead)
    assert answer.contents == ((b"", b"body-5"),)


def test_a_read_that_comes_while_a_snapshot_is_installed_is_refused() -> None:
    rig = StoreRig()
    rig.open()
    rig.append_ok(content_frame(1))
    rig.ask(BeginInstall(SET, Epoch(2), ME, LogIndex(50), ((Epoch(1), LogIndex(1)),), 7))
    (answer,) = rig.ask_reader(ReadContents(SET, Epoch(2), (MessageId(place(1, 0)),)))
    assert isinstance(answer, ReadRefused)
    assert answer.code is ErrorCode.UNAVAILABLE
