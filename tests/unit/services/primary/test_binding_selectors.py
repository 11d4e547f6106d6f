"""Bindings with selectors, and what is told of queues and exchanges."""

import pytest

from lockstep.core.commands import (
    BindCommand,
    DeleteQueueCommand,
    Disposition,
    OutgoingMessage,
    PublishCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch
from lockstep.core.requests import DescribeExchange, DescribeQueue
from lockstep.core.routing import SELECTOR_ARGUMENT
from lockstep.core.server_messages import ExchangeDetails, QueueDetails
from tests.kept_properties import kept_properties
from tests.unit.services.primary.primary_rig import Rig, RigClient, publish

RED = kept_properties(colour="red")
BLUE = kept_properties(colour="blue")


@pytest.fixture
def client(rig: Rig) -> RigClient:
    client = rig.client()
    for queue in ("all", "red", "blue"):
        client.declare(queue)
    return client


def bind(exchange: str, queue: str, selector: str, key: str = "k", *others: tuple[str, str]) -> BindCommand:
    return BindCommand(0, exchange, queue, key, ((SELECTOR_ARGUMENT, selector), *others))


def mixed(exchange: str, headers: tuple[tuple[str, str], ...] = ()) -> PublishCommand:
    """Four messages, two of each colour."""
    colours = ((b"r1", RED), (b"b1", BLUE), (b"b2", BLUE), (b"r2", RED))
    messages = tuple(OutgoingMessage(properties, body, headers=headers) for body, properties in colours)
    return PublishCommand(0, exchange, "k", messages)


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_a_queue_gets_what_the_selector_of_its_binding_matches(
    rig: Rig, client: RigClient, kind: str
) -> None:
    client.exchange("x", kind=kind)
    client.ok(BindCommand(0, "x", "all", "k"))
    client.ok(bind("x", "red", "colour = 'red'"))
    client.ok(bind("x", "blue", "colour = 'blue'"))
    assert client.ok(mixed("x")) == 8
    assert rig.bodies("all") == [b"r1", b"b1", b"b2", b"r2"]
    assert rig.bodies("red") == [b"r1", b"r2"] and rig.bodies("blue") == [b"b1", b"b2"]
    rig.check_log()


def test_a_selector_does_not_open_what_key_or_headers_close(rig: Rig, client: RigClient) -> None:
    client.exchange("t", kind="topic")
    client.exchange("h", kind="headers")
    client.ok(bind("t", "red", "colour = 'red'", "other.*"))
    client.ok(bind("h", "red", "colour = 'red'", "k", ("size", "big")))
    assert client.ok(mixed("t")) == 0 and client.ok(mixed("h")) == 0
    assert client.ok(mixed("h", headers=(("size", "big"),))) == 2


def test_through_several_bindings_a_message_comes_once(rig: Rig, client: RigClient) -> None:
    client.exchange("x")
    client.ok(bind("x", "red", "colour = 'red'"))
    client.ok(bind("x", "red", "colour IS NOT NULL"))
    client.ok(BindCommand(0, "x", "all", "k"))
    client.ok(bind("x", "all", "colour = 'red'"))
    client.ok(mixed("x"))
    assert rig.bodies("red") == rig.bodies("all") == [b"r1", b"b1", b"b2", b"r2"]


def test_a_selector_is_unbound_by_its_arguments(rig: Rig, client: RigClient) -> None:
    client.exchange("x")
    red = bind("x", "red", "colour = 'red'")
    client.ok(red)
    client.ok(bind("x", "red", "colour = 'blue'"))
    client.ok(BindCommand(0, "x", "red", "k", red.arguments, is_unbind=True))
    client.ok(mixed("x"))
    assert rig.bodies("red") == [b"b1", b"b2"]
    client.ok(DeleteQueueCommand(0, "red"))
    assert client.ok(mixed("x")) == 0
    rig.check_log()


def test_what_is_no_selector_is_not_bound(rig: Rig, client: RigClient) -> None:
    client.exchange("x")
    for command in (
        bind("x", "red", "colour ="),
        bind("x", "red", ""),
        bind("x", "red", "a = 1", "k", (SELECTOR_ARGUMENT, "b = 1")),
    ):
        assert client.do(command).code is ErrorCode.INVALID_ARGUMENT
    assert client.ok(mixed("x")) == 0


def test_a_binding_with_a_selector_is_there_after_a_failover(rig: Rig, client: RigClient) -> None:
    client.exchange("x")
    client.ok(bind("x", "red", "colour = 'red'"))
    client.rig = rig = Rig(predecessor=rig)
    client.stream = 0
    client.resume()
    client.ok(mixed("x"))
    assert rig.bodies("red") == [b"r1", b"r2"]


def test_what_a_transaction_publishes_is_selected_when_it_is_published(rig: Rig, client: RigClient) -> None:
    client.exchange("x")
    client.ok(bind("x", "red", "colour = 'red'"))
    transaction = client.begin()
    client.ok(publish("k", b"r1", exchange="x", properties=RED, transaction=transaction, sequence=1))
    client.ok(publish("k", b"b1", exchange="x", properties=BLUE, transaction=transaction, sequence=2))
    client.commit(transaction, 2)
    assert rig.bodies("red") == [b"r1"]


@pytest.mark.parametrize("resident_bytes_max", [1, 1 << 30])
def test_dead_letters_go_where_a_selector_matches(resident_bytes_max: int) -> None:
    rig = Rig(resident_bytes_max=resident_bytes_max)
    client = rig.client()
    for queue in ("all", "red"):
        client.declare(queue)
    client.exchange("x")
    client.declare("work", dead_letter_exchange="x", dead_letter_key="k")
    client.ok(BindCommand(0, "x", "all", "k"))
    client.ok(bind("x", "red", "colour = 'red'"))
    for body, properties in ((b"r1", RED), (b"b1", BLUE)):
        client.publish("work", body, properties=properties)
    client.consume("work")
    client.settle("work", disposition=Disposition.REJECT)
    client.consume("all")
    client.consume("red")
    assert client.bodies("all") == [b"r1", b"b1"] and client.bodies("red") == [b"r1"]
    rig.check_log()


def test_dead_letters_go_where_a_binding_has_no_selector_whatever_another_one_says(rig: Rig) -> None:
    client = rig.client()
    client.declare("dead")
    client.exchange("x")
    client.ok(BindCommand(0, "x", "dead", "k"))
    client.ok(bind("x", "dead", "colour = 'red'"))
    client.declare("work", dead_letter_exchange="x", dead_letter_key="k")
    client.publish("work", b"b1", properties=BLUE)
    client.consume("work")
    client.settle("work", disposition=Disposition.REJECT)
    assert rig.bodies("dead") == [b"b1"]
    rig.check_log()


def test_a_queue_is_described_as_it_was_declared_and_bound(rig: Rig, client: RigClient) -> None:
    client.exchange("x", kind="topic")
    command = bind("x", "red", "colour = 'red'", "a.*")
    client.ok(command)
    client.publish("red", b"1")
    client.consume("red")
    client.browse("red")
    client.declare("own", is_exclusive=True)
    client.declare("auto", is_auto_delete=True, is_durable=False)
    other = rig.client()
    for request, queue in enumerate(("red", "own", "auto", "none")):
        other.say(DescribeQueue(request, queue))
    red, own, auto, none = other.heard_of(QueueDetails)
    assert red.bindings == (("x", "a.*", command.arguments),)
    assert (red.is_durable, red.is_exclusive, red.is_auto_delete) == (True, False, False)
    assert (red.length, red.consumers) == (1, 1)
    assert own.is_exclusive and not own.is_durable
    assert auto.is_auto_delete and not auto.is_durable and auto.bindings == ()
    assert none.code is ErrorCode.NOT_FOUND and none.epoch == Epoch(1)


def test_an_exchange_is_described_as_it_was_declared(client: RigClient) -> None:
    client.exchange("x", kind="topic", is_durable=False)
    client.say(DescribeExchange(1, "x"), DescribeExchange(2, "y"))
    there, absent = client.heard_of(ExchangeDetails)
    assert (there.code, there.kind, there.is_durable) == (ErrorCode.NONE, "topic", False)
    assert absent.code is ErrorCode.NOT_FOUND
