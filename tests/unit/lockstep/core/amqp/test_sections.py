"""An AMQP message is kept as it was encoded, and delivered as it was kept; Proton is the second opinion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Message

from lockstep.core.amqp.sections import (
    BODY_SECTIONS_MAX,
    EMPTY_HEADER,
    HeaderFields,
    Incoming,
    address_of,
    header_of,
    join,
    split,
    split_parts,
    time_to_live,
)
from lockstep.core.errors import ErrorCode, Rejected
from tests.unit.lockstep.core.amqp.amqp_messages import DATA, decoded, encoded, plain, proton_messages

NOTES = "005372c10601a301784101"  # not well-formed inside, which nobody looks at
PROPERTIES = "005373c00a03a1026d3140a1026f6b"
APPLICATION_PROPERTIES = "005374c10702a10161a10162"


def deliver(incoming: Incoming, *, delivery_count: int = 0, expires_ms: int = 0, now_ms: int = 0) -> bytes:
    return join(
        incoming.properties,
        incoming.body,
        delivery_count=delivery_count,
        expires_ms=expires_ms,
        is_durable=incoming.is_durable,
        now_ms=now_ms,
    )


def assert_refused(raw: bytes) -> Rejected:
    with pytest.raises(Rejected) as caught:
        split(raw)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    return caught.value


@pytest.mark.parametrize(
    ("body", "opening", "payload"),
    [
        ("005375a0026869", "005375a002", b"hi"),
        ("005375b0000000026869", "005375b000000002", b"hi"),
        ("005377a1026869", "005377a102", b"hi"),
        ("005377b1000000026869", "005377b100000002", b"hi"),
        ("005377a0026869", "005377a002", b"hi"),
        ("005377b0000000026869", "005377b000000002", b"hi"),
        ("005375a000", "005375a000", b""),
        ("00800000000000000075a0026869", "00800000000000000075a002", b"hi"),
        (
            "00a310" + b"amqp:data:binary".hex() + "a0026869",
            "00a310" + b"amqp:data:binary".hex() + "a002",
            b"hi",
        ),
    ],
)
def test_a_bare_body_is_the_payload_and_its_prefix_ends_the_properties(
    body: str, opening: str, payload: bytes
) -> None:
    middle = NOTES + PROPERTIES + APPLICATION_PROPERTIES
    incoming = split(bytes.fromhex("00537045" + middle + body))
    assert incoming == Incoming(bytes.fromhex("00537045" + middle + opening), payload, False, 0)


@pytest.mark.parametrize(
    "body",
    [
        "005377a3026869",  # a symbol is no text
        "00537740",
        "0053775403",
        "00537745",
        "005377c10100",
        "00537700a3017841",  # a described value
        "005376450053764500537645",
        "005375a00161005375a00162",
        "005375a00161005378c10100",  # a footer
        "005377a00161005378c10100",
        "005378c10100",
        "",
    ],
)
def test_any_other_body_is_kept_with_its_sections(body: str) -> None:
    incoming = split(bytes.fromhex("00537045" + PROPERTIES + body))
    assert incoming == Incoming(bytes.fromhex("00537045" + PROPERTIES), bytes.fromhex(body), False, 0)


def test_a_message_without_header_is_kept_with_one() -> None:
    assert split(DATA) == Incoming(EMPTY_HEADER + DATA[:5], b"hi", False, 0)


def test_delivery_annotations_are_dropped() -> None:
    assert split(bytes.fromhex("00537045005371c10100") + DATA).properties == EMPTY_HEADER + DATA[:5]
    assert split(bytes.fromhex("005371c10100" + NOTES) + DATA).properties == (
        EMPTY_HEADER + bytes.fromhex(NOTES) + DATA[:5]
    )


@pytest.mark.parametrize(
    ("header", "kept", "is_durable", "ttl_ms", "priority"),
    [
        ("00537045", "00537045", False, 0, 4),
        ("005370c00100", "00537045", False, 0, 4),
        ("005370c0020142", "00537045", False, 0, 4),
        ("005370c0020141", "005370c0020141", True, 0, 4),
        ("005370c003015601", "005370c0020141", True, 0, 4),
        ("005370d0000000050000000141", "005370c0020141", True, 0, 4),
        ("005370c00402405007", "005370c00402405007", False, 0, 7),
        ("005370c00402415007", "005370c00402415007", True, 0, 7),
        ("005370c0080340407000000bb8", "00537045", False, 3000, 4),
        ("005370c0050340405205", "00537045", False, 5, 4),
        ("005370c006054140434143", "005370c0020141", True, 0, 4),
        ("005370c007054140404152ff", "005370c0020141", True, 0, 4),
        ("00800000000000000070c0020141", "005370c0020141", True, 0, 4),
        ("00a310" + b"amqp:header:list".hex() + "c0020141", "005370c0020141", True, 0, 4),
        ("00b300000010" + b"amqp:header:list".hex() + "c0020141", "005370c0020141", True, 0, 4),
        ("005370c00402405000", "005370c00402405000", False, 0, 0),
        ("005370c00402405004", "005370c00402405004", False, 0, 4),
        ("005370c004024050ff", "005370c004024050ff", False, 0, 9),
        ("005370d0000000070000000240500a", "005370c0040240500a", False, 0, 9),
        ("005370d00000000f000000055601500170000003e84143", "005370c00402415001", True, 1000, 1),
        ("005370c00705405009404043", "005370c00402405009", False, 0, 9),
    ],
)
def test_of_a_header_durable_and_priority_are_kept(
    header: str, kept: str, is_durable: bool, ttl_ms: int, priority: int
) -> None:
    for _ in range(2):  # the second one is a look into the cache
        incoming = split(bytes.fromhex(header) + DATA)
        expected = bytes.fromhex(kept) + DATA[:5], b"hi", is_durable, ttl_ms, 0, priority
        assert incoming == Incoming(*expected)


_NULLS = "40" * 8


@pytest.mark.parametrize(
    ("properties", "expiry_ms"),
    [
        ("", 0),
        ("45", 0),
        ("c00201" + "40", 0),
        # A message id with the byte of a timestamp.
        ("c00502" + "a0018340", 0),
        ("c01209" + _NULLS + "83" + "00" * 8, 0),
        ("c01209" + _NULLS + "83" + "ff" * 8, 0),
        ("c01209" + _NULLS + "83" + "0000018bcfe56801", 0x18BCFE56801),
        ("d00000001500000009" + _NULLS + "83" + "0000018bcfe56801", 0x18BCFE56801),
        # A creation time alone.
        ("c0130a" + _NULLS + "40" + "83" + "0000018bcfe56801", 0),
        ("c01b0a" + _NULLS + ("83" + "0000018bcfe56801") + ("83" + "0000018bcfe56800"), 0x18BCFE56801),
        ("c0130a" + _NULLS + ("83" + "0000018bcfe56801") + "40", 0x18BCFE56801),
        # Neither, where a message id is a timestamp's byte.
        ("c00c0a" + "5383" + "40" * 9, 0),
        # Fields before it that are not null: a string, a described one.
        ("c01809" + "a1026869" + "40" * 6 + "00534041" + "83" + "0000018bcfe56801", 0x18BCFE56801),
    ],
)
def test_when_a_message_expires_is_found_in_its_properties(properties: str, expiry_ms: int) -> None:
    section = bytes.fromhex("005373" + properties) if properties else b""
    incoming = split(EMPTY_HEADER + section + DATA)
    assert incoming.absolute_expiry_ms == expiry_ms
    assert incoming.properties == EMPTY_HEADER + section + DATA[:5]


def test_when_a_message_expires_is_found_as_a_client_writes_it() -> None:
    raw = encoded(Message(id="m", address="a", correlation_id=7, expiry_time=1_700_000_000.5, body=None))
    assert split(raw).absolute_expiry_ms == 1_700_000_000_500


@pytest.mark.parametrize(
    ("ttl_ms", "absolute_expiry_ms", "lives_ms"),
    [
        (0, 1_500, 500),
        (400, 1_500, 400),
        (600, 1_500, 500),
        (600, 1_000, 1),
        (0, 1, 1),
        (600, 1 << 62, 600),
        (0, 1 << 62, 0),
    ],
)
def test_a_message_lives_until_the_earlier_of_its_ends(
    ttl_ms: int, absolute_expiry_ms: int, lives_ms: int
) -> None:
    assert time_to_live(Incoming(b"", b"", True, ttl_ms, absolute_expiry_ms), now_ms=1_000) == lives_ms


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("", "no section"),
        ("00", "no value"),
        ("0053", "cut off"),
        ("005370", "another type"),
        ("005379a000", "no section"),
        ("00536fa000", "no section"),
        ("6869", "no section"),
        ("0000005375a000", "no value"),
        ("000053755375a000", "no section"),
        ("00" * 40 + "5375a000", "too many descriptors"),
        ("00a30961", "cut off"),
        ("00a30161" + "a000", "no section"),
        ("005375a1026869", "another type"),
        ("005375a0", "cut off"),
        ("005375a003" + "6869", "cut off"),
        ("005375b0000000", "cut off"),
        ("005375b0ffffffff6869", "cut off"),
        ("005373c00a03", "cut off"),
        ("005373c00201", "cut off"),
        ("005374c1", "cut off"),
        ("005373c10100" + "005375a000", "another type"),
        ("005375a000" + "00537045", "out of order"),
        ("005375a000" + "005377a000", "out of order"),
        ("005377a000" + "005377a000", "out of order"),
        ("005375a000" + "005376" + "45", "out of order"),
        ("005378c10100" + "005375a000", "out of order"),
        ("005375a000" + "005378c10100" * 2, "out of order"),
        ("00537345" * 2 + "005375a000", "out of order"),
        ("00537045" * 2 + "005375a000", "out of order"),
        ("00537345" + "005372c10100" + "005375a000", "out of order"),
        ("00537345" + "00537045" + "005375a000", "out of order"),
        ("005377", "another type"),
        ("0053773f", "no value"),
        ("00537700a30178", "no value"),
        ("005370c0020143" + "005375a000", "another type"),
        ("005370c003015602" + "005375a000", "does not fit"),
        ("005370c00402404005" + "005375a000", "more bytes"),
        ("005370c0020241", "more values"),
        ("005370c0030241ff", "another type"),
        ("005370c0020250", "more values"),
        ("005370c00706404040404040" + "005375a000", "more than a header"),
        ("005370c000" + "005375a000", "more values"),
        ("005373c00b09" + "40" * 8 + "8300" + "005375a000", "cut off"),
        ("005373c00309" + "8340" + "005375a000", "more values"),
    ],
)
def test_what_is_malformed_is_refused(raw: str, why: str) -> None:
    assert why in assert_refused(bytes.fromhex(raw)).message


def test_a_body_has_a_limited_number_of_sections() -> None:
    assert split(DATA * BODY_SECTIONS_MAX).body == DATA * BODY_SECTIONS_MAX
    assert "sections" in assert_refused(DATA * (BODY_SECTIONS_MAX + 1)).message


@pytest.mark.parametrize(
    ("delivery_count", "is_durable", "expires_ms", "header"),
    [
        (0, True, 0, "005370c007054150074041" + "43"),
        (0, False, 0, "005370c007054250074041" + "43"),
        (1, True, 0, "005370c00805415007404252" + "01"),
        (300, True, 0, "005370c00b0541500740427000" + "00012c"),
        (0, True, 1500, "005370c00b05415007" + "70000001f4" + "4143"),
        (2, True, 900, "005370c00c05415007" + "7000000001" + "425202"),
        (0, True, 2**40, "005370c00b05415007" + "70ffffffff" + "4143"),
    ],
)
def test_the_header_of_a_delivery_says_what_is_known_here(
    delivery_count: int, is_durable: bool, expires_ms: int, header: str
) -> None:
    properties = bytes.fromhex("005370c00402415007" + PROPERTIES) + DATA[:5]
    for _ in range(2):
        raw = join(
            properties,
            b"hi",
            delivery_count=delivery_count,
            expires_ms=expires_ms,
            is_durable=is_durable,
            now_ms=1000,
        )
        assert raw.hex() == header + PROPERTIES + DATA.hex()


def test_a_message_that_was_not_sent_by_amqp_is_a_data_section_with_its_properties_as_annotation() -> None:
    for properties, body in [(b"", b"hi"), (b"{}", b"hi"), (b"p" * 300, b"b" * 300), (b"\x00\x53\x70", b"")]:
        raw = join(properties, body, delivery_count=1, expires_ms=0, is_durable=True, now_ms=0)
        message = decoded(raw)
        assert message.inferred and plain(message.body) == body
        assert message.durable and message.delivery_count == 1
        annotations = {key: plain(value) for key, value in (message.annotations or {}).items()}
        assert annotations == ({"x-opt-lockstep-properties": properties} if properties else {})


def test_properties_that_only_look_like_a_header_are_wrapped() -> None:
    for properties in (b"\x00\x53\x70\xc0\x02\x01\x99", b"\x00\x53\x70\xc0\xff\x01", b"\x00\x53\x70\xd0\xff"):
        raw = join(properties, b"hi", delivery_count=0, expires_ms=0, is_durable=False, now_ms=0)
        assert {key: plain(value) for key, value in (decoded(raw).annotations or {}).items()} == {
            "x-opt-lockstep-properties": properties
        }


def test_a_header_that_a_client_of_another_protocol_wrote_is_understood() -> None:
    properties = bytes.fromhex("005370d0000000070000000240" + "5009") + DATA[:5]
    message = decoded(join(properties, b"hi", delivery_count=0, expires_ms=0, is_durable=True, now_ms=0))
    assert (message.priority, message.durable, plain(message.body)) == (9, True, b"hi")


def test_the_header_of_what_is_kept() -> None:
    assert header_of(split(encoded(Message(priority=7, durable=True, ttl=3))).properties) == HeaderFields(
        True, 7, 0
    )
    assert header_of(split(DATA).properties) == HeaderFields(False, None, 0)
    assert header_of(b"{}") == HeaderFields(False, None, 0)


@pytest.mark.parametrize(
    ("properties", "address"),
    [
        (PROPERTIES, "ok"),
        (NOTES + PROPERTIES, "ok"),
        ("00800000000000000073" + PROPERTIES[6:], "ok"),
        ("005373c00d03a1026d3140b1000000026f6b", "ok"),
        ("005373c00403404040", None),
        ("005373c003024040", None),
        ("00537345", None),
        (NOTES, None),
        ("", None),
        (APPLICATION_PROPERTIES, None),
    ],
)
def test_the_address_is_found(properties: str, address: str | None) -> None:
    assert address_of(EMPTY_HEADER + bytes.fromhex(properties) + DATA[:5]) == address
    assert (
        address_of(EMPTY_HEADER + bytes.fromhex(properties + "00800000000000000075a0") + b"\x09") == address
    )


def test_a_message_that_was_not_sent_by_amqp_has_no_address() -> None:
    assert address_of(b"") is None
    assert address_of(b"{}") is None


@pytest.mark.parametrize("properties", ["005373c00403404041", "005373c006034040a101ff", "005373c004034040a1"])
def test_an_address_that_is_none_is_refused(properties: str) -> None:
    with pytest.raises(Rejected):
        address_of(EMPTY_HEADER + bytes.fromhex(properties))


@pytest.mark.fuzz
@given(proton_messages(), st.integers(0, 300))
def test_what_a_client_sends_is_what_a_client_gets(message: Message, failed: int) -> None:
    raw = encoded(message)
    incoming = split(raw)
    assert incoming.is_durable == message.durable
    assert incoming.ttl_ms == round(message.ttl * 1000)
    assert address_of(incoming.properties) == message.address
    got = decoded(deliver(incoming, delivery_count=failed, expires_ms=incoming.ttl_ms))
    sent = decoded(raw)
    for field in ("durable", "priority", "ttl", "id", "address", "subject", "correlation_id", "inferred"):
        assert getattr(got, field) == getattr(sent, field), field
    for field in ("body", "properties", "annotations"):
        assert plain(getattr(got, field)) == plain(getattr(sent, field)), field
    assert not got.instructions
    assert got.delivery_count == failed
    assert got.first_acquirer == (failed == 0)


@pytest.mark.fuzz
@given(proton_messages())
def test_what_is_delivered_and_sent_again_is_kept_the_same(message: Message) -> None:
    incoming = split(encoded(message))
    assert split(deliver(incoming, expires_ms=incoming.ttl_ms)) == incoming


@pytest.mark.fuzz
@given(proton_messages())
def test_text_and_bytes_are_bare(message: Message) -> None:
    if isinstance(message.body, str):
        assert split(encoded(message)).body == message.body.encode()
    elif isinstance(message.body, bytes):
        assert split(encoded(message)).body == message.body


def keep_and_deliver(raw: bytes) -> None:
    """Any other exception than a rejection would stop a proxy."""
    try:
        incoming = split(raw)
    except Rejected:
        return
    deliver(incoming)
    assert incoming.properties[:3] == EMPTY_HEADER[:3]
    try:
        address_of(incoming.properties)
    except Rejected:
        pass


@pytest.mark.fuzz
@given(st.binary(max_size=100), st.sampled_from(["", "005370", "005373", "005375", "0053"]))
def test_garbage_is_a_message_or_a_rejection(garbage: bytes, opening: str) -> None:
    keep_and_deliver(bytes.fromhex(opening) + garbage)


@pytest.mark.fuzz
@given(proton_messages(), st.data())
def test_a_message_with_bytes_changed_is_a_message_or_a_rejection(
    message: Message, data: st.DataObject
) -> None:
    raw = bytearray(encoded(message))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, min(len(raw), 60) - 1))] = data.draw(st.integers(0, 255))
    keep_and_deliver(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    keep_and_deliver(bytes(raw))


@pytest.mark.fuzz
@given(
    st.binary(max_size=60),
    st.binary(max_size=10),
    st.booleans(),
    st.integers(-1, 2**33),
    st.integers(-1, 2**42),
)
def test_whatever_is_kept_is_delivered(
    properties: bytes, body: bytes, is_durable: bool, failed: int, expires_ms: int
) -> None:
    for opening in (b"", EMPTY_HEADER[:3], EMPTY_HEADER):
        join(
            opening + properties,
            body,
            delivery_count=failed,
            expires_ms=expires_ms,
            is_durable=is_durable,
            now_ms=2**41,
        )


def assert_cut_as_if_whole(parts: list[bytes]) -> None:
    try:
        whole = split(b"".join(parts))
    except Rejected:
        with pytest.raises(Rejected):
            split_parts(parts)
    else:
        assert split_parts(parts) == whole


@pytest.mark.fuzz
@given(proton_messages(), st.data())
def test_what_came_in_parts_is_cut_as_if_it_had_come_whole(message: Message, data: st.DataObject) -> None:
    raw = encoded(message)
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw)))] + data.draw(st.binary(max_size=5))
    ends = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    assert_cut_as_if_whole([raw[begin:end] for begin, end in zip([0, *ends], [*ends, len(raw)], strict=True)])


@pytest.mark.parametrize(
    "message",
    [
        "005377d00000000b",
        "005377d1000005000102030405",
        "005377f0000005000102030405",
        "005376d00000000b",
        "005375a00161005375b0000005000102030405",
        "005377a00161005378d10000000b",
        "00537700a3017841d0000005000102030405",
        "005373d00000000b",
        "005377d00000000400000000",
        "005375a00161005375b00000000162",
        "005370d000000005000000014100537540",
    ],
)
def test_a_size_of_which_a_part_has_come_is_none_yet(message: str) -> None:
    """Wherever it is cut: else it would be taken for a smaller one."""
    raw = bytes.fromhex(message)
    for cut in range(len(raw) + 1):
        assert_cut_as_if_whole([raw[:cut], raw[cut:]])


@pytest.mark.parametrize("body", [b"", b"x" * 300])
def test_a_body_may_be_left_to_whoever_sends(body: bytes) -> None:
    for properties in (
        EMPTY_HEADER + bytes.fromhex(PROPERTIES) + DATA[:-1] + bytes((len(body) % 256,)),
        b"",
        b"{}",
    ):
        both = [
            join(
                properties, body, delivery_count=1, expires_ms=9, is_durable=True, now_ms=0, has_body=has_body
            )
            for has_body in (True, False)
        ]
        assert both[0] == both[1] + body
