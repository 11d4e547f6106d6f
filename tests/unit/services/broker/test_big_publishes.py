"""A publish of many bytes by a single call: the same is done as with few, and nobody waits for its copies."""

import asyncio
import mmap
from time import thread_time
from typing import Any, NamedTuple, cast

import grpc
import pytest

from lockstep.core.commands import PublishCommand
from lockstep.core.ids import Incarnation
from lockstep.core.pieces import at_once
from lockstep.runtime import rpc
from lockstep.runtime.channels import make_server
from lockstep.runtime.cluster_view import MemberEntry
from lockstep.runtime.driver import Driver
from lockstep.runtime.request_limits import request_bytes_max
from lockstep.transport.server import as_it_came
from lockstep.wire.v1 import transactions_pb2 as pb
from services.broker.transactions_codec import forwarded_publish
from services.broker.transactions_service import TransactionsService
from tests.unit.lockstep.runtime.serialized import whole
from tests.unit.services.broker.test_caller_sessions import ScriptedSet
from tests.unit.services.broker.test_transactions_service import B1, B2, SET, Services

MIB = 1024 * 1024
METHOD = "/lockstep.wire.v1.Transactions/Publish"
STEP_SECONDS = 0.02
"""Of processor time."""
BODIES = {
    "one": [bytes(33 * MIB)],
    "three": [bytes([number]) * (11 * MIB) for number in range(3)],
    "hundreds": [bytes([number % 256]) * (100 * 1024) for number in range(330)],
    "thousands": [bytes([number % 256]) * 3_400 for number in range(10_000)],
}


class Called(NamedTuple):
    """What a handler is found by."""

    method: str
    invocation_metadata: tuple[()] = ()


class Primary:
    """Of a set that does whatever it is told, with an open transaction."""

    def __init__(self) -> None:
        self.set, driver = ScriptedSet(), Driver()
        driver.host(SET, self.set)
        self.service: TransactionsService = Services(B1, driver=driver).transactions
        self.begun = pb.BeginResponse()

    async def begin(self) -> None:
        self.begun = await self.service._begin(pb.BeginRequest(resource_set=SET))

    def request(self, bodies: list[bytes], sequence: int = 1) -> pb.PublishRequest:
        return pb.PublishRequest(
            transaction_id=self.begun.transaction_id,
            secret=self.begun.secret,
            sequence=sequence,
            routing_key="q",
            messages=[
                pb.PublishRequest.OutgoingMessage(body=body, properties=b"p%d" % place, priority=place % 10)
                for place, body in enumerate(bodies)
            ],
        )

    @property
    def published(self) -> list[PublishCommand]:
        return [command for command in self.set.commands if isinstance(command, PublishCommand)]


@pytest.fixture
async def primary() -> Primary:
    made = Primary()
    await made.begin()
    return made


def as_it_comes(request: pb.PublishRequest) -> memoryview:
    """Big messages are not bytes when they are here."""
    data = request.SerializeToString()
    room = memoryview(mmap.mmap(-1, len(data)))
    room[:] = data
    return room.toreadonly()


def handler(service: TransactionsService) -> Any:
    return cast(Any, service.handlers()).service(Called(METHOD)).unary_unary


async def longest_step(call: Any) -> float:
    """Of those that a call takes, in seconds of processor time."""
    calling, longest = asyncio.ensure_future(call), 0.0
    while not calling.done():
        before = thread_time()
        await asyncio.sleep(0)
        longest = max(longest, thread_time() - before)
    calling.result()
    return longest


@pytest.mark.parametrize("name", BODIES)
async def test_no_step_is_long_by_it(primary: Primary, name: str) -> None:
    data = as_it_comes(primary.request(BODIES[name]))
    assert await longest_step(handler(primary.service)(data, None)) < STEP_SECONDS
    [command] = primary.published
    assert [message.body for message in command.messages] == BODIES[name]
    assert [message.properties for message in command.messages[:3]] == [b"p0", b"p1", b"p2"][
        : len(command.messages)
    ]


async def test_one_that_is_repeated_is_done_once_and_another_one_in_its_place_is_refused(
    primary: Primary,
) -> None:
    publish = handler(primary.service)
    bodies = BODIES["three"]
    for _ in range(2):
        await publish(as_it_comes(primary.request(bodies)), None)
    assert len(primary.published) == 1
    for others in (bodies[:2], [*bodies[:2], bodies[2][:-1] + b"x"], [bodies[1], bodies[0], bodies[2]]):
        answered = Answered()
        with pytest.raises(grpc.aio.AbortError):
            await publish(as_it_comes(primary.request(others)), answered)
        assert answered.code is grpc.StatusCode.INVALID_ARGUMENT
    assert len(primary.published) == 1


async def test_bodies_that_have_changed_their_places_are_another_publish(primary: Primary) -> None:
    publish, big = handler(primary.service), bytes(MIB)
    await publish(primary.request([big, b""]).SerializeToString(), None)
    answered = Answered()
    with pytest.raises(grpc.aio.AbortError):
        await publish(primary.request([b"", big]).SerializeToString(), answered)
    assert answered.code is grpc.StatusCode.INVALID_ARGUMENT


def test_what_a_later_version_says_in_a_publish_is_passed_on() -> None:
    said = pb.PublishRequest(sequence=7, messages=[pb.PublishRequest.OutgoingMessage(body=b"b")] * 300)
    later = said.SerializeToString() + b"\xa0\x06\x01"
    forwarded = whole(at_once(forwarded_publish(pb.PublishRequest.FromString(later), {})))
    said.is_forwarded = True
    assert forwarded.count(b"\xa0\x06\x01") == 1
    assert pb.PublishRequest.FromString(forwarded.replace(b"\xa0\x06\x01", b"")) == said


class Answered:
    """The context of a call that is refused."""

    code = grpc.StatusCode.OK

    async def abort(self, code: grpc.StatusCode, *_: object, **__: object) -> None:
        self.code = code
        raise grpc.aio.AbortError


@pytest.mark.parametrize("name", BODIES)
async def test_one_that_is_forwarded_arrives_as_it_was_and_makes_no_step_long(
    primary: Primary, name: str
) -> None:
    heard: list[bytes | memoryview] = []

    async def hear(data: bytes | memoryview, _context: Any) -> bytes:
        heard.append(data)
        return pb.PublishResponse(enqueues=5).SerializeToString()

    server = make_server(request_bytes_max)
    method: Any = grpc.unary_unary_rpc_method_handler(hear, request_deserializer=as_it_came)
    server.add_generic_rpc_handlers([rpc.service("Transactions", {"Publish": method})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    other = Services(B2)
    other.view.members[B2] = MemberEntry(B2, f"127.0.0.1:{port}", Incarnation("p"))
    request = primary.request(BODIES[name])
    longest = await longest_step(handler(other.transactions)(as_it_comes(request), None))
    request.is_forwarded = True
    assert pb.PublishRequest.FromString(bytes(heard[0])) == request
    assert longest < STEP_SECONDS
    await server.stop(None)
