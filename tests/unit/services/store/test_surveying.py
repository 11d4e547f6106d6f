"""Surveys: what a disk tells an operator, without anything being changed by the question."""

from lockstep.core.errors import ErrorCode
from lockstep.core.frames import HEADER_BYTES, decode_header
from lockstep.core.ids import BrokerId, Epoch, ExchangeId, LogIndex, MessageId, QueueId, place
from lockstep.core.records import AnyRecord, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue
from lockstep.core.store_protocol import RememberMap
from services.broker.rebuild_codec import disk_found
from services.store.core.messages import Tick
from services.store.core.requests import ReadContents, ReadRefused, SetSurveyed, SurveySet
from services.store.readers import encode_survey
from tests.unit.services.store.store_rig import ME, SET, SMALL, StoreRig, frame, summed


def surveyed(rig: StoreRig, with_names: bool = True) -> SetSurveyed:
    (answer,) = rig.ask_reader(SurveySet(SET, Epoch(0), with_names))
    assert isinstance(answer, SetSurveyed), answer
    return answer


def test_survey_reads_a_disk_that_nobody_has_opened() -> None:
    rig = StoreRig()
    rig.open(epoch=3)
    rig.append_ok(frame(1, epoch=2), frame(2, epoch=3, reign=7), epoch=3, commit=1)
    assert rig.ask(RememberMap(SET, Epoch(3), ME, b"map", 17, "generation", 21)) == []
    rig.crash(power=False)
    found = surveyed(rig)
    assert (found.last_epoch, found.status.log_end, found.status.highest_epoch) == (3, 2, 3)
    assert (found.map_bytes, found.map_revision, found.generation) == (b"map", 17, "generation")
    assert found.etcd_revision == 21
    told = disk_found(BrokerId("b"), encode_survey(found))
    assert (told.epochs, told.reigns, told.commit_index) == (((2, 1), (3, 2)), ((3, 7),), 1)
    assert found.status.damage == ""


def test_survey_takes_nothing_from_the_writer() -> None:
    rig = StoreRig()
    rig.open(epoch=3)
    rig.append_ok(frame(1, epoch=3), epoch=3)
    assert surveyed(rig).status.log_end == 1
    assert rig.append_ok(frame(2, epoch=3), epoch=3) == 2


def test_names_are_those_of_snapshot_and_journal_up_to_the_log_end() -> None:
    rig = StoreRig(SMALL)
    rig.open()
    declarations: list[AnyRecord] = [
        DeclareExchange(None, "kept", "topic", True),
        DeclareExchange(None, "dropped", "topic", True),
        DeclareQueue(None, "old", True),
        DeclareQueue(None, "gone", True),
    ]
    rig.append_ok(frame(1, records=declarations[:2]), frame(3, records=declarations[2:]))
    # Enough for the consolidator to take the first frames into the snapshot.
    for index in range(5, 60):
        rig.append_ok(frame(index), commit=index - 1)
    rig.append_ok(
        frame(60, records=[DeleteQueue(None, QueueId(4)), DeleteExchange(None, ExchangeId(2))]),
        frame(62, records=[DeclareQueue(None, "new", True)]),
        commit=59,
    )
    rig.run()
    found = surveyed(rig)
    assert found.queues == ("new", "old") and found.exchanges == ("kept",)
    assert found.status.snapshot_index > 4
    assert disk_found(BrokerId("b"), encode_survey(found)).snapshot_index == found.status.snapshot_index
    assert found.status.commit_index < LogIndex(62)
    assert surveyed(rig, with_names=False).queues == ()


def test_a_survey_says_where_what_is_no_record_is_and_all_else_that_the_disk_has() -> None:
    """Its checksum is right: a version that is not known here may have written it."""
    rig = StoreRig()
    disk = rig.open().disk
    rig.append_ok(frame(1), of_no_records(2))
    for _ in range(3):
        found = surveyed(rig)
        assert found.trouble.startswith("its names cannot be read: frame 2..2 cannot be decoded: ")
        assert (found.status.disk, found.status.log_end, found.status.highest_epoch) == (disk, 2, 1)
        assert rig.append_ok(frame(2)) == 2, "nothing was taken from the writer"
        assert surveyed(rig, with_names=False).trouble == ""
    told = disk_found(BrokerId("b"), encode_survey(found))
    assert (told.trouble, told.highest_epoch, told.disk) == (found.trouble, 1, disk)
    (note, *_) = [note.details for note in rig.notes if note.event == "names unreadable"]
    assert note.startswith(f"disk {disk}: frame 2..2 ")


def test_who_asks_for_what_is_in_no_record_hears_where_that_is_and_it_is_damage_when_it_is_so_again() -> None:
    """Behind the snapshot, and committed: whoever has the body read would ask for ever."""
    rig = StoreRig()
    disk = rig.open().disk
    rig.append_ok(frame(1), of_no_records(2), frame(3))
    question = ReadContents(SET, Epoch(1), (MessageId(place(2, 0)),))
    for _ in range(2):
        assert rig.append_ok(frame(3)) == 3
        rig.feed(Tick())
        (refused,) = rig.ask_reader(question)
        assert isinstance(refused, ReadRefused) and refused.code is ErrorCode.UNAVAILABLE
        assert refused.message.startswith(f"set {SET} on disk {disk}: frame 2..2 cannot be decoded: ")
    opened = rig.open()
    assert (opened.log_end, opened.is_unusable) == (1, True)
    assert opened.damage.startswith("frame 2..2 cannot be decoded: ")


def of_no_records(index: int) -> bytes:
    """A frame whose payload is of another kind."""
    header, made = decode_header(frame(index)), frame(index)[:HEADER_BYTES]
    payload = b"\xc1" * header.payload_bytes
    return summed(made[: HEADER_BYTES - 4], payload)
