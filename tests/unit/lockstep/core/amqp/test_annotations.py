"""What a dead letter says of itself by AMQP, as a client of Proton reads it."""

from typing import Any

import pytest
from hypothesis import given
from proton import Message, symbol

from lockstep.core.amqp.annotations import annotated, check_pairs, combined, pairs_of
from lockstep.core.amqp.sections import join, split, with_deaths
from lockstep.core.asides import Aside
from lockstep.core.deaths import Death, Deaths
from lockstep.core.errors import Rejected
from tests.unit.lockstep.core.amqp.amqp_messages import DATA, decoded, encoded, plain, proton_messages

DEATHS = (
    Death("retry", 2, 3, 1_000, 9_000),
    Death("w\N{LATIN SMALL LETTER O WITH DIAERESIS}rk", 1, 1, 500, 500),
)

SAID = b"\xa3\x01a\x41"
"""A pair: a is true."""


def deliver(raw: bytes, deaths: Deaths) -> Message:
    incoming = split(raw)
    return decoded(
        join(
            incoming.properties,
            incoming.body,
            delivery_count=0,
            expires_ms=0,
            is_durable=incoming.is_durable,
            now_ms=0,
            aside=Aside(deaths),
        )
    )


def annotations_of(message: Message) -> dict[str, Any]:
    return dict(message.annotations or {})


def test_a_dead_letter_says_where_it_was_why_how_often_and_when() -> None:
    annotations = annotations_of(deliver(DATA, DEATHS))
    assert annotations["x-first-death-queue"] == "w\xf6rk" and annotations["x-last-death-queue"] == "retry"
    assert annotations["x-first-death-reason"] == "rejected"
    assert annotations["x-last-death-reason"] == "expired"
    retry, work = annotations["x-opt-deaths"].elements
    assert retry == {
        "queue": "retry",
        "reason": "expired",
        "count": 3,
        "first-time": 1_000,
        "last-time": 9_000,
    }
    assert (work["queue"], work["count"]) == ("w\xf6rk", 1)


def test_annotations_of_its_own_stay_but_for_what_they_say_of_deaths() -> None:
    sent = {
        symbol("x-opt-kept"): "yes",
        symbol("x-opt-deaths"): "forged",
        symbol("x-last-death-queue"): "other",
    }
    annotations = annotations_of(deliver(encoded(Message(body="x", annotations=sent)), DEATHS))
    assert annotations["x-opt-kept"] == "yes"
    assert annotations["x-last-death-queue"] == "retry"
    assert len(annotations["x-opt-deaths"].elements) == 2
    assert len(annotations) == 6


@given(proton_messages())
def test_a_dead_letter_is_otherwise_what_was_sent(message: Message) -> None:
    plainly, dead = deliver(encoded(message), ()), deliver(encoded(message), DEATHS)
    assert plain(dead.body) == plain(plainly.body)
    assert (dead.properties, dead.id, dead.address) == (plainly.properties, plainly.id, plainly.address)
    assert annotations_of(plainly).items() <= annotations_of(dead).items()


def test_a_copy_says_it_too() -> None:
    incoming = split(encoded(Message(id="m", body="x")))
    copied = decoded(with_deaths(incoming.properties, DEATHS, b"") + incoming.body)
    assert (copied.id, annotations_of(copied)["x-last-death-queue"]) == ("m", "retry")


def test_a_copy_of_what_was_not_sent_by_amqp_stays_as_it_is() -> None:
    assert with_deaths(b"properties", DEATHS, SAID) == b"properties"


def test_a_message_that_was_not_sent_by_amqp_says_it_as_well() -> None:
    raw = join(
        b"own", b"body", delivery_count=0, expires_ms=0, is_durable=True, now_ms=0, aside=Aside(DEATHS)
    )
    found = decoded(raw)
    assert annotations_of(found)["x-first-death-reason"] == "rejected"
    assert plain(annotations_of(found)["x-opt-lockstep-properties"]) == b"own"
    assert plain(found.body) == b"body"


def test_a_reason_of_a_later_version_is_its_number() -> None:
    assert annotations_of(deliver(DATA, (Death("q", 99, 1, 1, 1),)))["x-last-death-reason"] == "99"


@pytest.mark.parametrize("sections", ["005372c10301a3", "005372c1", "0053", "ff", "005372c10402a303"])
def test_malformed_sections_stay_as_they_are(sections: str) -> None:
    raw = bytes.fromhex(sections)
    assert annotated(raw, DEATHS) == raw


def test_what_is_said_last_of_a_key_holds() -> None:
    assert combined(b"", SAID) == SAID
    assert combined(SAID, b"\xa3\x01b\x40") == SAID + b"\xa3\x01b\x40"
    assert combined(SAID + b"\xa3\x01b\x40", b"\xa3\x01a\x42") == b"\xa3\x01a\x42\xa3\x01b\x40"


def test_what_was_said_of_a_message_takes_the_place_of_what_was_sent() -> None:
    sent = {symbol("a"): "sent", symbol("x-opt-kept"): "yes"}
    incoming = split(encoded(Message(body="x", annotations=sent)))
    for deaths in ((), DEATHS):
        raw = join(
            incoming.properties,
            incoming.body,
            delivery_count=0,
            expires_ms=0,
            is_durable=True,
            now_ms=0,
            aside=Aside(deaths, SAID + b"\xa3\x0cx-opt-deaths\x41"),
        )
        found = annotations_of(decoded(raw))
        assert (found["a"], found["x-opt-kept"]) == (True, "yes")
        assert (found["x-opt-deaths"] is True) == (not deaths)


@pytest.mark.parametrize("encoded_map", ["", "40", "c10302a301", "c10401a30161", "d1ffffffff"])
def test_what_is_no_map_says_nothing(encoded_map: str) -> None:
    with pytest.raises(Rejected):
        pairs_of(bytes.fromhex(encoded_map))


@pytest.mark.parametrize("pairs", ["a3", "a30161", "a301613f"])
def test_pairs_that_are_none_are_refused(pairs: str) -> None:
    with pytest.raises(Rejected):
        check_pairs(bytes.fromhex(pairs))
