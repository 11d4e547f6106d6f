"""What an AMQP connection stands on: what carries its bytes, and what it shares with the other connections of its worker."""

import asyncio
from typing import Protocol

from lockstep.runtime.limit_log import LimitLog
from services.proxy.containers import Containers
from services.proxy.nodes import Nodes
from services.proxy.reclaiming import Reclaims
from services.proxy.returning import Returning
from services.proxy.security.users import Permissions
from services.proxy.settings import ProxySettings
from services.proxy.traffic import Traffic
from services.proxy.worker_room import WorkerRoom


class Wire(Protocol):
    """What carries the connection's bytes."""

    def write(self, data: bytes | bytearray) -> None: ...
    def waiting_bytes(self) -> int: ...
    def close(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def fail(self, error: Exception) -> None: ...


class Surroundings(Protocol):
    """What a connection needs of its worker."""

    settings: ProxySettings
    nodes: Nodes
    permissions: Permissions
    reclaims: Reclaims
    returning: Returning
    containers: Containers
    traffic: Traffic
    input_room: WorkerRoom
    partials: WorkerRoom
    deliveries: WorkerRoom
    unsettled: WorkerRoom
    begun: WorkerRoom
    outputs: WorkerRoom
    refusals: LimitLog

    def keep(self, task: "asyncio.Task[None]") -> None: ...
