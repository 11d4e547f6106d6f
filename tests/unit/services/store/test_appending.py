"""Group commit, the single writer, repetitions, gaps and epochs."""

from dataclasses import replace

import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, Incarnation, LogIndex, QueueId, SetName
from lockstep.core.records import Message, Publish
from lockstep.core.store_protocol import (
    Appended,
    AppendFrames,
    OpenSet,
    RememberMap,
    SetOpened,
    StoreRefused,
    Truncated,
)
from services.store.core.disk import (
    AnyStep,
    CreateSegment,
    DiskError,
    DiskProblem,
    SyncSegment,
    WriteMeta,
    WriteSegment,
)
from services.store.core.journal_format import END
from services.store.core.messages import Requested, Tick
from services.store.core.meta import decode_set_meta
from services.store.core.requests import FenceSet, SetFenced
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, appending, frame


def opened_rig() -> StoreRig:
    rig = StoreRig()
    rig.open()
    return rig


def code_of(answer: object) -> ErrorCode:
    assert isinstance(answer, StoreRefused), answer
    return answer.code


def test_an_answer_follows_the_sync_of_its_group() -> None:
    rig = opened_rig()
    rig.append_ok(frame(1))
    assert rig.log[-4:] == ["WriteSegment", "SyncSegment", "MeasureRoom", "Appended"]


def test_what_arrives_during_a_sync_is_the_next_group() -> None:
    rig = opened_rig()
    rig.append_ok(frame(1))
    syncs = rig.log.count("SyncSegment")
    for index in range(2, 12):
        rig.feed(Requested(rig.stream, appending(frame(index))))
    rig.run()
    assert rig.log.count("SyncSegment") - syncs == 2, "one for the first, one for the nine that waited"
    ends = [answer.log_end for _, answer in rig.answers if isinstance(answer, Appended)]
    assert ends[-2:] == [2, 11], "one answer covers a group"


