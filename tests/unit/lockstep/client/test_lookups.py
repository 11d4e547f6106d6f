"""How many names a client asks for at a time: a burst waits at the client, in its order, and not at a broker."""

import asyncio

import lockstep
from lockstep.client.directory import LOOKUPS_MAX, Kind
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.channels import make_server
from lockstep.runtime.rpc import service, unary
from lockstep.wire.v1 import cluster_pb2 as pb


class Broker:
    """Answers a lookup when it is let; knows how many were there at once, and in which order they came."""

    def __init__(self) -> None:
        self.here = 0
        self.most = 0
        self.order: list[str] = []
        self.may_answer = asyncio.Event()

    async def status(self, _: pb.GetClusterStatusRequest) -> pb.GetClusterStatusResponse:
        return pb.GetClusterStatusResponse(broker="B1")

    async def locate(self, request: pb.LocateRequest) -> pb.LocateResponse:
        self.order.append(request.name)
        self.here += 1
        self.most = max(self.most, self.here)
        await self.may_answer.wait()
        await asyncio.sleep(0.001)
        self.here -= 1
        if request.name.startswith("missing"):
            raise Rejected(ErrorCode.NOT_FOUND, "no such queue")
        return pb.LocateResponse(resource_set="s", epoch=1)


async def test_a_burst_of_lookups_waits_at_the_client() -> None:
    broker, server = Broker(), make_server()
    methods = {
        "GetStatus": unary(pb.GetClusterStatusRequest, broker.status),
        "Locate": unary(pb.LocateRequest, broker.locate),
    }
    server.add_generic_rpc_handlers([service("Cluster", methods)])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    names = [f"{'missing' if number % 3 == 0 else 'q'}-{number}" for number in range(10 * LOOKUPS_MAX)]
    async with await lockstep.connect(address) as client:
        lookups = [asyncio.ensure_future(client._directory.locate(Kind.KIND_QUEUE, name)) for name in names]
        async with asyncio.timeout(30):
            while broker.here < LOOKUPS_MAX:
                await asyncio.sleep(0.01)
        broker.may_answer.set()
        answers = await asyncio.gather(*lookups, return_exceptions=True)
    await server.stop(0)
    assert broker.most == LOOKUPS_MAX
    assert broker.order == names
    assert sum(isinstance(answer, Rejected) for answer in answers) == len(names[::3])
