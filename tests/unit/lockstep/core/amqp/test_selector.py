"""Selectors: what is one, what its identifiers are in a message, and that nothing else than a rejection comes of nonsense."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Message, int32, symbol, ulong

from lockstep.core.amqp.sections import split
from lockstep.core.amqp.selector import SELECTOR_CHARS_MAX, compile_selector
from lockstep.core.amqp.selector_fields import APPLICATION_PROPERTIES_MAX
from lockstep.core.amqp.selector_lexer import KEYWORDS
from lockstep.core.amqp.selector_parser import NESTING_MAX
from lockstep.core.errors import ErrorCode, Rejected
from tests.unit.lockstep.core.amqp.amqp_messages import DATA, EMPTY_HEADER, encoded, proton_messages


def kept(message: Message) -> bytes:
    return split(encoded(message)).properties


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("", 0, "expected a value, found 'the end'"),
        ("   ", 3, "a value"),
        ("a =", 3, "a value"),
        ("a = 'x", 4, "a string without end"),
        ("a = 'x'' AND b", 4, "a string without end"),
        ("a ! 1", 2, "no word or sign"),
        ('a = "x"', 4, "no word or sign"),
        ("a == 1", 3, "a value"),
        ("a = 1 b", 6, "expected AND, OR or the end, found 'b'"),
        ("a = 1)", 5, "AND, OR or the end"),
        ("(a = 1", 6, "expected )"),
        ("a AND", 5, "a value"),
        ("a AND 5", 6, "a number is no condition"),
        ("'x'", 0, "a string is no condition"),
        ("5", 0, "a number is no condition"),
        ("a + 1", 0, "a number is no condition"),
        ("NOT 'x'", 4, "a string is no condition"),
        ("a < 'x'", 4, "a string where a number belongs"),
        ("'x' < a", 0, "a string where a number belongs"),
        ("a < TRUE", 4, "a condition where a number belongs"),
        ("a + 'x' = 1", 4, "a string where a number belongs"),
        ("(a = 1) + 1 = 2", 0, "a condition where a number belongs"),
        ("- 'x' = 1", 2, "a string where a number belongs"),
        ("a BETWEEN 1", 11, "expected AND"),
        ("a BETWEEN 1 AND 'x'", 16, "a string where a number belongs"),
        ("a NOT 5", 6, "expected BETWEEN, IN or LIKE"),
        ("a IN ()", 6, "a string"),
        ("a IN (1)", 6, "a string"),
        ("a IN ('x' 'y')", 10, "expected )"),
        ("1 IN ('x')", 0, "a number where an identifier belongs"),
        ("'x' LIKE 'x'", 0, "a string where an identifier belongs"),
        ("a LIKE b", 7, "a string"),
        ("a LIKE 'x' ESCAPE 'yy'", 18, "one character"),
        ("a LIKE 'x' ESCAPE ''", 18, "one character"),
        ("a LIKE 'x!' ESCAPE '!'", 19, "nothing behind"),
        ("a LIKE '" + "x" * 257 + "'", 7, "more than 256 characters"),
        ("a IS 5", 5, "expected NULL"),
        ("1 IS NULL", 0, "an identifier belongs"),
        ("null = 1", 0, "a value"),
        ("a = 12abc", 4, "no word or sign"),
        ("a = 09", 4, "octal"),
        ("a = 0x", 4, "no word or sign"),
        ("a = 9223372036854775808", 4, "range of long"),
        ("a = - -9223372036854775809", 7, "range of long"),
        ("a = " + "9" * 5000, 4, "range of long"),
        ("a = 1e999", 4, "range of double"),
        ("a.b = 1", 1, "no word or sign"),
        ("(" * (NESTING_MAX + 1) + "a" + ")" * (NESTING_MAX + 1), NESTING_MAX + 1, "nested"),
        ("NOT " * 1000 + "a", 4 * (NESTING_MAX + 1), "nested"),
        ("a = " + "- " * 1000 + "n", 6 + 2 * NESTING_MAX, "nested"),
        ("a" * (SELECTOR_CHARS_MAX + 1), SELECTOR_CHARS_MAX, "longer than"),
    ],
)
def test_what_is_no_selector_is_rejected_with_its_place(text: str, at: int, why: str) -> None:
    with pytest.raises(Rejected) as caught:
        compile_selector(text)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert why in caught.value.message
    assert caught.value.details["at"] == at


def test_a_selector_knows_its_text() -> None:
    assert compile_selector(" a\t=\n1 ").text == " a\t=\n1 "
    assert repr(compile_selector("a=1")) == "Selector('a=1')"


def test_chains_are_as_long_as_a_text_may_be() -> None:
    message = kept(Message(properties={"a": 1}))
    for text, is_selected in [
        (" OR ".join(["a=2"] * 1000 + ["a=1"]), True),
        (" AND ".join(["a=1"] * 900), True),
        ("a" + "+1" * 4000 + "=4001", True),
        ("a" + "*1" * 4000 + "=2", False),
        ("x IN (" + ",".join(["'y'"] * 1500) + ")", False),
    ]:
        assert compile_selector(text).matches(message) is is_selected


MESSAGE = Message(
    body="x",
    id="ID:7",
    address="orders",
    subject="order",
    reply_to="answers",
    correlation_id="ID:6",
    user_id=b"anna",
    creation_time=1500.0,
    group_id="g",
    group_sequence=3,
    priority=7,
    durable=True,
    properties={
        "a$_1": 1,
        "größe": 2.5,
        "flag": False,
        "i": int32(-5),
        "u": ulong(2**64 - 1),
        "sym": symbol("x"),
        "list": [1, 2],
        "bin": b"x",
        "none": None,
        "uuid": uuid.UUID(int=5),
        "A": "capital",
    },
)


@pytest.mark.parametrize(
    "text",
    [
        "JMSMessageID = 'ID:7'",
        "JMSDestination = 'orders'",
        "JMSType = 'order'",
        "JMSReplyTo = 'answers'",
        "JMSCorrelationID = 'ID:6'",
        "JMSXUserID = 'anna'",
        "JMSTimestamp = 1500000",
        "JMSXGroupID = 'g'",
        "JMSXGroupSeq = 3",
        "JMSXGroupSeq = 3 AND JMSMessageID = 'ID:7' AND JMSType = 'order' AND JMSDestination = 'orders'",
        "JMSPriority = 7",
        "JMSDeliveryMode = 'PERSISTENT'",
        "JMSXDeliveryCount = 1",
        "a$_1 = 1",
        "größe = 2.5",
        "NOT flag",
        "i = -5",
        "u = 18446744073709551615.0 OR u > 9223372036854775807",
        "sym = 'x'",
        "list IS NOT NULL AND NOT list = 1 AND NOT list = 'x'",
        "bin IS NOT NULL AND NOT bin = 'x'",
        "none IS NULL",
        "uuid IS NOT NULL",
        "A = 'capital'",
        "a IS NULL",
        "jmspriority IS NULL",
        "JMSXGroupId IS NULL",
    ],
)
def test_identifiers_are_found(text: str) -> None:
    assert compile_selector(text).matches(kept(MESSAGE))


def test_what_the_broker_knows_counts_more_than_the_header() -> None:
    properties = kept(MESSAGE)
    assert compile_selector("JMSDeliveryMode = 'NON_PERSISTENT'").matches(properties, is_durable=False)
    assert compile_selector("JMSXDeliveryCount = 4").matches(properties, delivery_count=3)


def test_fields_that_were_not_sent_are_null_or_their_defaults() -> None:
    properties = kept(Message(body="x"))
    assert compile_selector("JMSPriority = 4 AND JMSDeliveryMode = 'NON_PERSISTENT'").matches(properties)
    for name in ("JMSMessageID", "JMSXUserID", "JMSXGroupSeq", "JMSTimestamp", "a"):
        assert compile_selector(f"{name} IS NULL").matches(properties)


@pytest.mark.parametrize(
    ("identity", "shown"),
    [
        (ulong(5), "ID:AMQP_ULONG:5"),
        (
            uuid.UUID("01234567-89ab-cdef-0123-456789abcdef"),
            "ID:AMQP_UUID:01234567-89ab-cdef-0123-456789abcdef",
        ),
        (b"\x01\xab", "ID:AMQP_BINARY:01AB"),
    ],
)
def test_ids_of_other_types_are_shown_as_jms_clients_do(
    identity: ulong | uuid.UUID | bytes, shown: str
) -> None:
    properties = kept(Message(id=identity, correlation_id=identity))
    assert compile_selector(f"JMSMessageID = '{shown}' AND JMSCorrelationID = '{shown}'").matches(properties)


@pytest.mark.parametrize("name", ["JMSMessageID", "JMSCorrelationID"])
@pytest.mark.parametrize(
    ("identity", "shown"),
    [
        ("m", "ID:AMQP_NO_PREFIX:m"),
        ("ID:AMQP_UUID:5", "ID:AMQP_STRING:ID:AMQP_UUID:5"),
        ("ID:AMQP_NO_PREFIX:m", "ID:AMQP_STRING:ID:AMQP_NO_PREFIX:m"),
        ("ID:m", "ID:m"),
    ],
)
def test_ids_that_are_strings_are_found_as_jms_clients_show_them(
    name: str, identity: str, shown: str
) -> None:
    found, other = (
        kept(Message(id=identity, correlation_id=identity)),
        kept(Message(id="n", correlation_id="n")),
    )
    for text in (
        f"{name} = '{shown}'",
        f"'{shown}' = {name}",
        f"{name} IN ('x', '{shown}')",
        f"{name} LIKE '{shown}'",
        f"{name} = '{identity}' OR {name} = '{shown}'",
    ):
        assert compile_selector(text).matches(found), text
        assert not compile_selector(text).matches(other), text
    for text in (f"{name} <> '{shown}'", f"{name} NOT IN ('{shown}')", f"{name} NOT LIKE '{shown}'"):
        assert not compile_selector(text).matches(found), text
        assert compile_selector(text).matches(other), text


def test_prefixes_of_ids_mean_nothing_elsewhere_nor_before_wildcards() -> None:
    properties = kept(Message(id="m", properties={"a": "ID:AMQP_NO_PREFIX:m"}))
    assert compile_selector("a = 'ID:AMQP_NO_PREFIX:m'").matches(properties)
    assert compile_selector("JMSMessageID LIKE 'ID:AMQP_NO_PREFIX:m%'").matches(properties)
    assert not compile_selector("a = 'm' OR JMSMessageID LIKE 'ID:AMQP_NO_PREFIX:%'").matches(properties)


@pytest.mark.parametrize("name", ["JMSPriority", "JMSDeliveryMode", "JMSXDeliveryCount", "JMSMessageID", "a"])
@pytest.mark.parametrize("properties", [b"", b"{}", b'{"a": 1}'])
def test_a_message_that_was_not_sent_by_amqp_has_no_fields(name: str, properties: bytes) -> None:
    assert compile_selector(f"{name} IS NULL").matches(properties, 1, True)


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ("005373c00403404055", "JMSDestination = 'a'"),
        ("005373c0030240a3", "JMSXUserID IS NULL"),
        ("00537300", "JMSType IS NULL"),
        ("005374c10602a10161a101", "a = 'b'"),
        ("005374c10702a10161a101ff", "a = 'b'"),
        ("005374c10602a10161a1ff", "a = 'b'"),
        ("005374c10603a101615501", "a = 1"),
        ("005374c10602a10161a3ff", "a = 'b'"),
        ("005374d1ffffffff00000002", "a = 'b'"),
        ("005372c1ff00", "a = 'b'"),
    ],
)
def test_what_is_malformed_where_a_selector_looks_is_rejected(sections: str, text: str) -> None:
    with pytest.raises(Rejected) as caught:
        compile_selector(text).matches(EMPTY_HEADER + bytes.fromhex(sections) + DATA[:5])
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


def test_what_is_malformed_elsewhere_is_not_noticed() -> None:
    properties = EMPTY_HEADER + bytes.fromhex("005373c0050340404055" + "005374c10602a161a1ff")
    assert compile_selector("JMSMessageID IS NULL AND JMSXUserID IS NULL AND JMSPriority = 4").matches(
        properties
    )


def test_a_selector_looks_at_a_limited_number_of_properties() -> None:
    selector = compile_selector("z IS NULL")
    assert selector.matches(
        kept(Message(properties={str(name): 0 for name in range(APPLICATION_PROPERTIES_MAX)}))
    )
    with pytest.raises(Rejected, match="more than"):
        selector.matches(
            kept(Message(properties={str(name): 0 for name in range(APPLICATION_PROPERTIES_MAX + 1)}))
        )


NAMES = ["a", "JMSType", "TRUE", "'x'", "'%'", "'!'", "'", "1", "2.5", "0x1F", "1e5"]
SIGNS = ["(", ")", ",", "=", "<>", "<", ">=", "+", "-", "*", "/"]
WORDS = st.sampled_from([*NAMES, *SIGNS, *sorted(KEYWORDS)])
ALL_FIELDS = compile_selector(
    "JMSMessageID = JMSXUserID OR JMSDestination = JMSType OR JMSReplyTo = JMSCorrelationID OR JMSTimestamp = JMSXGroupID"
    " OR JMSXGroupSeq = JMSPriority OR JMSDeliveryMode = a OR JMSXDeliveryCount + b = c * d OR e LIKE '%a_' OR f"
)


def look(text: str, properties: bytes) -> None:
    """Any other exception than a rejection would stop a proxy."""
    try:
        compile_selector(text).matches(properties)
    except Rejected as rejected:
        if rejected.code is not ErrorCode.INVALID_ARGUMENT:
            raise


@pytest.mark.fuzz
@given(st.text(max_size=60) | st.lists(WORDS, max_size=25).map(" ".join), proton_messages())
def test_any_text_is_a_selector_or_a_rejection(text: str, message: Message) -> None:
    look(text, kept(message))


@pytest.mark.fuzz
@given(
    st.binary(max_size=100),
    st.sampled_from(["", "00537045", "00537045005373", "00537045005374d1", "005370c0"]),
)
def test_any_bytes_are_looked_at_or_rejected(garbage: bytes, opening: str) -> None:
    look(ALL_FIELDS.text, bytes.fromhex(opening) + garbage)


@pytest.mark.fuzz
@given(proton_messages(), st.data())
def test_a_message_with_bytes_changed_is_looked_at_or_rejected(message: Message, data: st.DataObject) -> None:
    message.properties = {"a": 1, "e": "xab", "f": True, **(message.properties or {})}  # type: ignore[assignment]
    properties = bytearray(kept(message))
    for _ in range(data.draw(st.integers(1, 4))):
        properties[data.draw(st.integers(0, len(properties) - 1))] = data.draw(st.integers(0, 255))
    look(ALL_FIELDS.text, bytes(properties))
