"""The workload of `mixed_workload.py` by AMQP alone: its clients reach nothing of a cluster but its proxies' ports.

Law: a queue is read to its end by a message that is sent to it for that, behind everything else.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence

from proton import Message

from lockstep.client.client import Client
from tests.chaos.amqp_client import RECONNECT_SECONDS, ConnectionLost, Refused, connect_to_any
from tests.chaos.liveness import Liveness
from tests.chaos.mixed_workload import MixedWorkload

_NOBODY = ("127.0.0.1:1",)
_READ_CREDIT = 500
_END = b"end of the reading"


class ProxyWorkload(MixedWorkload):
    """As its base; nobody looks on, and nobody can ask for an outcome."""

    def __init__(
        self,
        proxies: Sequence[str],
        set_name: str,
        liveness: Liveness,
        length: Callable[[str], int],
        *,
        name: str,
        senders: int = 2,
        movers: int = 2,
    ) -> None:
        """`length` says how many messages a queue has, whoever holds them."""
        # Its base's gRPC clients do nothing here: nothing is opened before it is used.
        super().__init__(
            Client(_NOBODY),
            _NOBODY,
            proxies,
            set_name,
            liveness,
            name=name,
            senders=(0, senders),
            movers=(0, movers),
        )
        self.readers = []
        self._length = length
        self._readings = itertools.count(1)

    async def declare(self) -> None:
        """The proxy declares queues that a client names; tries until a primary serves their set."""
        proxies = list(self._proxies)
        for queue in (self.input, *self.outputs):
            while True:
                client = await connect_to_any(proxies, f"{self.name}-declares")
                try:
                    await client.sender(queue)
                    break
                except (ConnectionLost, Refused):
                    await asyncio.sleep(RECONNECT_SECONDS)
                finally:
                    await client.close()

    async def _count(self, queue: str) -> int:
        return await asyncio.to_thread(self._length, queue)

    async def _bodies(self, queue: str) -> list[bytes]:
        """All of a queue that nobody else reads; they stay in it."""
        client = await connect_to_any(list(self._proxies), f"{self.name}-reads-{next(self._readings)}")
        try:
            sender = await client.sender(queue)
            await client.unless_lost(await sender.send(Message(body=_END, inferred=True, durable=True)))
            receiver = await client.receiver(queue, _READ_CREDIT)
            bodies: list[bytes] = []
            while True:
                taken = await receiver.take(_READ_CREDIT, 30.0)
                assert taken, f"{queue} shows {len(bodies)} messages, and not its end"
                receiver.grant(len(taken))
                bodies += [one.body for one in taken]
                if _END in bodies:
                    assert bodies[-1] == _END, f"something came behind the end of {queue}"
                    return bodies[:-1]
        finally:
            await client.close()
