"""What is remembered beside the journal, and what nobody waits for, on a disk that has no room for it."""

import pytest

from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.store_protocol import Appended, RememberMap
from services.store.core.disk import AnyStep, DiskError, DiskProblem, WriteMeta
from services.store.core.messages import Tick
from tests.unit.services.store.store_rig import ME, SET, StoreRig, frame


def without_room(problem: DiskProblem = DiskProblem.FULL) -> StoreRig:
    """A set with one frame, on a disk that has got full since."""
    rig = StoreRig()
    rig.open()
    rig.append_ok(frame(1))
    tick(rig)

    def fail(_: object, step: AnyStep) -> None:
        if isinstance(step, WriteMeta):
            raise DiskError(problem, "no space left on device", step)

    rig.disk.fault = fail
    return rig


def tick(rig: StoreRig, times: int = 2) -> None:
    for _ in range(times):
        rig.feed(Tick())
        rig.run()


def remembering(revision: int, etcd_revision: int, generation: str = "g") -> RememberMap:
    return RememberMap(SET, Epoch(1), ME, b"map %d" % revision, revision, generation, etcd_revision)


def test_a_map_that_cannot_be_remembered_leaves_the_set_open() -> None:
    rig = without_room()
    assert rig.ask(remembering(5, 9)) == []
    assert rig.append_ok(frame(2)) == 2


def test_a_commit_index_that_cannot_be_remembered_leaves_the_set_open() -> None:
    rig = without_room()
    rig.append_ok(frame(2))
    rig.tell_commit(2)
    tick(rig, 3)
    assert rig.append_ok(frame(3)) == 3


def test_it_is_remembered_when_there_is_room_again_and_nothing_more_is_said() -> None:
    rig = without_room()
    rig.ask(remembering(5, 9))
    rig.ask(remembering(6, 11))
    tick(rig)
    rig.disk.fault = None
    tick(rig)
    rig.crash(power=False)
    opened = rig.open()
    assert (opened.map_bytes, opened.map_revision, opened.generation) == (b"map 6", 6, "g")
    assert opened.etcd_revision == 11


def test_what_is_still_to_be_remembered_goes_with_the_next_write_and_takes_no_epoch_back() -> None:
    rig = without_room()
    rig.ask(remembering(5, 9))
    rig.disk.fault = None
    rig.open(epoch=7)
    opened = rig.open(epoch=7)
    assert (opened.map_revision, opened.highest_epoch) == (5, 7)


def test_it_is_told_once_however_often_it_is_tried() -> None:
    rig = without_room()
    for revision in range(5, 10):
        rig.ask(remembering(revision, revision))
        tick(rig)
    assert [note.event for note in rig.notes] == ["not remembered"]


def test_a_disk_that_fails_otherwise_is_not_gone_on_with() -> None:
    rig = without_room(DiskProblem.FAILED)
    assert rig.ask(remembering(5, 9))
    rig.disk.fault = None
    assert not isinstance(rig.append(frame(2)), Appended)
    assert rig.open().log_end == LogIndex(1)


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_epoch_that_cannot_be_kept_opens_nothing(epoch: int) -> None:
    rig = without_room()
    rig.ask(remembering(5, 9))
    if epoch == 1:
        assert rig.open(1).highest_epoch == 1
    else:
        with pytest.raises(AssertionError):
            rig.open(2)
