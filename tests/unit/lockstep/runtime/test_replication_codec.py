"""Replication codec: what was encoded comes back, frames are joined, and garbage is refused."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.core.errors import Rejected
from lockstep.core.ids import (
    EPOCH_MAX,
    BrokerId,
    DiskId,
    Epoch,
    Incarnation,
    LogIndex,
    QueueId,
    SessionKey,
    SetName,
)
from lockstep.core.pieces import at_once
from lockstep.core.replication import (
    FRAMES_IN_ONE,
    HELD_IN_ONE,
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
from lockstep.runtime.handed_over_codec import (
    PARSED_BYTES,
    decode_handed_over,
    encode_handed_over,
    is_handed_over,
)
from lockstep.runtime.replication_codec import (
    decode_acknowledge,
    decode_long_to_backup,
    decode_subscribe,
    decode_to_backup,
    encode_acknowledge,
    encode_subscribe,
    encode_to_backup,
)
from lockstep.wire.v1 import primary_pb2
from tests.unit.lockstep.runtime.serialized import whole

ORDERS = SetName("orders")
E5 = Epoch(5)
numbers = st.integers(0, 2**63 - 1)
names = st.text(min_size=1, max_size=20)
epoch_tables = st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple)
items = st.builds(StateItem, st.binary(max_size=20), st.binary(max_size=20), st.booleans())


def held_parts(held: list[tuple[int, int, list[int]]]) -> tuple[HeldMessages, ...]:
    """As they come back: HELD_IN_ONE together."""
    rows = [(session, queue, position) for session, queue, some in held for position in some]
    parts = [HeldMessages() for _ in range(0, len(rows), HELD_IN_ONE)]
    for number, (session, queue, position) in enumerate(rows):
        parts[number // HELD_IN_ONE].add(SessionKey(session), QueueId(queue), [position])
    return tuple(parts)


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
                numbers,
            ),
            max_size=2,
        ).map(tuple),
        st.lists(st.tuples(numbers, numbers, st.lists(numbers, max_size=3)), max_size=2).map(held_parts),
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
    assert decode_to_backup(whole(data)) == message == at_once(decode_long_to_backup(whole(data)))


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


def test_small_frames_are_joined_to_as_many_as_a_backup_checks_in_one_step() -> None:
    some = frames(*[b"a"] * (FRAMES_IN_ONE - 1))
    encoded = list(encode_to_backup([some, some, some], 1 << 20))
    counts = [len(decode_to_backup(whole(data)).frames) for data in encoded]  # type: ignore[union-attr]
    assert counts == [FRAMES_IN_ONE, FRAMES_IN_ONE, FRAMES_IN_ONE - 3]


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
    with contextlib.suppress(Rejected):
        at_once(decode_long_to_backup(data))


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


MANY = 40 * HELD_IN_ONE


def long_word() -> HandedOver:
    """Of many transactions, and of many messages in hand: most of them of one session and queue."""
    opened = tuple(
        OpenProgress((LogIndex(number), E5), SessionKey(number), 7, ((SessionKey(number), 3),), 2, 100, 9)
        for number in range(1000)
    )
    held = [
        *((number, number + 1, [number << 40]) for number in range(MANY)),
        (5, 6, [number << 20 for number in range(MANY)]),
    ]
    return HandedOver(ORDERS, E5, BrokerId("B2"), LogIndex(8), opened, held_parts(held), True)


def test_a_long_word_is_encoded_and_decoded_in_many_steps_and_is_one_message() -> None:
    word = long_word()
    encoding = encode_handed_over(word)
    assert sum(1 for _ in encoding) >= 2 * MANY // HELD_IN_ONE
    data = whole(at_once(encode_handed_over(word)))
    assert is_handed_over(data) and decode_to_backup(data) == word
    assert sum(1 for _ in decode_handed_over(data)) >= len(data) // (2 * PARSED_BYTES)
    assert at_once(decode_handed_over(memoryview(data))) == word


def test_a_long_word_whose_parts_are_long_is_decoded_in_as_many_steps() -> None:
    """As whoever does not cut them says it."""
    positions = [number << 20 for number in range(MANY)]
    response = primary_pb2.SubscribeResponse(resource_set=ORDERS, epoch=E5)
    response.handed_over.to, response.handed_over.log_end = "B2", 8
    response.handed_over.held.add(session=5, queue=6, positions=positions)
    response.handed_over.held.add(session=7, queue=6, positions=[1])
    data = response.SerializeToString()
    held = held_parts([(5, 6, positions), (7, 6, [1])])
    word = HandedOver(ORDERS, E5, BrokerId("B2"), LogIndex(8), (), held)
    assert sum(1 for _ in decode_handed_over(data)) >= len(data) // (2 * PARSED_BYTES)
    assert at_once(decode_handed_over(data)) == word == decode_to_backup(data)


@given(st.integers(0, 200_000), st.binary(max_size=20), st.integers(0, 20))
def test_bytes_that_are_no_last_word_are_refused_or_are_one(place: int, others: bytes, dropped: int) -> None:
    data = LONG_WORD[:place] + others + LONG_WORD[place + dropped :]
    if is_handed_over(data):
        with contextlib.suppress(Rejected):
            assert at_once(decode_handed_over(data)).set_name is not None


def test_a_number_that_has_no_end_is_refused_in_a_short_step() -> None:
    response = primary_pb2.SubscribeResponse(resource_set=ORDERS, epoch=E5)
    response.handed_over.held.add(positions=[1] * (6 << 20))
    data = response.SerializeToString().replace(b"\1" * 100, b"\xff" * 100)
    assert is_handed_over(data)
    steps, longest, is_refused = decode_handed_over(data), 0.0, False
    while not is_refused:
        begun = time.thread_time()
        try:
            next(steps)
        except Rejected:
            is_refused = True
        longest = max(longest, time.thread_time() - begun)
    assert longest < 0.05


LONG_WORD = whole(at_once(encode_handed_over(long_word())))


@pytest.mark.parametrize(
    "message", [Frames(ORDERS, E5, ((b"a" * 20_000, b""),), LogIndex(3)), SnapshotChunk(ORDERS, E5, (), True)]
)
def test_other_messages_are_no_last_words(message: ToBackup) -> None:
    (data,) = encode_to_backup([message], 1 << 20)
    assert not is_handed_over(whole(data))
