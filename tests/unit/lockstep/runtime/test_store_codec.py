"""Store protocol to protobuf and back."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.epoch_table import REIGN_MAX
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.pieces import at_once
from lockstep.core.replication import FRAMES_IN_ONE
from lockstep.core.store_protocol import (
    AcceptDamage,
    AnyStoreAnswer,
    AnyStoreRequest,
    Appended,
    AppendFrames,
    BeginInstall,
    EndInstall,
    Installed,
    InstallItems,
    ItemsInstalled,
    LoadState,
    OpenSet,
    RememberMap,
    SetAside,
    SetOpened,
    StateChunk,
    StateItem,
    StateLoaded,
    StoreRefused,
    Truncate,
    Truncated,
)
from lockstep.runtime.epochs_codec import decode_reigns
from lockstep.runtime.store_client import join_appends
from lockstep.runtime.store_codec import (
    HEARTBEAT,
    decode_answer,
    decode_long_answer,
    decode_long_request,
    decode_request,
    encode_answer,
    encode_request,
)
from lockstep.wire.v1 import store_pb2
from tests.unit.lockstep.runtime.serialized import whole

HEAD = SetName("orders"), Epoch(3), Incarnation("me")
EPOCHS = ((Epoch(1), LogIndex(1)), (Epoch(3), LogIndex(9)))
ITEMS = (StateItem(b"k", b"v"), StateItem(b"", b"", False))

REQUESTS: list[AnyStoreRequest] = [
    OpenSet(*HEAD),
    AppendFrames(*HEAD, (b"one", b""), LogIndex(7)),
    AppendFrames(*HEAD, (), LogIndex(0)),
    Truncate(*HEAD, LogIndex(0)),
    LoadState(*HEAD),
    LoadState(*HEAD, takes_blocks=True),
    BeginInstall(*HEAD, LogIndex(5), EPOCHS, 77),
    BeginInstall(*HEAD, LogIndex(5), EPOCHS, 77, ((Epoch(3), REIGN_MAX),)),
    InstallItems(*HEAD, ITEMS),
    InstallItems(*HEAD, ()),
    EndInstall(*HEAD),
    RememberMap(*HEAD, b"map", 12, "g"),
    RememberMap(*HEAD, b"map", 12, "g", 40),
    SetAside(*HEAD),
    AcceptDamage(*HEAD),
    AcceptDamage(*HEAD, DiskId("d1"), LogIndex(7), "of no use"),
]
ANSWERS: list[AnyStoreAnswer] = [
    SetOpened(
        *HEAD, DiskId("d"), LogIndex(9), EPOCHS, LogIndex(1), LogIndex(2), Epoch(3), b"m", 4, "g", "a hole", 9
    ),
    SetOpened(
        *HEAD,
        DiskId("d"),
        LogIndex(9),
        EPOCHS,
        LogIndex(1),
        LogIndex(2),
        Epoch(3),
        b"m",
        4,
        "g",
        "",
        reigns=((Epoch(1), 7),),
        is_unusable=True,
        has_no_state=True,
    ),
    Appended(*HEAD, LogIndex(4)),
    Truncated(*HEAD, LogIndex(0)),
    StateChunk(*HEAD, ITEMS, (b"frame",)),
    StateChunk(*HEAD, (), ()),
    StateLoaded(*HEAD, LogIndex(0), LogIndex(2)),
    ItemsInstalled(*HEAD),
    Installed(*HEAD, LogIndex(2)),
    StoreRefused(*HEAD, ErrorCode.STORE_FULL, "full", Epoch(3)),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_a_request_comes_back_as_it_was(request_: AnyStoreRequest) -> None:
    data = whole(encode_request(request_))
    assert decode_request(data) == request_ == at_once(decode_long_request(data))


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_comes_back_as_it_was(answer: AnyStoreAnswer) -> None:
    data = whole(encode_answer(answer))
    assert decode_answer(data) == answer == at_once(decode_long_answer(data))


@pytest.mark.parametrize("sizes", [(20_000,), (5, 20_000, 0, 70_000)])
def test_big_frames_come_back_as_small_ones_do(sizes: tuple[int, ...]) -> None:
    frames = tuple(bytes([number]) * size for number, size in enumerate(sizes))
    request = AppendFrames(*HEAD, frames, LogIndex(0))
    encoded = encode_request(request)
    assert decode_request(whole(encoded)) == request == at_once(decode_long_request(whole(encoded)))
    assert any(piece is frames[-1] for piece in encoded), "it is copied"
    with pytest.raises(Rejected):
        decode_request(whole(encoded)[:-1])
    for items in ((), (StateItem(b"key", b"value", True),)):
        chunk = StateChunk(*HEAD, items, frames)
        answered = encode_answer(chunk)
        assert decode_answer(whole(answered)) == chunk == at_once(decode_long_answer(whole(answered)))
        assert any(piece is frames[-1] for piece in answered), "it is copied"


def test_a_heartbeat_says_nothing() -> None:
    assert decode_request(HEARTBEAT) is None
    assert decode_answer(HEARTBEAT) is None


@pytest.mark.fuzz
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_rejected(data: bytes) -> None:
    for decode in (decode_request, decode_answer):
        with suppress(Rejected):
            decode(data)
    with suppress(Rejected):
        at_once(decode_long_request(data))
    with suppress(Rejected):
        at_once(decode_long_answer(data))


@pytest.mark.parametrize("name", ["", "x" * 81, "a\nb"])
def test_a_set_name_that_is_none_is_rejected(name: str) -> None:
    with pytest.raises(Rejected):
        decode_request(whole(encode_request(OpenSet(SetName(name), Epoch(1), Incarnation("me")))))


def test_appends_in_a_row_become_one_and_keep_their_order_with_others() -> None:
    one, two = AppendFrames(*HEAD, (b"1",), LogIndex(1)), AppendFrames(*HEAD, (b"2", b"3"), LogIndex(5))
    commit = AppendFrames(*HEAD, (), LogIndex(6))
    other = AppendFrames(SetName("orders"), Epoch(4), Incarnation("me"), (b"4",), LogIndex(6))
    cut = Truncate(*HEAD, LogIndex(0))
    assert join_appends([one, two, commit, None, one, cut, two, other]) == [
        AppendFrames(*HEAD, (b"1", b"2", b"3"), LogIndex(6)),
        None,
        one,
        cut,
        two,
        other,
    ]


def test_appends_of_very_many_frames_stay_apart() -> None:
    small, big = (AppendFrames(*HEAD, (b"1",) * count, LogIndex(0)) for count in (10, FRAMES_IN_ONE))
    joined = join_appends([small, small, big, small, big, big, small, small])
    counts = [len(each.frames) for each in joined if isinstance(each, AppendFrames)]
    assert counts == [20, FRAMES_IN_ONE, 10, FRAMES_IN_ONE, FRAMES_IN_ONE, 20]


def test_a_number_that_is_no_reign_is_not_known() -> None:
    said = [store_pb2.EpochStart(epoch=epoch, reign=reign) for epoch, reign in ((1, 0), (2, 1 << 16), (3, 5))]
    assert decode_reigns(said) == ((3, 5),)
