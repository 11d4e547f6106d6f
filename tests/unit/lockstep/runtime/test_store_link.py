"""Store link: appends in a row are one request, and nothing else changes its place."""

from lockstep.core.ids import Epoch, Incarnation, LogIndex, SetName
from lockstep.core.store_protocol import AppendFrames, OpenSet
from lockstep.runtime.store_link import joined

ORDERS, ME = SetName("orders"), Incarnation("i")


def append(*frames: bytes, epoch: int = 1, commit_index: int = 0) -> AppendFrames:
    return AppendFrames(ORDERS, Epoch(epoch), ME, frames, LogIndex(commit_index))


def test_appends_in_a_row_become_one_with_the_last_commit_index() -> None:
    assert list(joined([append(b"a"), append(b"b", b"c", commit_index=2), append(commit_index=3)])) == [
        append(b"a", b"b", b"c", commit_index=3)
    ]


def test_appends_of_different_epochs_stay_apart() -> None:
    requests = [append(b"a"), append(b"b", epoch=2)]
    assert list(joined(requests)) == requests


def test_other_requests_keep_their_place() -> None:
    opening = OpenSet(ORDERS, Epoch(1), ME)
    assert list(joined([append(b"a"), opening, append(b"b"), append(b"c")])) == [
        append(b"a"),
        opening,
        append(b"b", b"c"),
    ]
