"""What is seen of a client's frames on their way to the engine."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.proxy.begun_room import LONG_FACTOR, SHORT_BYTES
from services.proxy.client_frames import TOLD_AT_ONCE, ClientFrames
from services.proxy.core.addresses import has_control_characters
from tests.amqp import codec
from tests.amqp.codec import composite, performative
from tests.amqp.raw_client import attach_coordinator, attach_receiver, attach_sender, begin, credit

FRAME_BYTES_MAX = 4_096
EMPTY = codec.frame(b"")
TXN = codec.mapping(codec.symbol("txn-id"), codec.binary(b"1"))
OPEN = performative("open", container_id="c", hostname="h")
TRANSFER = performative(
    "transfer", 0, codec.message(b"\0" * 40), handle=0, delivery_id=0, delivery_tag=codec.binary(b"\0")
)


def new_frames(
    sent: int = 1 << 20, held: int = 1_000, frame_bytes_max: int = FRAME_BYTES_MAX
) -> ClientFrames:
    """Of a client that got so many deliveries, and has not settled so many of them."""
    return ClientFrames(frame_bytes_max, lambda: sent, lambda: held)


def parts_of(frames: ClientFrames, data: bytes) -> list[bytes]:
    """What the engine gets of it, look by look."""
    parts = []
    while data:
        parts.append(frames.look(data))
        data = frames.take_rest()
    return parts


def look(*pieces: bytes) -> tuple[bytes, list[str]]:
    """What the engine gets of these, behind the header, and who acquires in a transaction."""
    frames = new_frames()
    given = b"".join(part for piece in (codec.AMQP_HEADER, *pieces) for part in parts_of(frames, piece))
    assert given.startswith(codec.AMQP_HEADER)
    return given[len(codec.AMQP_HEADER) :], frames.take_acquiring()


def presettled(name: str, handle: int = 0, channel: int = 0) -> bytes:
    return attach_receiver(name, "q", handle, channel, snd_settle_mode=codec.ubyte(1))


PLAIN = [
    OPEN,
    begin(),
    attach_sender("s", "queue"),
    attach_sender("s", None),
    attach_receiver("r", "queue", 1),
    attach_coordinator(),
    credit(0, 10),
    credit(0, 10, properties=TXN),
    presettled("p"),
    TRANSFER,
    EMPTY,
    performative("disposition", role=True, first=0, settled=True),
    performative("detach", handle=0, closed=True),
    performative("close"),
    codec.frame(composite("open", descriptor=codec.symbolic("open"), container_id="c")),
    codec.frame(composite("attach", descriptor=b"\x80" + bytes(7) + b"\x12", name="n", handle=0)),
    codec.frame(composite("flow"), doff=3, extended=bytes(4)),
]


@given(st.lists(st.sampled_from(PLAIN), max_size=8), st.data())
def test_engine_gets_what_came_however_it_was_cut(frames: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[one:two] for one, two in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert look(*pieces)[0] == whole


def bytes_of(data: bytes) -> Iterator[bytes]:
    for place in range(len(data)):
        yield data[place : place + 1]


@pytest.mark.parametrize("frame", PLAIN)
def test_a_frame_is_with_the_engine_when_its_last_byte_has_come(frame: bytes) -> None:
    assert look(*bytes_of(OPEN + frame))[0] == OPEN + frame


@given(st.binary(max_size=200))
def test_whatever_comes_the_engine_decides_what_is_wrong_with_it(data: bytes) -> None:
    given, _ = look(OPEN, data)
    assert (OPEN + data).startswith(given)


@given(st.binary(max_size=60))
def test_nothing_raises_of_what_a_looked_at_frame_has(body: bytes) -> None:
    for code in (0x10, 0x12, 0x13):
        for size, count in ((b"", b""), (bytes((len(body) + 1,)), b"\0"), (bytes((len(body) + 1,)), b"\1")):
            frame = codec.frame(b"\x00\x53" + bytes((code,)) + b"\xc0" + size + count + body + b"txn-id")
            assert len(look(frame)[0]) == len(frame)


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (performative("open", container_id="a\0b"), performative("open", container_id="a\1b")),
        (attach_sender("a\0b", "q"), attach_sender("a\1b", "q")),
        (attach_sender("s", "a\0b\0"), attach_sender("s", "a\1b\1")),
        (attach_receiver("r", "\0" * 300), attach_receiver("r", "\1" * 300)),
        (
            codec.frame(composite("attach", descriptor=codec.symbolic("attach"), name="\0", handle=0)),
            codec.frame(composite("attach", descriptor=codec.symbolic("attach"), name="\1", handle=0)),
        ),
        (
            codec.frame(composite("open", container_id="\0"), doff=3, extended=bytes(4)),
            codec.frame(composite("open", container_id="\1"), doff=3, extended=bytes(4)),
        ),
    ],
)
def test_nul_in_a_name_or_address_becomes_another_control_character(frame: bytes, expected: bytes) -> None:
    before, behind = OPEN + begin() + TRANSFER, TRANSFER + begin()
    assert look(before + frame + behind)[0] == before + expected + behind
    assert look(*bytes_of(before + frame + behind))[0] == before + expected + behind
    assert has_control_characters("a\0b") and has_control_characters("a\1b")


def test_a_presettled_receiver_that_acquires_in_a_transaction_is_named() -> None:
    assert look(presettled("p", 3, 1), credit(3, 1, channel=1, properties=TXN))[1] == ["p"]
    assert look(presettled("p", 3, 1) + credit(3, 1, channel=1, properties=TXN) + TRANSFER)[1] == ["p"]
    assert look(*bytes_of(presettled("p") + credit(0, 1, properties=TXN)))[1] == ["p"]


@pytest.mark.parametrize(
    "frames",
    [
        [presettled("p"), credit(0, 1)],
        [presettled("p"), credit(1, 1, properties=TXN)],
        [presettled("p"), credit(0, 1, channel=1, properties=TXN)],
        [presettled("p"), credit(0, 1, properties=codec.mapping(codec.symbol("x"), codec.string("txn-id")))],
        [presettled("p"), credit(0, 1, properties=codec.mapping(codec.symbol("txn-id"), codec.NULL))],
        [presettled("p"), attach_receiver("r", "q"), credit(0, 1, properties=TXN)],
        [attach_sender("s", "q", snd_settle_mode=codec.ubyte(1)), credit(0, 1, properties=TXN)],
        [attach_receiver("r", "q", snd_settle_mode=codec.ubyte(2)), credit(0, 1, properties=TXN)],
    ],
)
def test_nobody_else_is_named(frames: list[bytes]) -> None:
    assert look(*frames)[1] == []


def test_it_holds_back_no_more_than_a_frame_may_have() -> None:
    large = codec.frame(composite("attach"), size=FRAME_BYTES_MAX + 1)
    assert look(large)[0] == large
    assert look(large[:8])[0] == large[:8]


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        (credit(0, 0, drain=True), True),
        (credit(0, 0, drain=b"\x56\x01"), True),
        (credit(0, 0, drain=True, link_credit=b"\x70\0\0\0\0"), True),
        (credit(0, 1, drain=True), False),
        (credit(0, 0, drain=False), False),
        (credit(0, 0, echo=True), False),
    ],
)
def test_a_drain_of_no_credit_is_told_once(flow: bytes, expected: bool) -> None:
    frames = new_frames()
    frames.look(codec.AMQP_HEADER + OPEN)
    frames.look(flow + TRANSFER)
    assert frames.take_drain() is expected
    assert not frames.take_drain()


def test_what_came_before_a_drain_is_given_before_it() -> None:
    """Else the engine tells of that when it knows of the drain already."""
    drain = credit(0, 1, drain=True)
    data = OPEN + TRANSFER + credit(0, 1) + drain + TRANSFER + drain + drain
    frames = new_frames()
    frames.look(codec.AMQP_HEADER)
    given = [(frames.look(data), frames.has_drain)]
    while frames.rest:
        frames.take_drain()
        given.append((frames.look(frames.take_rest()), frames.has_drain))
    before = OPEN + TRANSFER + credit(0, 1), False
    assert given == [before, (drain + TRANSFER, True), (drain, True), (drain, True)]


@given(st.integers(1, 400), st.integers(1, 2_000))
def test_a_look_takes_some_attaches_and_leaves_the_rest_in_order(count: int, size: int) -> None:
    data = b"".join(attach_receiver(f"r{number}", "q\0", number) + TRANSFER for number in range(count))
    frames = new_frames()
    frames.look(codec.AMQP_HEADER)
    parts = [part for at in range(0, len(data), size) for part in parts_of(frames, data[at : at + size])]
    assert b"".join(parts) == data.replace(b"q\0", b"q\1")
    assert max(part.count(b"q\1") for part in parts) <= 16


def test_transfers_and_outcomes_are_looked_at_in_one_go() -> None:
    said = performative("disposition", role=True, first=0, settled=True) + credit(0, 10)
    frames = new_frames()
    frames.look(codec.AMQP_HEADER)
    assert frames.look((TRANSFER + said) * 1_000) == (TRANSFER + said) * 1_000
    assert not frames.take_rest()


def detach(handle: int, channel: int = 0) -> bytes:
    return performative("detach", channel, handle=handle)


END, OTHER_END = performative("end"), performative("end", 1)
SYMBOLIC_DETACH = codec.frame(composite("detach", descriptor=codec.symbolic("detach"), handle=7))
SYMBOLIC_END = codec.frame(composite("end", descriptor=codec.symbolic("end")))
BOTH = attach_sender("s", "q", 7) + attach_receiver("r", "q", 300)


@pytest.mark.parametrize(
    ("before", "detached"),
    [
        (b"", []),
        (BOTH, [7, 300]),
        (BOTH + detach(7), [300]),
        (BOTH + SYMBOLIC_DETACH, [300]),
        (BOTH + detach(7) + attach_sender("s", "q", 7), [300, 7]),
        (BOTH + detach(7, 1) + detach(8) + OTHER_END, [7, 300]),
        (BOTH + detach(7) + detach(300), []),
        (attach_sender("s", "q", 7, 1), []),
        (b"".join(attach_sender("s", "q", number) for number in range(1_000)), list(range(1_000))),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("end", [END, SYMBOLIC_END], ids=["end", "symbolic end"])
def test_the_end_of_a_session_detaches_its_links_before(
    before: bytes, detached: list[int], end: bytes
) -> None:
    behind = end + TRANSFER + begin()
    for pieces in ([before + behind], [before, *bytes_of(behind)]):
        given = look(*pieces)[0]
        assert (given[: len(before)], given[-len(behind) :]) == (before, behind)
        said = list(codec.frames(given[len(before) : -len(behind)]))
        assert [(one.name, one.channel, one["handle"], one["closed"]) for one in said] == [
            ("detach", 0, handle, None) for handle in detached
        ]


def test_the_links_of_a_session_are_detached_once() -> None:
    assert look(BOTH + END + END)[0].endswith(END + END)
    assert look(BOTH + END + END)[0].count(END) == 2


@pytest.mark.parametrize(
    ("frames", "is_lost"),
    [
        (BOTH, False),
        (BOTH + detach(7) + attach_sender("s", "q", 7) + attach_sender("s", "q", 7, 1), False),
        (BOTH + END + BOTH, False),
        (BOTH + attach_sender("another", "q", 7), True),
        (performative("attach", name="s"), True),
        (performative("attach", name="s", handle=codec.ulong(7)), True),
        (codec.frame(b"\x00\x53\x12\xc0\x05\x09\xa1\x01s\x52"), True),
    ],
)
def test_an_attach_without_a_handle_of_its_own_is_noticed(frames: bytes, is_lost: bool) -> None:
    seen = new_frames()
    parts_of(seen, codec.AMQP_HEADER + frames)
    assert seen.has_lost_handle is is_lost


def disposition(first: int, last: int, descriptor: bytes | None = None, *, role: bool = True) -> bytes:
    given = {"role": role, "first": first, "last": last, "settled": True, "state": composite("accepted")}
    return codec.frame(composite("disposition", descriptor=descriptor, **given), 3)


def dispositions(data: bytes) -> Iterator[tuple[int, list[Any]]]:
    """Channel and fields of each, however it is described; of the state its name."""
    while data:
        size = int.from_bytes(data[:4], "big")
        described, _ = codec.decode(data[8:size])
        *fields, state = described.value
        yield int.from_bytes(data[6:8], "big"), [*fields, codec.named(state).name]
        data = data[size:]


SYMBOLIC, LONG = codec.symbolic("disposition"), b"\x80" + bytes(7) + b"\x15"
SERIALS = 1 << 32


@pytest.mark.parametrize("descriptor", [None, SYMBOLIC, LONG], ids=["short", "symbolic", "long"])
@pytest.mark.parametrize("first", [0, 1, 300, SERIALS - TOLD_AT_ONCE - 1])
@pytest.mark.parametrize("is_in_pieces", [False, True])
def test_an_outcome_of_very_many_deliveries_is_heard_of_some_at_a_time(
    descriptor: bytes | None, first: int, is_in_pieces: bool
) -> None:
    count = 4 * TOLD_AT_ONCE + 7
    data = TRANSFER + disposition(first, (first + count - 1) % SERIALS, descriptor) + TRANSFER + EMPTY
    frames = new_frames()
    frames.look(codec.AMQP_HEADER)
    pieces = bytes_of(data) if is_in_pieces else [data]
    parts = [part for piece in pieces for part in parts_of(frames, piece)]
    whole = b"".join(parts)
    assert whole.startswith(TRANSFER) and whole.endswith(TRANSFER + EMPTY)
    said = list(dispositions(whole[len(TRANSFER) : -len(TRANSFER + EMPTY)]))
    assert {(channel, role, *others) for channel, (role, _, _, *others) in said} == {
        (3, True, True, "accepted")
    }
    numbers = [
        [(begin + place) % SERIALS for place in range((end - begin) % SERIALS + 1)]
        for _, (_, begin, end, *_) in said
    ]
    assert list(chain(*numbers)) == [(first + place) % SERIALS for place in range(count)]
    assert max(map(len, numbers)) == TOLD_AT_ONCE
    assert len([part for part in parts if part]) >= len(said), "each by itself"


@pytest.mark.parametrize(
    "said",
    [
        disposition(5, 5 + TOLD_AT_ONCE - 1),
        disposition(300, 300 + TOLD_AT_ONCE - 1),
        disposition(5_000, 4_000),
        disposition(0, SERIALS - 1),
        disposition(0, 5_000, role=False),
        performative("disposition", role=True, first=70_000, settled=True),
        performative("disposition", role=True, first=0, last=codec.ulong(5_000)),
        performative("disposition", role=True),
    ],
    ids=range(8),
)
def test_other_outcomes_are_left_as_they_are(said: bytes) -> None:
    assert look(OPEN + said + TRANSFER)[0] == OPEN + said + TRANSFER


def test_nobody_is_told_of_deliveries_that_were_never_sent() -> None:
    frames = new_frames(3 * TOLD_AT_ONCE)
    frames.look(codec.AMQP_HEADER)
    said = list(codec.frames(b"".join(parts_of(frames, disposition(0, SERIALS // 2 - 1)))))
    assert (len(said), said[-1]["last"]) == (4, 3 * TOLD_AT_ONCE)


def said_of(state: bytes, first: int = 0, last: int | None = None, **fields: Any) -> bytes:
    return performative("disposition", role=True, first=first, last=last, state=state, **fields)


MANY_VALUES = codec.sequence(*[codec.NULL] * 500)
FEW_VALUES = codec.string("x" * 2_000)


@pytest.mark.parametrize("said", [MANY_VALUES, codec.string("x" * 10_000)], ids=["values", "bytes"])
def test_of_a_long_state_the_engine_hears_the_outcome_and_its_transaction(said: bytes) -> None:
    annotations = codec.mapping(codec.symbol("x-opt"), said)
    modified = composite(
        "modified", delivery_failed=True, undeliverable_here=True, message_annotations=annotations
    )
    inside = composite("transactional_state", txn_id=codec.binary(b"12345678"), outcome=modified)
    long_id = composite("transactional_state", txn_id=codec.binary(b"1" * 10_000), outcome=modified)
    short = composite("modified", delivery_failed=True, undeliverable_here=True)
    expected = [
        short,
        composite("rejected"),
        composite("transactional_state", txn_id=codec.binary(b"12345678"), outcome=short),
        composite("transactional_state"),
    ]
    states = [modified, composite("rejected", error=composite("error", description=said)), inside, long_id]
    frames = new_frames(1, frame_bytes_max=1 << 20)
    frames.look(codec.AMQP_HEADER)
    for state, wanted in zip(states, expected, strict=True):
        (frame,) = codec.frames(b"".join(parts_of(frames, said_of(state, settled=True))))
        assert (frame["first"], frame["settled"]) == (0, True)
        assert repr(frame["state"]) == repr(codec.decode(wanted)[0]), "and no more"


def state_heard(state: bytes, held: int) -> bytes:
    """Of a state that a client says that has not settled so many, what the engine hears."""
    frames = new_frames(1, held, 1 << 20)
    frames.look(codec.AMQP_HEADER)
    said, plain = said_of(state), said_of(codec.NULL)
    heard = b"".join(parts_of(frames, said))
    return state if heard == said else heard[len(plain) - 1 :] if heard != plain else codec.NULL


def pairs(count: int, value: bytes) -> bytes:
    return codec.mapping(*[one for n in range(count) for one in (codec.symbol(f"x-opt-{n:03}"), value)])


@pytest.mark.parametrize(
    "annotations",
    [
        pairs(100, codec.string("some text")),
        codec.mapping(codec.symbol("x-opt"), codec.string("x" * 4_000)),
        codec.mapping(codec.symbol("x-opt"), b"\xe0\x62\x30\xa3" + b"\x01k" * 48),
    ],
    ids=["many", "long", "array"],
)
@pytest.mark.parametrize("is_inside", [False, True])
def test_annotations_that_a_broker_keeps_are_heard(annotations: bytes, is_inside: bool) -> None:
    state = composite("modified", message_annotations=annotations)
    if is_inside:
        state = composite("transactional_state", txn_id=codec.binary(b"1"), outcome=state)
    assert state_heard(state, 500) == state
    assert state_heard(state, 300_000) != state, "of so many the engine would keep copies"


@pytest.mark.parametrize(
    "array",
    [b"\xe0\x06\xff\x40" + bytes(4), b"\xf0\x00\x00\x00\x05\x7f\xff\xff\xff\x40"],
    ids=["short", "long"],
)
def test_an_array_of_very_many_values_without_a_byte_is_not_heard(array: bytes) -> None:
    pad = codec.string("x" * 200)
    state = composite("modified", message_annotations=codec.mapping(codec.symbol("x-opt"), array, pad, array))
    assert state_heard(state, 1) != state


def test_a_state_in_a_state_in_a_state_is_malformed_and_no_error_of_ours() -> None:
    state = composite("accepted")
    for _ in range(5_000):
        state = composite("transactional_state", txn_id=codec.binary(b"1"), outcome=state)
    frames = new_frames(1, frame_bytes_max=1 << 20)
    frames.look(codec.AMQP_HEADER)
    (frame,) = codec.frames(b"".join(parts_of(frames, said_of(state))))
    assert len(repr(frame["state"])) < 300


def test_annotations_that_a_broker_keeps_are_heard_of_some_deliveries_at_a_time() -> None:
    annotations = codec.mapping(codec.symbol("x-opt"), FEW_VALUES)
    frame = said_of(composite("modified", message_annotations=annotations), 0, 999, settled=True)
    frames = new_frames()
    frames.look(codec.AMQP_HEADER)
    parts = parts_of(frames, frame)
    numbers = [(one["first"], one["last"]) for part in parts for one in codec.frames(part)]
    assert [first for first, _ in numbers[1:]] == [last + 1 for _, last in numbers[:-1]]
    assert numbers[0][0] == 0 and numbers[-1][1] == 999
    assert all((last - first + 1) * len(frame) <= TOLD_AT_ONCE * 256 for first, last in numbers)
    assert len(set(map(repr, (one["state"] for part in parts for one in codec.frames(part))))) == 1


@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_a_long_state_that_is_cut_short_is_the_engine_s_business(cut: int) -> None:
    """Its frame says that it is all of it."""
    whole = said_of(composite("rejected", error=composite("error", description=FEW_VALUES)), 0, 3)
    frame = (len(whole) - cut).to_bytes(4, "big") + whole[4:-cut]
    frames = new_frames()
    frames.look(codec.AMQP_HEADER)
    assert b"".join(parts_of(frames, frame)) == frame


def test_what_an_open_says_counts_too() -> None:
    frames = new_frames()
    said = performative(
        "open", container_id="c", properties=codec.mapping(codec.symbol("k"), codec.string("x" * 3_000))
    )
    parts_of(frames, codec.AMQP_HEADER + said)
    assert frames.begun_bytes == LONG_FACTOR * (len(said) - SHORT_BYTES)


def transfer(state: bytes | None = None, tag: bytes = b"tag", payload: bytes = b"", **fields: Any) -> bytes:
    if state is not None:
        fields["state"] = state
    return performative(
        "transfer", 0, payload, handle=0, delivery_id=7, delivery_tag=codec.binary(tag), more=False, **fields
    )


INSIDE = composite("transactional_state", txn_id=codec.binary(b"12345678"))
CUT = {
    "values": (
        composite(
            "transactional_state",
            txn_id=codec.binary(b"12345678"),
            outcome=composite("rejected", error=composite("error", description=MANY_VALUES)),
        ),
        composite("transactional_state", txn_id=codec.binary(b"12345678"), outcome=composite("rejected")),
    ),
    "bytes": (
        composite(
            "modified",
            delivery_failed=True,
            undeliverable_here=False,
            message_annotations=codec.mapping(codec.symbol("x-opt"), FEW_VALUES),
        ),
        composite("modified", delivery_failed=True, undeliverable_here=False),
    ),
    "a long id": (
        composite("transactional_state", txn_id=codec.binary(b"1" * 100)),
        composite("transactional_state"),
    ),
    "no list": (codec.described(codec.ulong(0x34), FEW_VALUES), composite("transactional_state")),
    "some values": (
        composite("rejected", error=composite("error", description=codec.sequence(*[codec.NULL] * 60))),
        composite("rejected"),
    ),
    "no state": (FEW_VALUES, codec.NULL),
    "too many values": (
        b"\x00\x53\x27\xd0\x00\x00\x01\x04\xff\xff\xff\xff" + 256 * codec.NULL,
        composite("modified"),
    ),
    "an unreadable value": (
        b"\x00\x53\x34\xd0\x00\x00\x01\x04\x00\x00\x00\x01" + 256 * b"\x3f",
        composite("transactional_state"),
    ),
}


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("payload", [b"", b"\0x" * 4_000], ids=["", "payload"])
def test_of_a_long_state_in_a_transfer_the_engine_hears_the_outcome_and_its_transaction(
    name: str, payload: bytes
) -> None:
    state, wanted = CUT[name]
    frames = new_frames(frame_bytes_max=1 << 20)
    frames.look(codec.AMQP_HEADER)
    whole = transfer(state, payload=payload, aborted=True)
    (frame,) = codec.frames(b"".join(parts_of(frames, whole)))
    assert repr(frame["state"]) == repr(codec.decode(wanted)[0]), "and no more"
    assert (frame["delivery_id"], frame["delivery_tag"], frame["more"]) == (7, b"tag", False)
    assert frame["aborted"] is True and frame.payload == payload


@pytest.mark.parametrize("state", [None, INSIDE], ids=["", "transaction"])
@pytest.mark.parametrize("size", [64, 300])
def test_of_a_long_tag_the_engine_hears_its_beginning(size: int, state: bytes | None) -> None:
    frames = new_frames()
    frames.look(codec.AMQP_HEADER)
    whole = transfer(state, tag=b"t" * size, payload=b"payload")
    (frame,) = codec.frames(b"".join(parts_of(frames, whole + EMPTY))[: -len(EMPTY)])
    assert frame.payload == b"payload" and repr(frame["state"]) == repr(state and codec.decode(state)[0])
    assert frame["delivery_tag"] == b"t" * 32


def test_a_long_state_behind_an_extended_header_is_found() -> None:
    """Which may look like the beginning of a short transfer."""
    state, wanted = CUT["values"]
    frames = new_frames(frame_bytes_max=1 << 20)
    frames.look(codec.AMQP_HEADER)
    whole = codec.frame(transfer(state)[8:], doff=3, extended=b"\x00\x53\x14\xc0")
    (frame,) = codec.frames(b"".join(parts_of(frames, whole)))
    assert repr(frame["state"]) == repr(codec.decode(wanted)[0])


LONG_LIST = transfer(INSIDE, payload=b"x" * 500)
LONG_LIST = codec.frame(
    LONG_LIST[8:11]
    + b"\xd0"
    + (LONG_LIST[12] + 3).to_bytes(4, "big")
    + LONG_LIST[13].to_bytes(4, "big")
    + LONG_LIST[14:]
)


@pytest.mark.parametrize(
    "whole",
    [
        TRANSFER,
        transfer(INSIDE, payload=b"x" * 500),
        transfer(INSIDE, tag=b"t" * 32, payload=b"x" * 500),
        LONG_LIST,
        transfer(composite("accepted")),
    ],
    ids=range(5),
)
def test_ordinary_transfers_pass_as_they_are(whole: bytes) -> None:
    for cut in range(len(whole) + 1):
        frames = new_frames()
        frames.look(codec.AMQP_HEADER)
        given = [part for piece in (whole[:cut], whole[cut:]) for part in parts_of(frames, piece)]
        assert b"".join(given) == whole


@pytest.mark.parametrize(
    "whole", [transfer(INSIDE, payload=b"x" * 500), LONG_LIST], ids=["short list", "long list"]
)
def test_ordinary_transfers_pass_before_all_of_them_is_there(whole: bytes) -> None:
    assert len(look(whole[:100])[0]) == 100


def test_of_a_sender_s_state_the_engine_hears_no_more_than_counts() -> None:
    """It would keep it for each transfer that is not answered; nobody reads it."""
    said, wanted = CUT["bytes"]
    frames = new_frames(held=0)
    frames.look(codec.AMQP_HEADER)
    whole = performative("disposition", role=False, first=0, last=3, settled=True, state=said)
    (frame,) = codec.frames(b"".join(parts_of(frames, whole)))
    assert repr(frame["state"]) == repr(codec.decode(wanted)[0])
    assert (frame["role"], frame["first"], frame["last"], frame["settled"]) == (False, 0, 3, True)


def test_a_frame_shorter_than_its_header_does_not_pass_though_it_begins_as_an_ordinary_transfer() -> None:
    """By one of no byte nobody would ever come."""
    frame = b"\0\0\0\x07\x02\0\0\0\x00\x53\x14\xc0\x01\0"
    assert look(OPEN, frame)[0] == OPEN + frame


def test_a_long_state_is_found_however_its_frame_is_cut() -> None:
    state, wanted = CUT["values"]
    whole = transfer(state)
    for cut in range(len(whole)):
        frames = new_frames(frame_bytes_max=1 << 20)
        frames.look(codec.AMQP_HEADER)
        parts = [part for piece in (whole[:cut], whole[cut:]) for part in parts_of(frames, piece)]
        (frame,) = codec.frames(b"".join(parts))
        assert repr(frame["state"]) == repr(codec.decode(wanted)[0])


def test_a_transfer_without_a_tag_stays_one() -> None:
    frames = new_frames()
    frames.look(codec.AMQP_HEADER)
    whole = performative("transfer", 0, b"", handle=0, more=False, state=CUT["values"][0])
    (frame,) = codec.frames(b"".join(parts_of(frames, whole)))
    assert frame["delivery_tag"] is None


def test_many_transfers_with_long_fields_are_looked_at_in_one_go() -> None:
    fields: dict[str, Any] = dict.fromkeys(("settled", "resume", "aborted", "batchable"), False)
    one = transfer(INSIDE, tag=b"t" * 32, message_format=1 << 20, rcv_settle_mode=codec.ubyte(0), **fields)
    assert one[11] == 0xC0 and one[12] > 64, "they are looked at"
    frames = new_frames()
    frames.look(codec.AMQP_HEADER)
    assert frames.look(100 * one) == 100 * one and not frames.take_rest()


def test_a_sender_s_state_of_no_known_kind_that_gets_no_shorter_is_looked_at_once() -> None:
    state = codec.described(codec.symbol("x" * 60), codec.sequence())
    said = performative("disposition", role=False, first=0, last=3, settled=True, state=state)
    padded = said[:8] + b"\x00\xb3" + (21).to_bytes(4, "big") + b"amqp:disposition:list" + said[11:]
    frame = len(padded).to_bytes(4, "big") + padded[4:]
    assert len(frame) > 96
    assert look(frame)[0] == frame
