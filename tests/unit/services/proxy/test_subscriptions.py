"""Subscriptions that are refused: they leave nothing behind, and take nothing away."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.routing import SELECTOR_ARGUMENT
from services.primary.core.settings import PrimarySettings
from services.proxy import subscriptions
from services.proxy.core.addresses import SUBSCRIPTION_QUEUE, TEMPORARY_QUEUE
from services.proxy.core.conditions import INVALID_FIELD, NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LOCKED
from services.proxy.settings import ProxyLimits
from tests.amqp import codec
from tests.amqp.codec import composite
from tests.amqp.raw_client import RawClient, attach_receiver
from tests.amqp.stub_brokers import StubBatches, StubSession, StubSet
from tests.amqp.stub_proxy import serving

TOPIC = "prices"
LONG_SELECTOR = "id IN (" + ",".join(f"'{number:036d}'" for number in range(120)) + ")"
"""Shorter than the longest that is compiled, longer than a binding takes."""
NONE, LINK_DETACH, NEVER = 0, "link-detach", "never"
DURABLE = 2


class Topics(StubSession):
    """One topic; queues are those that were declared."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[str, list[tuple[str, str, Any]]] = {}
        """What binds them to topics."""
        self.fingerprints: dict[str, list[tuple[str, str, Any]]] = {}
        """What they are bound to beside, each of them."""
        self.exchanges: set[str] = set()
        """Beside the topic."""
        self.made: list[str] = []
        """All that there ever were."""
        self.consumers: list[int] = []
        """Of every queue, at each look; 0 after the last."""
        self.binds = asyncio.Event()
        """Cleared, nothing is bound before it is set."""
        self.binds.set()
        self.is_binding_refused = False
        self.is_listened_to = False
        """By somebody whom no look has shown."""
        self.refused_declarations = 0
        """So many of the next: another set still has the name."""

    async def of_target(self, exchange: str, routing_key: str) -> tuple[StubSet, StubBatches]:
        if not exchange and routing_key not in self.queues:
            raise Rejected(ErrorCode.NOT_FOUND, "no such queue")
        return self.set, self.batches

    async def declare_queue(self, name: str, *_: Any, **__: Any) -> None:
        if self.refused_declarations and name.startswith(SUBSCRIPTION_QUEUE):
            self.refused_declarations -= 1
            raise Rejected(ErrorCode.ALREADY_EXISTS, "it belongs to another set")
        self.queues[name], self.fingerprints[name] = [], []
        self.made.append(name)

    async def delete_queue(self, name: str, *, if_unused: bool = False, **__: Any) -> int:
        if if_unused and self.is_listened_to:
            raise Rejected(ErrorCode.IN_USE, "it has consumers")
        del self.queues[name]
        return 0

    async def bind(self, exchange: str, queue: str, key: str = "", arguments: Any = ()) -> None:
        await self.binds.wait()
        if self.is_binding_refused:
            raise Rejected(ErrorCode.NOT_FOUND, "no such exchange")
        if exchange == TOPIC:
            self.queues[queue].append((exchange, key, arguments))
        elif exchange in self.exchanges:
            self.fingerprints[queue].append((exchange, key, arguments))
        else:
            raise Rejected(ErrorCode.NOT_FOUND, "no such exchange")

    async def declare_exchange(self, name: str, *_: Any, **__: Any) -> None:
        self.exchanges.add(name)

    async def describe_queue(self, name: str) -> Any:
        if name not in self.queues:
            raise Rejected(ErrorCode.NOT_FOUND, "no such queue")
        consumers = self.consumers.pop(0) if self.consumers else 0
        return SimpleNamespace(consumers=consumers, bindings=(*self.fingerprints[name], *self.queues[name]))


@pytest.fixture
def topics() -> Topics:
    return Topics()


@pytest.fixture
async def client(topics: Topics) -> AsyncIterator[RawClient]:
    async with serving(session=topics) as proxy, await RawClient.begun(proxy.address) as client:
        yield client


def subscribe(client: RawClient, durability: int, key: str = "eu", selector: str = "", **fields: Any) -> None:
    """Attaches with handle 0."""
    if selector:
        name = codec.symbol("apache.org:selector-filter:string")
        fields["filter"] = codec.mapping(codec.symbol("s"), codec.described(name, codec.string(selector)))
    source = composite("source", address=f"topic://{TOPIC}/{key}", durable=codec.uint(durability), **fields)
    client.send(attach_receiver("news", "", source=source))


