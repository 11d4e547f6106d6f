"""A fake broker for the command line: it knows what is in its sets, and some of them may be without a primary."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.wire.v1 import cluster_pb2
from tests.unit.lockstep.client.fake_broker import Context, FakeBroker
from tests.unit.lockstep.client.fake_primary import FakePrimary

NOBODY = "127.0.0.1:1"
"""Nobody listens there."""
_Broker = TypeVar("_Broker", bound=FakeBroker)


class ServedBroker(FakeBroker):
    """`queues`, `exchanges` and `branches`: what each set says that it has."""

    def __init__(self, *set_names: str) -> None:
        super().__init__(*set_names)
        self.without_primary: set[str] = set()
        self.queues: dict[str, tuple[sm.QueueDescription, ...]] = {}
        self.exchanges: dict[str, tuple[tuple[str, str, bool], ...]] = {}
        self.branches: dict[str, tuple[sm.BranchDescription, ...]] = {}
        self._asked: list[sm.AnyServerMessage] = []

    async def _status(self, _data: bytes, _context: Context) -> bytes:
        status = cluster_pb2.GetClusterStatusResponse(broker="B1", cluster="fake")
        for name in self.worlds:
            is_led = name not in self.without_primary
            status.sets.add(name=name, epoch=1, primary="B1", is_led=is_led, brokers=["B1"], in_sync=["B1"])
        return status.SerializeToString()

    async def _locate(self, data: bytes, context: Context) -> bytes:
        located = cluster_pb2.LocateResponse.FromString(await super()._locate(data, context))
        if located.resource_set in self.without_primary:
            located.candidates[:] = [NOBODY]
        return located.SerializeToString()

    def _refuse(self, primary: FakePrimary, message: rq.ClientMessage) -> None:
        super()._refuse(primary, message)
        if isinstance(message, rq.Recover):
            head = primary.epoch, primary.world.commit_index
            branches = self.branches.get(self._name_of(primary), ())
            self._asked.append(sm.Recovered(*head, message.request, branches, is_end=True))  # type: ignore[arg-type]

    async def _write(self, context: Context, name: str, said: list[sm.AnyServerMessage]) -> None:
        asked, self._asked = self._asked, []
        await super()._write(context, name, [self._known(name, one) for one in said] + asked)

    def _known(self, name: str, said: sm.AnyServerMessage) -> sm.AnyServerMessage:
        if not isinstance(said, sm.Description):
            return said
        described: dict[str, Any] = {field: getattr(said, field) for field in said.__struct_fields__}
        described |= {"queues": self.queues.get(name, ()), "exchanges": self.exchanges.get(name, ())}
        return sm.Description(**described)

    def _name_of(self, primary: FakePrimary) -> str:
        return next(name for name, world in self.worlds.items() if world is primary.world)


def queue_named(name: str) -> sm.QueueDescription:
    return sm.QueueDescription(name, 1, True, 1, 1, 0, 0)


@contextmanager
def serving(broker: _Broker) -> Iterator[_Broker]:
    """On an event loop of its own: a command runs one itself."""
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stopping = asyncio.Event()

    async def serve() -> None:
        async with broker:
            ready.set()
            await stopping.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    try:
        yield broker
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(30)
        loop.close()
