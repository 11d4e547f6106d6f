"""A broker of one process on a real port: the fake set behind the three services that a client uses."""

import asyncio
from typing import Any

import grpc
import grpc.aio

from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import SetName, parse_transaction_id
from lockstep.runtime.channels import make_server
from lockstep.runtime.session_codec import decode_request, encode_response
from lockstep.runtime.status import abort
from lockstep.wire.v1 import cluster_pb2, transactions_pb2
from tests.unit.lockstep.client.fake_primary import FakePrimary, FakeSet

Context = Any


class FakeBroker:
    """Serves the sets in `worlds`; `directory` tells where a name is. Everything is committed as soon as it is read."""

    def __init__(self, *set_names: str) -> None:
        self.worlds = {name: FakeSet() for name in set_names}
        self.directory: dict[str, str] = {}
        self.streams: list[tuple[str, FakePrimary, Context]] = []
        self.refusals: dict[str, tuple[ErrorCode, int]] = {}
        """Routing key -> what a publish to it is refused with, if it has more messages than this."""
        self.refused_accepts: dict[str, ErrorCode] = {}
        """Those in transactions, by queue."""
        self.only_set = ""
        """Where a name is to be declared that is nowhere, if no set is named."""
        self.creations: list[LockstepError] = []
        """What whoever creates a set is told, one try after the other."""
        self.shown: list[list[str]] = []
        """Ids of sessions that came with each question for an outcome."""
        self.outcome: int | None = None
        self.members: list[str] = []
        """Addresses of brokers, as its view has them."""
        self._calls: dict[Context, asyncio.Task[None]] = {}
        self.address = ""
        self.is_holding = False
        """Nothing is committed while this is set."""
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> "FakeBroker":
        self._server = make_server()
        handlers: dict[str, dict[str, Any]] = {
            "Sessions": {"Open": grpc.stream_stream_rpc_method_handler(self._open)},
            "Cluster": {
                "GetStatus": grpc.unary_unary_rpc_method_handler(self._status),
                "Locate": grpc.unary_unary_rpc_method_handler(self._locate),
                "CreateSet": grpc.unary_unary_rpc_method_handler(self._create_set),
            },
            "Transactions": {"GetOutcome": grpc.unary_unary_rpc_method_handler(self._outcome)},
        }
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(f"lockstep.wire.v1.{name}", methods)
                for name, methods in handlers.items()
            ]
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await self._server.stop(0)

    def hang_up(self) -> None:
        """Ends all session streams."""
        streams, self.streams = self.streams, []
        for _, _, context in streams:
            self._calls[context].cancel()

    async def deliver(self, set_name: str, consumer: int, queue: str, *positions: int) -> None:
        """Puts messages into the last stream of the set."""
        primary, context = next((p, x) for name, p, x in reversed(self.streams) if name == set_name)
        await self._write(context, set_name, [primary.deliver(consumer, queue, *positions)])

    async def drained(self, set_name: str, consumer: int, credit: int) -> None:
        """Says so on the last stream of the set."""
        primary, context = next((p, x) for name, p, x in reversed(self.streams) if name == set_name)
        await self._write(context, set_name, [primary.drained(consumer, credit)])

    async def commit(self) -> None:
        """Goes on after `is_holding`."""
        self.is_holding = False
        for name, primary, context in self.streams:
            await self._write(context, name, primary.commit(1 << 30))

    def let_go_after(self, seconds: float) -> None:
        """Goes on after `is_holding` by then."""
        asyncio.get_running_loop().call_later(seconds, lambda: asyncio.ensure_future(self.commit()))

    async def _write(self, context: Context, name: str, said: list[sm.AnyServerMessage]) -> None:
        if said:
            await context.write(encode_response(SetName(name), said))

    async def _open(self, _requests: object, context: Context) -> None:
        serving = self._calls[context] = asyncio.ensure_future(self._serve(context))
        await asyncio.wait([serving])
        serving.cancelled() or serving.result()

    async def _serve(self, context: Context) -> None:
        primary: FakePrimary | None = None
        while (data := await context.read()) is not grpc.aio.EOF:
            name, messages = decode_request(data)
            if primary is None:
                primary = FakePrimary(self.worlds[name], (self.address,))
                self.streams.append((name, primary, context))
            said: list[sm.AnyServerMessage] = []
            for message in messages:
                said += primary.hear(message)
                self._refuse(primary, message)
            if not self.is_holding:
                said += primary.commit(1 << 30)
            await self._write(context, name, said)

    def _refuse(self, primary: FakePrimary, message: rq.ClientMessage) -> None:
        publish = message.last_publish if isinstance(message, c.CommitCommand) else message
        if isinstance(publish, c.PublishCommand):
            code, count = self.refusals.get(publish.routing_key, (ErrorCode.NONE, 0))
            if len(publish.messages) > count and not primary.world.log[-1].code:
                primary.world.log[-1].code = code
        if isinstance(message, c.DeclareQueueCommand) and not self._is_in(
            primary, message.name, nowhere=True
        ):
            primary.world.log[-1].code = ErrorCode.ALREADY_EXISTS
        if isinstance(message, c.BindCommand) and not (
            self._is_in(primary, message.exchange) and self._is_in(primary, message.queue)
        ):
            primary.world.log[-1].code = ErrorCode.NOT_FOUND
        if isinstance(message, c.SettleCommand) and message.transaction is not None:
            primary.world.log[-1].code = primary.world.log[-1].code or self.refused_accepts.get(
                message.queue, ErrorCode.NONE
            )

    def _is_in(self, primary: FakePrimary, name: str, nowhere: bool = False) -> bool:
        """Whether the set of a primary has a name, as far as the directory knows; `nowhere`: or no set has."""
        where = self.directory.get(name)
        return nowhere if where is None else self.worlds[where] is primary.world

    async def _status(self, _data: bytes, _context: Context) -> bytes:
        member = cluster_pb2.GetClusterStatusResponse.Member
        members = [member(broker=f"B{number}", address=one) for number, one in enumerate(self.members, 1)]
        status = cluster_pb2.GetClusterStatusResponse(broker="B1", cluster="fake", members=members)
        return status.SerializeToString()

    async def _locate(self, data: bytes, context: Context) -> bytes:
        request = cluster_pb2.LocateRequest.FromString(data)
        if not request.name and not self.only_set:
            await abort(
                context, Rejected(ErrorCode.UNKNOWN_SET, f"there are {len(self.worlds)} resource sets")
            )
        is_set = request.kind == cluster_pb2.LocateRequest.KIND_SET
        name = (request.name or self.only_set) if is_set else self.directory.get(request.name)
        if name not in self.worlds and is_set:
            await abort(context, Rejected(ErrorCode.UNKNOWN_SET, f"no resource set {name!r}"))
        if name not in self.worlds:
            await abort(context, Rejected(ErrorCode.NOT_FOUND, f"no {request.name}", name=request.name))
        return cluster_pb2.LocateResponse(
            resource_set=name, epoch=1, candidates=[self.address]
        ).SerializeToString()

    async def _create_set(self, _data: bytes, context: Context) -> bytes:
        await abort(context, self.creations.pop(0))

    async def _outcome(self, data: bytes, context: Context) -> bytes:
        request = transactions_pb2.GetOutcomeRequest.FromString(data)
        self.shown.append(list(request.session_ids))
        name, key = parse_transaction_id(request.transaction_id)
        if name not in self.worlds:
            await abort(context, Rejected(ErrorCode.UNKNOWN_SET, f"no resource set {name!r}"))
        world = self.worlds[name]
        is_committed = any(
            isinstance(entry.command, c.CommitCommand) and entry.command.transaction == key
            for entry in world.log[: world.commit_index]
        )
        state = sm.OutcomeState.COMMITTED if is_committed else sm.OutcomeState.ROLLED_BACK
        return transactions_pb2.GetOutcomeResponse(
            transaction_id=request.transaction_id,
            state=state if self.outcome is None else self.outcome,  # type: ignore[arg-type]
            epoch=world.epoch,
        ).SerializeToString()


async def eventually(is_true: Any, seconds: float = 30.0) -> None:
    """Waits until it is; fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while not is_true():
            await asyncio.sleep(0.005)