async def subscribed(client: RawClient, durability: int, **wanted: Any) -> codec.Composite:
    """Returns the source that is said back, and detaches."""
    subscribe(client, durability, **wanted)
    source = codec.named((await client.expect("attach"))["source"])
    client.say("detach", handle=0)
    await client.expect("detach")
    return source


def test_what_no_binding_takes_is_what_the_brokers_say() -> None:
    settings = PrimarySettings()
    assert settings.name_bytes_max == subscriptions.KEY_BYTES_MAX
    assert settings.binding_arguments_bytes_max == subscriptions.ARGUMENTS_BYTES_MAX


@pytest.mark.parametrize("durability", [NONE, DURABLE])
@pytest.mark.parametrize("wanted", [{"key": "k" * 256}, {"selector": LONG_SELECTOR}])
async def test_what_no_binding_takes_is_refused_before_anything_is_made(
    client: RawClient, topics: Topics, durability: int, wanted: dict[str, str]
) -> None:
    subscribe(client, durability, **wanted)
    assert (await client.expect("detach")).condition == INVALID_FIELD
    assert not topics.made


@pytest.mark.parametrize("durability", [NONE, DURABLE])
async def test_a_queue_whose_binding_is_refused_does_not_stay(
    client: RawClient, topics: Topics, durability: int
) -> None:
    topics.is_binding_refused = True
    subscribe(client, durability)
    assert (await client.expect("detach")).condition == NOT_FOUND
    assert not topics.queues


@pytest.mark.parametrize("is_close", [True, False])
async def test_a_durable_subscription_ends_with_its_link_that_is_closed_before_its_attach_is_answered(
    client: RawClient, topics: Topics, is_close: bool
) -> None:
    """Only a detach leaves it behind."""
    topics.binds.clear()
    subscribe(client, DURABLE)
    while not topics.queues:
        await asyncio.sleep(0.01)
    client.say("detach", handle=0, closed=is_close)
    await client.expect("detach")
    topics.binds.set()
    for _ in range(10):
        await asyncio.sleep(0.01)
    assert len(topics.queues) == (0 if is_close else 1)


async def test_a_durable_subscription_ends_with_its_link_that_is_closed_before_its_attach_has_its_turn(
    topics: Topics,
) -> None:
    """Others that are being attached have all places; the client hears that its subscription is over."""
    limits = ProxyLimits(attaching_max=1)
    async with serving(limits, topics) as proxy, await RawClient.begun(proxy.address) as client:
        await subscribed(client, DURABLE)
        assert len(topics.queues) == 1
        topics.binds.clear()
        source = composite("source", address=f"topic://{TOPIC}/us", durable=codec.uint(DURABLE))
        client.send(attach_receiver("others", "", 1, source=source))
        while len(topics.queues) < 2:
            await asyncio.sleep(0.01)
        subscribe(client, DURABLE)
        client.say("detach", handle=0, closed=True)
        await client.expect("detach")
        topics.binds.set()
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert [bindings[0][1] for bindings in topics.queues.values()] == ["us"]


@pytest.mark.parametrize("is_known_beforehand", [True, False])
async def test_a_durable_subscription_outlives_a_new_selector_that_is_refused(
    client: RawClient, topics: Topics, is_known_beforehand: bool
) -> None:
    await subscribed(client, DURABLE)
    before = {name: list(bindings) for name, bindings in topics.queues.items()}
    assert len(before) == 1
    topics.is_binding_refused = not is_known_beforehand
    subscribe(client, DURABLE, selector=LONG_SELECTOR if is_known_beforehand else "colour = 'red'")
    assert (await client.expect("detach")).condition == (INVALID_FIELD if is_known_beforehand else NOT_FOUND)
    assert topics.queues == before


async def test_a_durable_subscription_with_another_selector_is_a_new_one(
    client: RawClient, topics: Topics
) -> None:
    await subscribed(client, DURABLE)
    await subscribed(client, DURABLE, selector="colour = 'red'")
    ((name, bindings),) = topics.queues.items()
    assert name.startswith(SUBSCRIPTION_QUEUE)
    assert bindings == [(TOPIC, "eu", ((SELECTOR_ARGUMENT, "colour = 'red'"),))]


async def test_the_name_of_a_durable_subscription_in_another_set_is_waited_for(
    client: RawClient, topics: Topics
) -> None:
    """The old topic's set gives it back a moment after the old queue is deleted."""
    await subscribed(client, DURABLE)
    topics.refused_declarations = 2
    await subscribed(client, DURABLE, key="us")
    ((_, bindings),) = topics.queues.items()
    assert bindings == [(TOPIC, "us", ())]


