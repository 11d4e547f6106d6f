"""Coordinators, participants and a database as real processes, and a client of them, for tests.

Law: everything ends with the fixture; every wait has an end and says what it waited for.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
import psycopg
from google.protobuf.message import Message

from lockstep.core.decision_log import DecisionKeys
from lockstep.core.postgres_gid import gid_of
from lockstep.core.xid import Xid
from lockstep.runtime.channels import open_channel
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.status import error_from
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from lockstep.runtime.xid_codec import decode_xid
from lockstep.wire.v1 import coordinator_pb2 as pb
from services.coordinator.settings import EXIT_AT
from tests.integration.file_participant import read_states

SETTLE_SECONDS = 60.0
COMMITTED, ROLLED_BACK = pb.DISTRIBUTED_STATE_COMMITTED, pb.DISTRIBUTED_STATE_ROLLED_BACK
_Response = TypeVar("_Response", bound=Message)
_Seen = TypeVar("_Seen")


class CoordinatorClient:
    """Calls one coordinator; raises our errors."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = open_channel(address)

    async def until_ready(self, seconds: float = 30) -> None:
        """Returns when it is connected."""
        await asyncio.wait_for(self._channel.channel_ready(), seconds)

    async def call(
        self, method: str, request: Message, response: _Response, seconds: float = 30
    ) -> _Response:
        call: Any = self._channel.unary_unary(f"/lockstep.wire.v1.Coordinator/{method}")
        try:
            response.ParseFromString(await call(request.SerializeToString(), timeout=seconds))
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
        return response

    async def close(self) -> None:
        await self._channel.close()

    async def outcome(
        self, transaction: "ClientTransaction", *, fence: bool
    ) -> "pb.DistributedState.ValueType":
        request = pb.GetDistributedOutcomeRequest(transaction_id=transaction.transaction_id, fence=fence)
        return (await self.call("GetOutcome", request, pb.GetDistributedOutcomeResponse())).state


@dataclass
class ClientTransaction:
    """What a client knows of its transaction; enough for any coordinator."""

    transaction_id: bytes
    generation: str
    participants: list[str] = field(default_factory=list)
    xids: list[Xid] = field(default_factory=list)
    is_closed: bool = False

    @classmethod
    async def begin(
        cls, client: CoordinatorClient, participants: Sequence[str] = (), timeout_ms: int = 0
    ) -> "ClientTransaction":
        begun = await client.call(
            "Begin", pb.BeginDistributedRequest(timeout_ms=timeout_ms), pb.BeginDistributedResponse()
        )
        transaction = cls(begun.transaction_id, begun.generation)
        for name in participants:
            await transaction.enlist(client, name)
        return transaction

    async def enlist(self, client: CoordinatorClient, participant: str) -> Xid:
        request = pb.EnlistParticipantRequest(
            transaction_id=self.transaction_id,
            generation=self.generation,
            number=len(self.participants),
            participant=participant,
        )
        response = await client.call("Enlist", request, pb.EnlistParticipantResponse())
        self.participants.append(participant)
        self.xids.append(decode_xid(response.xid))
        return self.xids[-1]

    async def close(self, client: CoordinatorClient) -> None:
        request = pb.CloseDistributedRequest(
            transaction_id=self.transaction_id, generation=self.generation, participants=self.participants
        )
        await client.call("Close", request, pb.CloseDistributedResponse())
        self.is_closed = True

    async def commit(self, client: CoordinatorClient, seconds: float = 30) -> pb.CommitDistributedResponse:
        request = pb.CommitDistributedRequest(
            transaction_id=self.transaction_id,
            generation=self.generation,
            participants=self.participants,
            is_closed=self.is_closed,
            reads_state=True,
        )
        return await client.call("Commit", request, pb.CommitDistributedResponse(), seconds)

    async def rollback(self, client: CoordinatorClient) -> pb.RollbackDistributedResponse:
        request = pb.RollbackDistributedRequest(
            transaction_id=self.transaction_id,
            generation=self.generation,
            participants=self.participants,
            is_closed=self.is_closed,
            reads_state=True,
        )
        return await client.call("Rollback", request, pb.RollbackDistributedResponse())

    async def listed(self, client: CoordinatorClient) -> list[pb.ListDistributedResponse.Transaction]:
        """What List shows of it: one entry, or none."""
        # From right before it: other tests leave theirs.
        before = (int.from_bytes(self.transaction_id) - 1).to_bytes(len(self.transaction_id))
        request = pb.ListDistributedRequest(page_token=before.hex().encode())
        response = await client.call("List", request, pb.ListDistributedResponse())
        return [one for one in response.transactions if one.transaction_id == self.transaction_id]


