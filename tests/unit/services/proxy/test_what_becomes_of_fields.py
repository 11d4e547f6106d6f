"""What becomes of each field that a client may send (AMQP 1.0, parts 2 to 4): heard, kept, said back, or said to be not there.

Law: no field is dropped in silence that a client might count on. A field of the codec that stands in no line of the table fails.
"""

from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from services.proxy.core.conditions import NOT_ALLOWED
from tests.amqp import codec
from tests.amqp.codec import Symbol, composite, named, symbols
from tests.amqp.raw_client import RawClient
from tests.amqp.stub_proxy import serving

README = (Path(__file__).parents[4] / "README.md").read_text()


class Fate(Enum):
    """What becomes of a field."""

    HEARD = "what it says is done, or refused with a reason"
    KEPT = "it is part of the message, and its receivers get it"
    SAID_BACK = "what is done of it is said in the answer, and nothing else"
    LOGGED = "it is in the proxy's log"
    NO_MATTER = "a hint, a name or a figure: by the specification nothing depends on what is made of it"
    NOT_THERE = "the README says that it is not there"


FATES: dict[str, dict[Fate, str]] = {
    "open": {
        Fate.HEARD: "container_id max_frame_size channel_max idle_time_out",
        Fate.SAID_BACK: "desired_capabilities",
        Fate.NO_MATTER: "hostname outgoing_locales incoming_locales offered_capabilities properties",
    },
    "begin": {
        Fate.HEARD: "remote_channel next_outgoing_id incoming_window outgoing_window handle_max",
        Fate.SAID_BACK: "desired_capabilities",
        Fate.NO_MATTER: "offered_capabilities properties",
    },
    "attach": {
        Fate.HEARD: "name handle role snd_settle_mode source target initial_delivery_count max_message_size",
        Fate.SAID_BACK: "desired_capabilities",
        Fate.NO_MATTER: "offered_capabilities properties",
        Fate.NOT_THERE: "rcv_settle_mode unsettled incomplete_unsettled",
    },
    "flow": {
        Fate.HEARD: "next_incoming_id incoming_window next_outgoing_id outgoing_window handle delivery_count link_credit drain",
        Fate.NO_MATTER: "available",
        Fate.NOT_THERE: "echo properties",
    },
    "transfer": {
        Fate.HEARD: "handle delivery_id delivery_tag settled more state aborted",
        Fate.NO_MATTER: "batchable",
        Fate.NOT_THERE: "message_format rcv_settle_mode resume",
    },
    "disposition": {
        Fate.HEARD: "role first last settled state",
        Fate.NO_MATTER: "batchable",
    },
    "detach": {Fate.HEARD: "handle closed", Fate.LOGGED: "error"},
    "end": {Fate.LOGGED: "error"},
    "close": {Fate.LOGGED: "error"},
    "source": {
        Fate.HEARD: "address dynamic distribution_mode",
        Fate.SAID_BACK: "durable expiry_policy timeout dynamic_node_properties filter outcomes capabilities",
        Fate.NOT_THERE: "default_outcome",
    },
    "target": {
        Fate.HEARD: "address dynamic",
        Fate.SAID_BACK: "durable expiry_policy timeout dynamic_node_properties capabilities",
    },
    "coordinator": {Fate.SAID_BACK: "capabilities"},
    "declare": {Fate.HEARD: "global_id"},
    "discharge": {Fate.HEARD: "txn_id fail"},
    "transactional_state": {Fate.HEARD: "txn_id outcome"},
    "received": {Fate.NOT_THERE: "section_number section_offset"},
    "accepted": {},
    "rejected": {Fate.KEPT: "error"},
    "released": {},
    "modified": {Fate.HEARD: "delivery_failed undeliverable_here", Fate.KEPT: "message_annotations"},
    "error": {Fate.LOGGED: "condition description", Fate.NO_MATTER: "info"},
    "header": {Fate.HEARD: "durable priority ttl", Fate.NOT_THERE: "first_acquirer delivery_count"},
    "properties": {
        Fate.HEARD: "to absolute_expiry_time",
        Fate.KEPT: "message_id user_id subject reply_to correlation_id content_type content_encoding creation_time"
        " group_id group_sequence reply_to_group_id",
    },
}
NOT_THERE = {
    "attach rcv_settle_mode": "settle\n    mode `second`",
    "attach unsettled": "Link resumption",
    "attach incomplete_unsettled": "Link resumption",
    "flow echo": "`echo` in a flow",
    "flow properties": "`txn-id` in a flow",
    "transfer message_format": "Message formats other than 0",
    "transfer rcv_settle_mode": "settle\n    mode `second`",
    "transfer resume": "Link resumption",
    "source default_outcome": "`default-outcome` of a source",
    "received section_number": "Link resumption",
    "received section_offset": "Link resumption",
    "header first_acquirer": "`first-acquirer`",
    "header delivery_count": "the delivery count",
}
"""Where the README says so."""
OF_SERVERS = {"declared", "sasl_mechanisms", "sasl_init", "sasl_outcome"}
"""No client sends it, or it is over before there is a connection."""