@pytest.mark.parametrize("size", [0, 100, 511, 700, 3000])
def test_a_page_is_not_begun_but_written(size: int) -> None:
    """Otherwise it would be read from the disk first."""
    rig, writes, pages = (
        StoreRig(replace(SMALL, page_bytes=512)),
        list[WriteSegment](),
        set[tuple[int, int]](),
    )
    rig.disk.fault = lambda _, step: (
        writes.append(step)
        if isinstance(step, WriteSegment)
        else pages.update((step.number, page) for page in range(-(-len(step.header) // 512)))
        if isinstance(step, CreateSegment)
        else None
    )
    rig.open()
    for index in range(1, 12):
        rig.append_ok(
            frame(index, records=[Publish(None, None, 0, (Message((QueueId(1),), b"", bytes(size)),))])
        )
    assert len({write.number for write in writes}) > (size > 511)
    for write in writes:
        end = write.offset + sum(map(len, write.parts))
        assert end % 512 == 0 and end <= 4096
        touched = {(write.number, page) for page in range(write.offset // 512, end // 512)}
        first = write.number, write.offset // 512
        assert first in pages or write.offset % 512 == 0, "the first page is in memory"
        assert len(write.parts[-1]) >= min(len(END), 4096 - write.offset - sum(map(len, write.parts[:-1])))
        assert not any(write.parts[-1])
        pages |= touched


def test_a_commit_index_alone_is_neither_answered_nor_synced() -> None:
    rig = opened_rig()
    rig.append_ok(frame(1))
    steps = len(rig.log)
    rig.tell_commit(1)
    assert rig.log[steps:] == []


def test_the_commit_index_is_remembered_after_a_quiet_second() -> None:
    rig = opened_rig()
    rig.append_ok(frame(1))
    rig.tell_commit(1)
    for _ in range(2):
        rig.feed(Tick())
        rig.run()
    rig.crash()
    assert rig.open(2).commit_index == 1


def test_a_tick_may_be_of_one_set() -> None:
    rig, other = opened_rig(), SetName("other")
    rig.ask(OpenSet(other, Epoch(1), ME), stream=70)
    for set_name, stream in ((SET, rig.stream), (other, 70)):
        rig.ask(AppendFrames(set_name, Epoch(1), ME, (frame(1),), LogIndex(1)), stream)
    assert rig.core.set_names() == sorted([SET, other])

    def remembered(set_name: SetName) -> LogIndex:
        return decode_set_meta(rig.disk.directories[set_name].meta).commit_index

    for _ in range(2):
        rig.feed(Tick(other))
        rig.run()
    assert (remembered(SET), remembered(other)) == (0, 1)


def test_a_commit_index_beyond_the_log_end_is_not_taken_for_a_missing_tail() -> None:
    rig = opened_rig()
    rig.append_ok(frame(1), commit=90)
    for _ in range(2):
        rig.feed(Tick())
        rig.run()
    rig.crash()
    opened = rig.open(2)
    assert (opened.commit_index, opened.damage) == (1, "")


def test_a_repeated_frame_is_answered_and_not_appended() -> None:
    rig = opened_rig()
    rig.append_ok(frame(1), frame(2))
    assert rig.append_ok(frame(1), frame(2), frame(3)) == 3
    assert rig.append_ok(frame(2)) == 3
    rig.crash()
    assert rig.open(2).log_end == 3
    assert len(rig.load(2)[1]) == 3


def test_a_gap_another_epoch_and_a_falling_epoch_are_refused_and_change_nothing() -> None:
    rig = opened_rig()
    rig.append_ok(frame(1))
    rig.append_ok(frame(2, epoch=3), epoch=3)
    assert code_of(rig.append(frame(3, epoch=3), frame(5, epoch=3), epoch=3)) is ErrorCode.ILLEGAL_STATE
    assert code_of(rig.append(frame(2, epoch=4), epoch=4)) is ErrorCode.ILLEGAL_STATE
    assert code_of(rig.append(frame(3, epoch=2), epoch=4)) is ErrorCode.ILLEGAL_STATE
    assert code_of(rig.append(frame(3, epoch=5), epoch=4)) is ErrorCode.ILLEGAL_STATE
    assert rig.append_ok(frame(3, epoch=3), epoch=4) == 3, (
        "a late frame of the last epoch, passed on by its successor"
    )


def test_a_refusal_does_not_overtake_the_answers_before_it() -> None:
    rig = opened_rig()
    rig.append_ok(frame(1))
    for request in (appending(frame(2)), appending(frame(3)), appending(frame(9)), appending(frame(4))):
        rig.feed(Requested(rig.stream, request))
    rig.run()
    kinds = [type(answer).__name__ for _, answer in rig.answers[-4:]]
    assert kinds == ["Appended", "Appended", "StoreRefused", "Appended"]


def test_the_last_opener_is_the_only_writer() -> None:
    """History 23: a frame of the dead process is still in the socket when the new one has read the log's end."""
    rig = opened_rig()
    rig.append_ok(frame(1))
    rig.feed(Requested(2, OpenSet(SET, Epoch(1), Incarnation("new"))))
    late = rig.ask(appending(frame(2)), stream=1)
    assert code_of(late[-1]) is ErrorCode.WRONG_EPOCH
    answer = rig.ask(appending(frame(2, epoch=1), incarnation=Incarnation("new")), stream=2)[-1]
    assert isinstance(answer, Appended)


def test_an_epoch_once_seen_fences_lower_ones_through_a_crash() -> None:
    rig = opened_rig()
    rig.open(7)
    rig.crash()
    refused = rig.ask(OpenSet(SET, Epoch(6), ME))[0]
    assert isinstance(refused, StoreRefused)
    assert (refused.code, refused.highest_epoch) == (ErrorCode.WRONG_EPOCH, 7)
    assert isinstance(rig.ask(OpenSet(SET, Epoch(7), ME))[0], SetOpened)
    assert code_of(rig.append(frame(1), epoch=6)) is ErrorCode.WRONG_EPOCH
    assert rig.core.status()[0].fenced == 2


def test_a_fence_is_durable_and_stops_the_writer() -> None:
    rig = opened_rig()
    rig.append_ok(frame(1), commit=1)
    (fenced,) = rig.ask_reader(FenceSet(SET, Epoch(5)))
    assert fenced == SetFenced(Epoch(5), LogIndex(1), LogIndex(1))
    assert code_of(rig.append(frame(2))) is ErrorCode.WRONG_EPOCH
    rig.crash()
    assert rig.open(5).highest_epoch == 5


def test_the_map_with_the_highest_revision_is_remembered_and_a_new_generation_wins() -> None:
    rig = opened_rig()
    for revision, generation in ((10, "g1"), (9, "g1"), (3, "g2")):
        rig.ask(RememberMap(SET, Epoch(1), ME, b"map%d" % revision, revision, generation))
    rig.crash()
    opened = rig.open(2)
    assert (opened.map_bytes, opened.map_revision, opened.generation) == (b"map3", 3, "g2")


def test_the_highest_revision_of_etcd_is_remembered_with_whichever_entry_and_begins_anew_with_a_generation() -> (
    None
):
    rig = opened_rig()
    found = []
    for revision, generation, etcd_revision in (
        (10, "g1", 12),
        (10, "g1", 40),
        (11, "g1", 30),
        (9, "g1", 50),
        (3, "g2", 4),
    ):
        rig.ask(RememberMap(SET, Epoch(1), ME, b"map%d" % revision, revision, generation, etcd_revision))
        rig.crash()
        opened = rig.open(1)
        found.append((opened.map_bytes, opened.map_revision, opened.etcd_revision))
    assert found == [
        (b"map10", 10, 12),
        (b"map10", 10, 40),
        (b"map11", 11, 40),
        (b"map11", 11, 50),
        (b"map3", 3, 4),
    ]


def test_the_stamp_of_the_newest_etcd_is_remembered_and_begins_anew_with_a_generation() -> None:
    rig = opened_rig()
    found = []
    for generation, etcd_revision, stamp in (
        ("g1", 12, "p/1/11"),
        ("g1", 12, "p/2/12"),
        ("g1", 11, "p/1/11"),
        ("g1", 40, ""),
        ("g2", 4, "q/1/3"),
        ("g3", 5, ""),
    ):
        rig.ask(RememberMap(SET, Epoch(1), ME, b"map", 10, generation, etcd_revision, stamp))
        rig.crash()
        opened = rig.open(1)
        found.append((opened.etcd_revision, opened.stamp))
    assert found == [(12, "p/1/11"), (12, "p/2/12"), (12, "p/2/12"), (40, "p/2/12"), (4, "q/1/3"), (5, "")]


def failing(kind: type[AnyStep], problem: DiskProblem = DiskProblem.FAILED):  # type: ignore[no-untyped-def]
    def fault(_set_name: object, step: AnyStep) -> None:
        if isinstance(step, kind):
            raise DiskError(problem, "as the test wants it", step)

    return fault


def test_after_a_failed_sync_the_set_is_closed_until_it_is_read_again() -> None:
    rig = opened_rig()
    rig.append_ok(frame(1))
    rig.disk.fault = failing(SyncSegment)
    assert code_of(rig.append(frame(2))) is ErrorCode.UNAVAILABLE
    rig.disk.fault = None
    assert code_of(rig.append(frame(2))) is ErrorCode.UNAVAILABLE
    assert rig.open(1).log_end in (1, 2)
    assert "SettleSegment" in rig.log, "what is reported as durable was synced and read back"


def test_a_full_disk_refuses_by_name_and_the_set_goes_on_when_there_is_room() -> None:
    rig = opened_rig()
    rig.disk.free_bytes = 5000
    end = 0
    while isinstance(answer := rig.append(frame(end + 1)), Appended):
        end = answer.log_end
    assert code_of(answer) is ErrorCode.STORE_FULL
    rig.disk.free_bytes = 1 << 30
    assert rig.append_ok(frame(end + 1)) == end + 1


def test_a_frame_bigger_than_a_segment_gets_a_segment_of_its_size() -> None:
    rig = opened_rig()
    big = frame(2, 3000)
    assert len(big) > rig.limits.segment_bytes
    assert rig.append_ok(frame(1)) == 1
    assert rig.append_ok(big) == 3000
    assert rig.append_ok(frame(3001)) == 3001
    rig.crash()
    assert rig.open(2).log_end == 3001
    assert [len(data) for data in rig.load(2)[1]] == [len(frame(1)), len(big), len(frame(3001))]


def test_a_big_group_is_written_a_piece_at_a_time_and_its_writer_hears_that_the_disk_gets_on() -> None:
    rig = StoreRig(replace(SMALL, piece_bytes=1024))
    rig.open()
    rig.append_ok(frame(1))
    sizes: list[int] = []

    def see(_: SetName, step: AnyStep) -> None:
        if isinstance(step, WriteSegment):
            sizes.append(sum(map(len, step.parts)))

    rig.disk.fault = see
    big, steps = frame(2, 800), len(rig.log)
    *moved, last = rig.ask(appending(big))
    written = [step for step in rig.log[steps:] if step in ("WriteSegment", "SyncSegment", "Appended")]
    assert written == ["WriteSegment", "SyncSegment", "Appended"] * len(sizes)
    assert sizes[:-1] == [1024] * (len(sizes) - 1) and len(big) < sum(sizes) < len(big) + 2048
    assert [answer.log_end for answer in moved if isinstance(answer, Appended)] == [1] * (len(sizes) - 1)
    assert isinstance(last, Appended) and last.log_end == 800
    rig.crash()
    assert rig.open(2).log_end == 800
    assert [len(data) for data in rig.load(2)[1]] == [len(frame(1)), len(big)]


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
def test_a_crash_between_the_pieces_of_a_group_leaves_nothing_of_it(power: bool) -> None:
    ends = set()
    for performed in range(1, 60):
        rig = StoreRig(replace(SMALL, piece_bytes=1024), seed=performed)
        rig.open()
        rig.append_ok(frame(1))
        rig.feed(Requested(rig.stream, appending(frame(2, 800))))
        for _ in range(performed):
            if rig.has_jobs:
                rig.step()
        rig.crash(power)
        end = rig.open(2).log_end
        assert rig.append_ok(frame(end + 1, epoch=2), epoch=2) == end + 1
        rig.crash()
        assert rig.open(3).log_end == end + 1
        ends.add(end)
    assert ends == {1, 800}


def test_bytes_that_are_no_frame_are_refused() -> None:
    rig = opened_rig()
    for data in (b"", b"LKSF", frame(1)[:-1], frame(1) + b"x", frame(1)[:-1] + b"\xff"):
        assert code_of(rig.append(data)) is ErrorCode.INVALID_ARGUMENT
    assert rig.append_ok(frame(1)) == 1


def test_an_epoch_is_durable_before_anything_of_it_is_done() -> None:
    rig = opened_rig()
    rig.disk.fault = failing(WriteMeta)
    request = AppendFrames(SET, Epoch(2), ME, (frame(1, epoch=2),), LogIndex(0))
    assert code_of(rig.ask(request)[0]) is ErrorCode.UNAVAILABLE
    rig.disk.fault = None
    assert rig.open(1).log_end == 0


def test_a_refused_append_says_nothing_of_what_is_committed_here() -> None:
    """What stands here at these indexes is of another epoch, and is to be cut."""
    rig = opened_rig()
    for index in range(1, 6):
        rig.append_ok(frame(index), commit=2)
    rig.open(2)
    refused = rig.append(frame(4, epoch=2), frame(5, epoch=2), commit=5, epoch=2)
    assert code_of(refused) is ErrorCode.ILLEGAL_STATE
    assert rig.core.status()[0].commit_index == 2
    assert isinstance(rig.truncate(3, epoch=2), Truncated)
    assert rig.append_ok(frame(4, epoch=2), frame(5, epoch=2), commit=5, epoch=2) == 5


def test_a_spare_segment_that_a_bigger_one_could_not_replace_is_forgotten() -> None:
    rig = opened_rig()
    index = 0
    while sorted(rig.disk.directories[SET].segments) != [1, 2]:
        index += 1
        rig.append_ok(frame(index))

    def fail(_: SetName, step: AnyStep) -> None:
        if isinstance(step, CreateSegment):
            rig.disk.directories[SET].segments.pop(
                step.number, None
            )  # As a real disk, which replaces it first.
            raise DiskError(DiskProblem.FULL, "no room", step)

    rig.disk.fault = fail
    body = bytes(2 * SMALL.segment_bytes)
    big = frame(index + 1, records=[Publish(None, None, 0, (Message((QueueId(1),), b"", body),))])
    assert code_of(rig.append(big)) is ErrorCode.STORE_FULL
    rig.disk.fault = None
    for _ in range(60):
        index += 1
        rig.append_ok(frame(index))
    assert len(rig.disk.directories[SET].segments) > 1