class CoordinationRig:
    """Two participants in files and one database; coordinators as tests want them."""

    def __init__(self, directory: Path, etcd: EtcdClient, endpoint: str, cluster: str, dsn: str) -> None:
        self.directory = directory
        self.etcd = etcd
        self.cluster = cluster
        self.dsn = dsn
        self._shared = ("--etcd", endpoint, "--cluster", cluster)
        self._children: list[ChildProcess] = []
        self._clients: list[CoordinatorClient] = []
        self.files: dict[str, Path] = {}
        self.participants: dict[str, ChildProcess] = {}
        self.addresses: dict[str, str] = {}

    async def start_participants(self) -> None:
        python = (sys.executable, "-m")
        for name in ("one", "two"):
            (port,) = choose_ports(1)
            self.addresses[name], self.files[name] = f"127.0.0.1:{port}", self.directory / f"{name}.branches"
            command: tuple[str, ...] = (
                *(*python, "tests.integration.file_participant"),
                *(self.addresses[name], str(self.files[name])),
            )
            await self._start(name, command, self.addresses[name])
        (port,) = choose_ports(1)
        self.addresses["database"] = f"127.0.0.1:{port}"
        command = (
            *(*python, "services.postgres_participant", "--name", "rows", "--dsn", self.dsn),
            *("--listen", self.addresses["database"], *self._shared),
            *("--orphan-every-seconds", "0.5", "--orphan-age-seconds", "1"),
        )
        await self._start("database", command, self.addresses["database"])

    async def start_coordinator(
        self, *, exit_at: str = "", arguments: Sequence[str] = ()
    ) -> CoordinatorClient:
        """A new one; `exit_at`: the step at which it kills itself."""
        (port,) = choose_ports(1)
        address = f"127.0.0.1:{port}"
        command: tuple[str, ...] = (
            *(sys.executable, "-m", "services.coordinator", "--listen", address, *self._shared),
            *("--lease-seconds", "2", *arguments),
        )
        if exit_at:
            command = ("env", f"{EXIT_AT}={exit_at}", *command)
        await self._start(address, command, address)
        client = CoordinatorClient(address)
        self._clients.append(client)
        return client

    async def until_reached(self, client: CoordinatorClient) -> None:
        """Returns when a coordinator that was started again is there for this client."""
        await wait_for_port(self.child(client.address), client.address)
        await client.until_ready()

    def child(self, name: str) -> ChildProcess:
        return self.participants[name]

    async def _start(self, name: str, command: Sequence[str], address: str) -> None:
        child = ChildProcess(name, command, self.directory / f"{name}.log")
        self._children.append(child)
        self.participants[name] = child
        await child.start()
        await wait_for_port(child, address)

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        await asyncio.gather(*(child.kill() for child in self._children))

    # What is there

    def participant(self, name: str, behaviour: str = "ok") -> str:
        """The name by which coordinators call it."""
        return f"grpc://{self.addresses[name]}/{'rows' if name == 'database' else behaviour}"

    def ended(self, name: str, xid: Xid) -> str:
        """State of a branch in a file; "": it never heard of it."""
        return read_states(self.files[name]).get(str(xid), "")

    async def connect(self) -> "psycopg.AsyncConnection[tuple[object, ...]]":
        return await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)

    async def query(self, statement: str) -> list[tuple[object, ...]]:
        async with await self.connect() as connection:
            return await (await connection.execute(statement)).fetchall()

    async def insert(self, row: int, xid: Xid) -> "psycopg.AsyncConnection[tuple[object, ...]]":
        """A row in a transaction that is open; `prepare_row` prepares it."""
        connection = await self.connect()
        await connection.execute("begin")
        await connection.execute("insert into tokens values (%s)", (row,))
        return connection

    async def prepare_row(self, connection: "psycopg.AsyncConnection[tuple[object, ...]]", xid: Xid) -> None:
        await connection.execute(f"prepare transaction '{gid_of(xid)}'")
        await connection.close()

    async def rows(self) -> list[object]:
        return [row for (row,) in await self.query("select id from tokens order by id")]

    async def prepared_gids(self) -> list[object]:
        return [gid for (gid,) in await self.query("select gid from pg_prepared_xacts")]

    async def logged(self) -> list[str]:
        """Keys of transactions that the log still has."""
        keys = DecisionKeys(self.cluster)
        entries, _ = await self.etcd.get_prefix(keys.prefix)
        return [entry.key for entry in entries if not entry.key.startswith(keys.all_coordinators)]

    async def settled(self) -> None:
        """Returns when the log and the database have nothing under way."""
        await until("the log is empty", self.logged, lambda keys: not keys)
        await until("nothing is prepared in the database", self.prepared_gids, lambda gids: not gids)


async def until(
    what: str,
    look: Callable[[], Awaitable[_Seen]],
    holds: Callable[[_Seen], bool],
    seconds: float = SETTLE_SECONDS,
) -> _Seen:
    """Looks until something holds; fails with `what` and what was seen last."""
    deadline = time.monotonic() + seconds
    while True:
        seen = await look()
        if holds(seen):
            return seen
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}; last seen: {seen!r}"
        await asyncio.sleep(0.05)
