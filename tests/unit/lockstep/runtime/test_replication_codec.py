"""Replication codec: what was encoded comes back, frames are joined, and garbage is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.core.errors import Rejected
from lockstep.core.ids import EPOCH_MAX, BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.replication import (
    Acknowledge,
    Frames,
    HandedOver,
    HeldMessages,
    OpenProgress,
    SnapshotChunk,
    Subscribe,
    SubscriptionAccepted,
    SubscriptionRefused,
    ToBackup,
)
from lockstep.core.store_protocol import StateItem
from lockstep.runtime.replication_codec import (
    decode_acknowledge,
    decode_subscribe,
    decode_to_backup,
    encode_acknowledge,
    encode_subscribe,
    encode_to_backup,
)
from tests.unit.lockstep.runtime.serialized import whole

ORDERS = SetName("orders")
E5 = Epoch(5)
numbers = st.integers(0, 2**63 - 1)
names = st.text(min_size=1, max_size=20)
epoch_tables = st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple)
items = st.builds(StateItem, st.binary(max_size=20), st.binary(max_size=20), st.booleans())
to_backup = st.one_of(
    st.builds(
        SubscriptionAccepted, st.just(ORDERS), numbers, numbers, numbers, st.booleans(), epoch_tables, numbers
    ),
    st.builds(SubscriptionRefused, st.just(ORDERS), numbers, st.text(), numbers),
    st.builds(
        HandedOver,
        st.just(ORDERS),
        numbers,
        names,
        numbers,
        st.lists(
            st.builds(
                OpenProgress,
                st.tuples(numbers, numbers),
                numbers,
                numbers,
                st.lists(st.tuples(numbers, numbers), max_size=2).map(tuple),
                numbers,
                numbers,
            ),
            max_size=2,
        ).map(tuple),
        st.lists(
            st.builds(HeldMessages, numbers, numbers, st.lists(numbers, max_size=3).map(tuple)), max_size=2
        ).map(tuple),
        st.booleans(),
    ),
    st.builds(SnapshotChunk, st.just(ORDERS), numbers, st.lists(items, max_size=3).map(tuple), st.booleans()),
    st.builds(
        Frames,
        st.just(ORDERS),
        numbers,
        st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=3).map(tuple),
        numbers,
    ),
)


@given(to_backup)
def test_every_message_to_a_backup_comes_back(message: ToBackup) -> None:
    (data,) = encode_to_backup([message], 1 << 20)
    assert decode_to_backup(whole(data)) == message


@given(
    st.builds(
        Subscribe,
        names.map(SetName),
        numbers,
        names,
        names,
        names,
        numbers,
        epoch_tables,
        numbers,
        st.booleans(),
        numbers,
    )
)
def test_a_subscription_comes_back(subscribe: Subscribe) -> None:
    assert decode_subscribe(encode_subscribe(subscribe, "id")) == (subscribe, "id")


def test_an_acknowledgement_comes_back() -> None:
    acknowledge = Acknowledge(ORDERS, E5, BrokerId("B2"), Incarnation("i"), LogIndex(7))
    assert decode_acknowledge(encode_acknowledge(acknowledge, "id")) == ("id", 5, 7)


def frames(*bodies: bytes, epoch: Epoch = E5, commit_index: int = 1) -> Frames:
    return Frames(ORDERS, epoch, tuple((body, b"") for body in bodies), LogIndex(commit_index))


def test_frames_in_a_row_become_one_message_with_the_last_commit_index() -> None:
    encoded = list(
        encode_to_backup([frames(b"a"), frames(b"b", b"c", commit_index=2), frames(commit_index=3)], 100)
    )
    assert [decode_to_backup(whole(data)) for data in encoded] == [frames(b"a", b"b", b"c", commit_index=3)]


def test_joined_frames_stay_below_the_limit() -> None:
    encoded = list(encode_to_backup([frames(b"a" * 60, b"b" * 60, b"c" * 200)], 100))
    assert [len(decode_to_backup(whole(data)).frames) for data in encoded] == [1, 1, 1]  # type: ignore[union-attr]


def test_frames_of_different_epochs_are_not_joined() -> None:
    messages = [frames(b"a"), frames(b"b", epoch=Epoch(6))]
    assert [decode_to_backup(whole(data)) for data in encode_to_backup(messages, 100)] == messages


def test_what_stands_between_frames_keeps_its_place() -> None:
    chunk = SnapshotChunk(ORDERS, E5, (StateItem(b"k", b"v"),), True)
    messages: list[ToBackup] = [frames(b"a"), chunk, frames(b"b")]
    assert [decode_to_backup(whole(data)) for data in encode_to_backup(messages, 100)] == messages


@given(st.binary(max_size=60))
def test_garbage_is_refused_and_nothing_else_is_raised(data: bytes) -> None:
    for decode in (decode_to_backup, decode_subscribe, decode_acknowledge):
        with contextlib.suppress(Rejected):
            decode(data)


@given(st.lists(st.sampled_from((0, 1, 20_000, 70_000)), min_size=1, max_size=4))
def test_big_frames_come_back_as_small_ones_do(sizes: list[int]) -> None:
    message = Frames(
        ORDERS, E5, tuple((bytes([number]) * size, b"t") for number, size in enumerate(sizes)), LogIndex(3)
    )
    (data,) = encode_to_backup([message], 1 << 20)
    assert decode_to_backup(whole(data)) == message
    with pytest.raises(Rejected):
        decode_to_backup(whole(data)[:-1])


def test_a_message_without_content_is_refused() -> None:
    with pytest.raises(Rejected, match="without content"):
        decode_to_backup(b"")


@pytest.mark.parametrize("takes_blocks", [False, True])
def test_a_subscription_comes_as_it_was_said(takes_blocks: bool) -> None:
    subscribe = Subscribe(
        ORDERS, E5, BrokerId("B2"), DiskId("d"), Incarnation("i"), LogIndex(9), ((Epoch(4), LogIndex(1)),),
        LogIndex(8), True, LogIndex(7), takes_blocks, ((Epoch(4), 9),),
    )  # fmt: skip
    assert decode_subscribe(encode_subscribe(subscribe, "id")) == (subscribe, "id")


@pytest.mark.parametrize("epoch", [EPOCH_MAX + 1, 2**64 - 1])
def test_an_epoch_above_which_there_is_none_is_refused_wherever_a_backup_says_it(epoch: int) -> None:
    far = Epoch(epoch)
    said = Subscribe(
        ORDERS,
        far,
        BrokerId("B2"),
        DiskId("d"),
        Incarnation("i"),
        LogIndex(0),
        (),
        LogIndex(0),
        False,
        LogIndex(0),
    )
    with pytest.raises(Rejected, match=f"epoch {epoch}"):
        decode_subscribe(encode_subscribe(said, "id"))
    with pytest.raises(Rejected, match=f"epoch {epoch}"):
        decode_subscribe(encode_subscribe(replace(said, epoch=E5, epochs=((far, LogIndex(1)),)), "id"))
    with pytest.raises(Rejected, match=f"epoch {epoch}"):
        decode_acknowledge(
            encode_acknowledge(Acknowledge(ORDERS, far, BrokerId("B2"), Incarnation("i"), LogIndex(7)), "id")
        )
