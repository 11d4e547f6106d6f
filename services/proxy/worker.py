"""One worker: the connections of one process, its session on the brokers, and what all connections share.

Law: one session for all of them, so one stream per resource set carries everything in batches. A connection's own end gives
back what the worker holds for it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from lockstep.client.client import Client
from lockstep.client.session_settings import SessionSettings
from lockstep.runtime.limit_log import LimitLog
from services.proxy.arrivals import Arrivals
from services.proxy.connection import AmqpConnection
from services.proxy.containers import Containers
from services.proxy.core.conditions import CONNECTION_FORCED, Condition
from services.proxy.listener import ClientSocket
from services.proxy.nodes import Nodes
from services.proxy.reclaiming import Reclaims
from services.proxy.returning import Returning
from services.proxy.security.mechanisms import sasl_layer
from services.proxy.security.sasl_layer import SaslLayer
from services.proxy.security.settings import TlsSettings
from services.proxy.security.tls import peer_identity
from services.proxy.security.tls_files import TlsFiles
from services.proxy.security.users import AllowAll, Permissions, Users
from services.proxy.settings import ProxySettings
from services.proxy.steps import in_steps
from services.proxy.tls_arrival import ListeningSocket, TlsListener
from services.proxy.traffic import Traffic
from services.proxy.worker_room import WorkerRoom

_log = logging.getLogger("lockstep.proxy")

SESSION = SessionSettings(session_timeout_ms=2_000)
"""Of the worker on the brokers: what a proxy that died held is free again after so long. It runs while a primary serves the set
and the proxy is away, so failovers take nothing from it."""
CLAIM_SECONDS = SESSION.session_timeout_ms / 1000 + 1
"""How long a container waits for its last connection to be gone, whose proxy may have died."""
LOOK_SECONDS = 1.0
"""How often messages that wait for their clients are looked at."""


class Worker:
    """Lives from `start` to `stop`; used from one event loop."""

    def __init__(self, settings: ProxySettings, users: Users | None) -> None:
        self.settings = settings
        self.reclaims = Reclaims()
        self.returning = Returning()
        self.traffic = Traffic()
        self.input_room = WorkerRoom(settings.limits.unanswered_bytes_max)
        self.partials = WorkerRoom(settings.limits.partials_bytes_max)
        self.deliveries = WorkerRoom(settings.limits.deliveries_bytes_max)
        self.unsettled = WorkerRoom(settings.limits.unsettled_bytes_max)
        self.begun = WorkerRoom(settings.limits.begun_bytes_max)
        self.outputs = WorkerRoom(settings.limits.outputs_bytes_max)
        self.permissions: Permissions = AllowAll()
        self._users = users
        self.has_passwords = users is not None
        self._client = Client(settings.brokers, SESSION)
        self.nodes = Nodes(
            self._client,
            self._client.session(in_order=False, voided=self.reclaims.void),
            may_create_queues=settings.create_queues,
            may_create_topics=settings.create_topics,
        )
        self.refusals = LimitLog(_log)
        self.arrivals = Arrivals(settings.limits.arrivals_max, self.refusals, time.monotonic)
        self._sockets: dict[ClientSocket, None] = {}
        """Of those that are logged in."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self.containers = Containers(self.nodes, CLAIM_SECONDS, self.keep, self.refusals)

    async def start(self) -> None:
        """Raises `Rejected` (UNAVAILABLE) when no broker answers for `start_seconds`."""
        await self._client.administration.status(patience_seconds=self.settings.start_seconds)
        self._looking = asyncio.ensure_future(self._look())

    def socket(self, tls: TlsSettings | None, takes_over: Callable[[], None] | None = None) -> ClientSocket:
        """For a connection; one with TLS takes over from its handshake."""
        return ClientSocket(self, partial(self._begin_sasl, tls), takes_over)

    def tls_listener(self, sockets: Sequence[ListeningSocket], files: TlsFiles) -> TlsListener:
        """Accepts connections that begin with a handshake."""
        make_socket = partial(self.socket, self.settings.security.tls)
        seconds = self.settings.limits.handshake_seconds
        return TlsListener(sockets, self.arrivals, self.refusals, files, seconds, make_socket)

    async def stop(self) -> None:
        """Tells all clients, waits a little for them to go, and ends the session on the brokers."""
        if self._looking is not None:
            self._looking.cancel()
        for arrival in self.arrivals.all():
            arrival.close_now()
        await in_steps(self._close_all())
        deadline = asyncio.get_running_loop().time() + self.settings.limits.stop_seconds
        while (self._sockets or self._tasks) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for socket in list(self._sockets):
            socket.close_now()
        for task in list(self._tasks):
            task.cancel()
        await self._client.close()

    def _close_all(self) -> Iterator[None]:
        for socket in list(self._sockets):
            if socket.connection is not None:
                reason = Condition(CONNECTION_FORCED, "the proxy is stopping")
                socket.connection.close(reason, is_our_own=True)
            else:
                socket.close()
            yield

    @property
    def connections(self) -> list[AmqpConnection]:
        """Those that are past SASL."""
        return [socket.connection for socket in self._sockets if socket.connection is not None]

    def _begin_sasl(self, tls: TlsSettings | None, transport: asyncio.BaseTransport) -> SaslLayer:
        return sasl_layer(self.settings.security, self._users, peer_identity(transport, tls))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await in_steps(self.give_back_late(asyncio.get_running_loop().time()))

    def give_back_late(self, now: float) -> Iterator[None]:
        """Has all connections give back what has waited for their clients for too long."""
        for connection in self.connections:
            try:
                connection.give_back_late(now)
            except Exception as error:
                # Of one connection: the messages of the others do not wait because of it.
                self.refusals.seldom("not_given_back", f"peer={connection.peer}", error=error)
            yield

    # --- what sockets and connections ask for ---

    def take_connection(self, connection: ClientSocket) -> bool:
        """False: there are too many."""
        if len(self._sockets) >= self.settings.limits.connections_max:
            text = f"peer={connection.peer} is turned away: there are {len(self._sockets)} connections"
            self.refusals.refused("connections", text)
            return False
        self._sockets[connection] = None
        return True

    def drop_connection(self, connection: ClientSocket) -> None:
        self._sockets.pop(connection, None)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keeps a task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
