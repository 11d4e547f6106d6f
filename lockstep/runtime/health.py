"""Health of a process, as `grpc.health.v1` has it: for container engines, orchestrators and load balancers.

Law: the name "" says that the process serves at all, and whoever restarts processes looks at that alone; further names, such as
`READY`, say whether it may be counted on now, and `STARTED` whether it has loaded what it needs for that. Clients that balance
their calls ask for the service that they call: it is served when the process is ready.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.rpc import Context, unary, unary_stream
from lockstep.runtime.wire import parse

READY = "ready"
STARTED = "started"
WATCH_SECONDS = 0.5
"""Between two looks for those who watch."""


class Health:
    """Lives as long as its server; what it says is asked for when somebody wants to know."""

    def __init__(self, checks: Mapping[str, Callable[[], bool]] | None = None) -> None:
        """`checks`: further names, and whether each of them is served now."""
        self._checks = {"": lambda: True, **(checks or {})}

    def know(self, services: Iterable[str]) -> None:
        """The full names of what is hosted beside it: each is served when the process is ready, or always where it says nothing
        of that.
        """
        is_ready = self._checks.get(READY, self._checks[""])
        self._checks |= dict.fromkeys(services, is_ready)

    def handlers(self) -> grpc.GenericRpcHandler:
        methods = {"Check": unary(HealthCheckRequest, self._check), "Watch": unary_stream(self._watch)}
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)

    async def _check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        check = self._checks.get(request.service)
        if check is None:
            raise Rejected(ErrorCode.NOT_FOUND, f"nothing is called {request.service!r} here")
        return _answer(check())

    async def _watch(self, data: bytes, context: Context) -> None:
        """Until the caller leaves. A name that nobody knows is told as such: it may come with a later version."""
        check = self._checks.get(parse(HealthCheckRequest(), data).service)
        told: HealthCheckResponse | None = None
        while True:
            unknown = HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
            answer = unknown if check is None else _answer(check())
            if answer != told:
                await context.write(answer.SerializeToString())
                told = answer
            await asyncio.sleep(WATCH_SECONDS)


def _answer(is_served: bool) -> HealthCheckResponse:
    return HealthCheckResponse(
        status=HealthCheckResponse.SERVING if is_served else HealthCheckResponse.NOT_SERVING
    )