def test_no_field_has_been_forgotten() -> None:
    assert set(FATES) == set(codec.PERFORMATIVES) - OF_SERVERS
    for name, fates in FATES.items():
        fields = [field for one in fates.values() for field in one.split()]
        assert sorted(fields) == sorted(codec.PERFORMATIVES[name][1]), name


def test_the_readme_says_what_is_not_there() -> None:
    told = {
        f"{name} {field}" for name, fates in FATES.items() for field in fates.get(Fate.NOT_THERE, "").split()
    }
    assert told == set(NOT_THERE)
    said = README.partition("- **Not there**")[2].partition("- Messages cross over")[0]
    for field, words in NOT_THERE.items():
        assert " ".join(words.split()) in " ".join(said.split()), field


ODD: dict[str, Any] = {
    "durable": 2,
    "expiry_policy": Symbol("never"),
    "timeout": 30,
    "capabilities": symbols("queue", "odd"),
}
"""What nobody makes true of a queue, but that it is one."""
ODD_FILTER = codec.mapping(
    codec.symbol("odd"), codec.described(codec.symbol("odd:filter:string"), codec.string("x"))
)
ODD_LINK: dict[str, Any] = {
    "unsettled": codec.mapping(codec.binary(b"tag"), composite("accepted")),
    "desired_capabilities": symbols("odd"),
    "properties": codec.mapping(codec.symbol("odd"), codec.string("x")),
}


@pytest.mark.parametrize("is_sender", [True, False], ids=["a target", "a source"])
async def test_what_is_not_done_is_not_said_back(is_sender: bool) -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        if is_sender:
            target = composite("target", address="queue", **ODD)
            client.say(
                "attach", name="x", handle=0, role=False, target=target, initial_delivery_count=0, **ODD_LINK
            )
        else:
            source = composite("source", address="queue", filter=ODD_FILTER, **ODD)
            client.say("attach", name="x", handle=0, role=True, source=source, **ODD_LINK)
        answer = await client.expect("attach")
        node = named(answer["target" if is_sender else "source"])
        told: dict[str, Any] = {
            field: node[field] for field in ("address", "durable", "expiry_policy", "timeout")
        }
        assert told == {"address": "queue", "durable": 0, "expiry_policy": "link-detach", "timeout": 0}
        assert node["capabilities"] in ("queue", ["queue"])
        assert not is_sender or node["dynamic_node_properties"] is None
        assert is_sender or node["filter"] is None
        assert [answer[field] for field in ("unsettled", "offered_capabilities", "properties")] == [None] * 3


@pytest.mark.parametrize("ended", ["detach", "end", "close"])
async def test_the_error_with_which_a_client_ends_something_is_in_the_log(
    ended: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = composite("error", condition=Symbol(NOT_ALLOWED), description="no\nmore " + 1_000 * "x")
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", "queue", 0)
        await client.attach_sender("other", "queue", 1)
        fields = {"handle": 0, "closed": True} if ended == "detach" else {}
        client.say(ended, error=error, **fields)
        await client.expect(ended)
        if ended == "detach":
            client.say(ended, error=error, handle=1, closed=True)
            await client.expect(ended)
    (line,) = [text for text in caplog.messages if "event=client_error" in text]
    of = {"detach": "receiver", "end": "session", "close": "connection"}[ended]
    assert f"of={of} {NOT_ALLOWED}: no" in line
    assert len(line) < 400
