"""Clients that say much in one go: nobody waits for more than a part of it, and no step of the event loop is long."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.protobuf.message import Message as ProtobufMessage

from lockstep.core.clock import Now
from lockstep.core.commands import OutgoingMessage, PublishCommand
from lockstep.core.effects import AnyEffect
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, SessionId, SessionKey, SetName
from lockstep.core.inputs import AnyInput, ClientSaid
from lockstep.core.requests import AttachSession, GrantCredit, Heard, Heartbeat
from lockstep.runtime.client_message_codec import HEADERS_MAX
from lockstep.runtime.driver import Driver
from lockstep.runtime.field_limit import FIELDS_MAX
from lockstep.runtime.serving import ServingRights
from lockstep.runtime.session_codec import MESSAGES_MAX, encode_request
from lockstep.transport.stream import READS_AT_ONCE
from lockstep.wire.v1 import session_pb2
from services.primary.long_requests import SAID_MAX
from services.primary.sessions import SessionsService
from tests.unit.lockstep.runtime.serialized import whole

SET = SetName("orders")
ATTACH = AttachSession(SET, SessionId("s"), SessionKey(0), Epoch(0), 10_000, 0, ())
ATTACKERS = 12
Message = session_pb2.ClientMessage


class Caller:
    """Attaches, and says what it has to when it is let."""

    def __init__(self, *requests: bytes) -> None:
        self.may_say = asyncio.Event()
        self.steps: list[float] = []
        """Processor seconds of each time that a request was given to the service."""
        self.received_bytes = 0
        self._requests = list(requests)

    async def read(self) -> Any:
        return whole(encode_request(SET, (ATTACH,)))

    async def hear(self, handle: Callable[[bytes], bool]) -> bool:
        await self.may_say.wait()
        for number in range(1, len(self._requests) + 1):
            if number % READS_AT_ONCE == 0:
                await asyncio.sleep(0)
            begun = time.thread_time()
            try:
                goes_on = handle(self._requests.pop(0))
            finally:
                self.steps.append(time.thread_time() - begun)
            if not goes_on:
                return True
        return bool(await asyncio.get_running_loop().create_future())

    def has_moved(self) -> bool:
        return True


class Core:
    def __init__(self) -> None:
        self.heard: list[Heard] = []

    def handle(self, given: AnyInput, now: Now, more_follow: bool = False) -> list[AnyEffect]:
        if isinstance(given, ClientSaid):
            self.heard += given.messages
        return []


@contextlib.asynccontextmanager
async def served(core: Core, *callers: Caller) -> AsyncIterator[list["asyncio.Task[None]"]]:
    """The calls, when each has attached."""
    driver = Driver()
    driver.host(SET, core)
    service = SessionsService(driver, ServingRights(), lambda _: ())
    calls = [asyncio.create_task(service._open(caller)) for caller in callers]  # type: ignore[arg-type]
    try:
        await until(lambda: len(core.heard) == len(callers))
        yield calls
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0)


@pytest.mark.parametrize("at_once", [MESSAGES_MAX, SAID_MAX, 50])
async def test_a_bystander_waits_for_a_part_of_what_others_say_however_many_they_are(at_once: int) -> None:
    core = Core()
    request = whole(encode_request(SET, [Heartbeat()] * at_once))
    callers = [Caller(*[request] * (MESSAGES_MAX // at_once)) for _ in range(ATTACKERS)]
    bystander = Caller(whole(encode_request(SET, [GrantCredit(1, 1)])))
    async with served(core, *callers, bystander):
        for caller in callers:
            caller.may_say.set()
        await until(lambda: len(core.heard) > ATTACKERS * SAID_MAX * 2)
        before = len(core.heard)
        bystander.may_say.set()
        await until(lambda: GrantCredit(1, 1) in core.heard[before:])
        assert core.heard[before:].index(GrantCredit(1, 1)) <= 3 * SAID_MAX
        everything = ATTACKERS * (MESSAGES_MAX + 1) + 2
        await until(lambda: len(core.heard) == everything)


def nested(message: type[ProtobufMessage], field: str, content: bytes, count: int = 1) -> bytes:
    """A field that begins with its size, so often."""
    tag = message.DESCRIPTOR.fields_by_name[field].number << 3 | 2
    return (varint(tag) + varint(len(content)) + content) * count


def varint(number: int) -> bytes:
    return bytes((number,)) if number < 0x80 else bytes((number & 0x7F | 0x80,)) + varint(number >> 7)


def request_of(kind: str, content: bytes) -> bytes:
    """With one message of that kind."""
    number = Message(number=1).SerializeToString() if kind in ("publish", "bind") else b""
    message = number + nested(Message, kind, content)
    named = session_pb2.SessionRequest(resource_set=SET).SerializeToString()
    return named + nested(session_pb2.SessionRequest, "messages", message)


@pytest.mark.parametrize("size", [500_000, 4_100_000])
async def test_a_publish_of_two_million_headers_is_refused_in_short_steps(size: int) -> None:
    """Below and above the size from which on fields are counted before a request is parsed."""
    messages, pairs = (size - 1000) // 205, session_pb2.Pairs(pairs=[session_pb2.Pair()] * 100)
    command = nested(Message.Publish, "bodies", b"", messages)
    command += nested(Message.Publish, "headers", pairs.SerializeToString(), messages)
    data = request_of("publish", command)
    assert 0.95 * size < len(data) < size
    caller = Caller(data)
    async with served(Core(), caller) as (call,):
        longest, begun = 0.0, time.thread_time()
        caller.may_say.set()
        async with asyncio.timeout(30):
            while not call.done():
                await asyncio.sleep(0)
                longest, begun = max(longest, time.thread_time() - begun), time.thread_time()
        with pytest.raises(Rejected) as refused:
            call.result()
    assert refused.value.code is ErrorCode.TOO_LARGE
    assert f"at most {HEADERS_MAX}" in str(refused.value) or f"{FIELDS_MAX} fields" in str(refused.value)
    assert longest < 0.05, f"a step of {1000 * longest:.0f} ms"


@pytest.mark.parametrize(
    "field", ["bind.arguments", "ask_outcome.session_ids", "attach.held", "attach.settling"]
)
async def test_no_list_of_one_message_is_made_before_it_is_counted(field: str) -> None:
    kind, _, name = field.partition(".")
    caller = Caller(request_of(kind, nested(type(getattr(Message(), kind)), name, b"", 250_000)))
    async with served(Core(), caller) as (call,):
        caller.may_say.set()
        with pytest.raises(Rejected, match=r"250000 .*, at most 20000"):
            await call
    assert max(caller.steps) < 0.1


async def test_what_is_behind_a_long_request_is_heard_behind_it() -> None:
    core = Core()
    long = [GrantCredit(number, 1) for number in range(1, MESSAGES_MAX + 1)]
    behind = [GrantCredit(0, number) for number in (1, 2)]
    caller = Caller(*(whole(encode_request(SET, said)) for said in (long, behind[:1], behind[1:])))
    async with served(core, caller):
        caller.may_say.set()
        await until(lambda: len(core.heard) == 1 + MESSAGES_MAX + 2)
    assert core.heard[1:] == long + behind


class Keeping(Core):
    """Keeps what it is fed for later, now and then."""

    holds_back = False


async def test_no_more_is_read_than_so_many_bytes_while_a_core_keeps_what_it_is_fed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("sessions", "long_requests"):
        monkeypatch.setattr(f"services.primary.{module}.UNHEARD_BYTES_MAX", 100_000)
    core = Keeping()
    publish = PublishCommand(1, "", "q", (OutgoingMessage(b"", bytes(10_000)),))
    callers = [Caller(*[whole(encode_request(SET, (publish,)))] * 10) for _ in range(4)]
    async with served(core, *callers):
        core.holds_back, before = True, len(core.heard)
        for caller in callers:
            caller.may_say.set()
        await asyncio.sleep(0.1)
        assert 9 <= len(core.heard) - before < 10 + len(callers), "one more of each stream, at most"
        core.holds_back = False
        await until(lambda: len(core.heard) - before == 10 * len(callers))
    assert caplog.text.count("event=clients_wait") == 1
