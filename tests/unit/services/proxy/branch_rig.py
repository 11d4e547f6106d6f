"""A worker of the proxy at a real primary: its session, the one that all of its clients share, with a stream in memory."""

import asyncio
from typing import cast

from lockstep.client import session_events as e
from lockstep.client.command_batches import CommandBatches
from lockstep.client.session import Session
from lockstep.client.session_settings import SessionSettings
from lockstep.client.set_session import SetSession
from lockstep.core.ids import SessionId
from lockstep.core.requests import ClientMessage
from lockstep.core.server_messages import AnyServerMessage, Told
from lockstep.core.xid import Xid
from lockstep.runtime.channels import Channels
from services.proxy.branch_work import BranchWork
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient

_TIMEOUT_MS = 1_000


class _Line(RigClient):
    """The primary's end of the session's streams: what it says is kept until the worker hears it."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, SessionId("named by the worker"))
        self.unheard: list[AnyServerMessage] = []

    def hear(self, message: Told) -> None:
        super().hear(message)
        self.unheard.append(cast(AnyServerMessage, message))


class _SessionInMemory(SetSession):
    """Says what it has to say, and hears the answers, in one turn of the event loop."""

    def __init__(self, rig: Rig) -> None:
        self.line = _Line(rig)
        self.is_deaf = False
        """What is answered now never comes."""
        super().__init__(cast(Channels, None), SET, ["b1"], SessionSettings(_TIMEOUT_MS, backoff_ms=1))

    def _perform(self, effect: e.Effect) -> None:
        match effect:
            case e.OpenStream():
                self.line.stream = self.line.rig.new_stream(self.line)
            case e.Send(stream, messages):
                self.loop.call_soon(self._say, stream, messages)
            case e.CloseStream():
                self.line.lose_stream()
            case _:
                super()._perform(effect)

    def _say(self, stream: int, messages: tuple[ClientMessage, ...]) -> None:
        self.line.say(*messages)
        heard, self.line.unheard = tuple(self.line.unheard), []
        self._written(stream)
        if not self.is_deaf:
            self.feed(e.Received(stream, heard))

    def outlast(self) -> None:
        """Its stream is lost for longer than the set keeps the session."""
        self.line.lose_stream()
        self.line.rig.pass_time(_TIMEOUT_MS + 1)
        self.is_deaf = False
        self.feed(e.StreamLost(self.core.line.stream, "in this test"))


class Worker:
    """Lives as long as its test."""

    def __init__(self, rig: Rig) -> None:
        self.session = _SessionInMemory(rig)
        self.batches = CommandBatches(self.session, in_order=False)

    async def of_target(self, _exchange: str, _routing_key: str) -> tuple[SetSession, CommandBatches]:
        return self.session, self.batches

    async def attached(self) -> None:
        """The primary serves its session, and has heard all that there was to say."""
        while not self.session.is_attached or len(self.session.core.window):
            await asyncio.sleep(0.001)

    def work(self, xid: Xid, timeout_ms: int = 0) -> BranchWork:
        """What a client of the worker begins when it declares this global-id."""
        return BranchWork(cast(Session, self), xid, timeout_ms)