async def test_the_name_of_a_durable_subscription_is_not_waited_for_for_ever(
    client: RawClient, topics: Topics
) -> None:
    topics.refused_declarations = 100
    subscribe(client, DURABLE)
    assert (await client.expect("detach")).condition == PRECONDITION_FAILED
    tries = 100 - topics.refused_declarations
    assert tries <= 2 + subscriptions.WAIT_SECONDS / subscriptions.PAUSE_SECONDS
    assert not topics.queues


async def test_a_durable_subscription_outlives_its_topic_that_is_deleted_and_made_again(
    client: RawClient, topics: Topics
) -> None:
    """What is in it was published before, and nobody has asked for another one."""
    await subscribed(client, DURABLE)
    ((name, bindings),) = topics.queues.items()
    bindings.clear()
    await subscribed(client, DURABLE)
    assert topics.made == [name], "it is not made anew, without what was in it"
    assert topics.queues == {name: [(TOPIC, "eu", ())]}


@pytest.mark.parametrize("wanted", [{"selector": "colour = 'red'"}, {"key": "us"}])
async def test_a_durable_subscription_with_another_selector_or_topic_is_a_new_one_though_its_topic_was_deleted(
    client: RawClient, topics: Topics, wanted: dict[str, str]
) -> None:
    """JMS 2.0, 8.3.3: it is as if the old one had been deleted, with what is in it."""
    await subscribed(client, DURABLE)
    ((name, bindings),) = topics.queues.items()
    bindings.clear()
    await subscribed(client, DURABLE, **wanted)
    assert topics.made.count(name) == 2
    assert len(topics.queues[name]) == len(topics.fingerprints[name]) == 1
    topics.queues[name].clear()
    await subscribed(client, DURABLE, **wanted)
    assert topics.made.count(name) == 2, "and that one goes on"


async def test_a_durable_subscription_of_an_older_version_goes_on_and_is_marked(
    client: RawClient, topics: Topics
) -> None:
    await subscribed(client, DURABLE)
    ((name, _),) = topics.queues.items()
    topics.fingerprints[name].clear()
    await subscribed(client, DURABLE)
    assert topics.made == [name] and len(topics.fingerprints[name]) == 1
    topics.queues[name].clear()
    await subscribed(client, DURABLE, selector="colour = 'red'")
    assert topics.made.count(name) == 2


async def test_a_durable_subscription_is_not_taken_from_who_came_in_between(
    client: RawClient, topics: Topics
) -> None:
    await subscribed(client, DURABLE)
    topics.is_listened_to = True
    subscribe(client, DURABLE, selector="colour = 'red'")
    assert (await client.expect("detach")).condition == RESOURCE_LOCKED
    ((_, bindings),) = topics.queues.items()
    assert bindings == [(TOPIC, "eu", ())]


async def test_a_listener_whose_proxy_has_died_is_waited_for(client: RawClient, topics: Topics) -> None:
    await subscribed(client, DURABLE)
    topics.consumers = [1, 1, 1]
    await subscribed(client, DURABLE)


async def test_a_listener_who_stays_is_not_waited_for_for_ever(client: RawClient, topics: Topics) -> None:
    await subscribed(client, DURABLE)
    topics.consumers = [1] * 100
    subscribe(client, DURABLE)
    assert (await client.expect("detach")).condition == RESOURCE_LOCKED
    looks = 100 - len(topics.consumers)
    assert looks <= 2 + subscriptions.WAIT_SECONDS / subscriptions.PAUSE_SECONDS


async def test_the_source_that_is_said_back_says_when_the_subscription_ends(client: RawClient) -> None:
    source = await subscribed(client, NONE, expiry_policy=codec.symbol(NEVER))
    assert (source["durable"] or NONE, source["expiry_policy"]) == (NONE, LINK_DETACH)
    source = await subscribed(client, DURABLE, expiry_policy=codec.symbol(LINK_DETACH))
    assert (source["durable"], source["expiry_policy"]) == (DURABLE, NEVER)


@pytest.mark.parametrize("address", ["topic:///orders", "/orders", "topic://"])
async def test_a_topic_without_a_name_is_none_and_not_the_queue_of_its_key(
    client: RawClient, topics: Topics, address: str
) -> None:
    await topics.declare_queue("orders")
    client.send(attach_receiver("news", address))
    frame = await client.expect("attach")
    source = codec.named(frame["source"]) if frame["source"] is not None else None
    if address == "/orders":
        # There may be a queue of that name, and the policy makes it.
        assert source is not None
        assert "/orders" in topics.queues
    else:
        assert (await client.expect("detach")).condition == NOT_FOUND
        assert not [name for name in topics.queues if name.startswith(TEMPORARY_QUEUE)]
