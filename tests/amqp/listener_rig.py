"""The proxy's listener in one process, without a socket or a broker: bytes of one client in, and what became of it.

Law: an input is over when nothing of it is left: no connection, no task, no engine. It reports whatever came out of the
listener as an exception, wherever that was raised.
"""

import asyncio
import gc
import logging
import traceback
from collections.abc import Sequence
from typing import Any

from lockstep.runtime.limit_log import LimitLog
from services.proxy.containers import Containers
from services.proxy.engine import Engine
from services.proxy.settings import ProxySettings
from services.proxy.worker import Worker
from tests.amqp.stub_brokers import stub_nodes

TURNS_MAX = 2_000
"""Of the event loop, until nothing may be left of an input."""
Input = Sequence[tuple[bytes, int]]
"""Pieces as they are received, each with the turns of the event loop before the next."""


class FakeTransport(asyncio.Transport):
    """Takes what is written, and forgets all but the end of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.is_read = True
        self.protocol: asyncio.Protocol | None = None
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It is never full."""

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close


class _Noted(logging.Handler):
    """Exceptions that were caught and logged."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and record.exc_info[1] is not None:
            self._found.append(_text(record.exc_info[1]))


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


class _EveryFailure(LimitLog):
    """Also those for which the log has no line."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.getLogger("lockstep.proxy"))
        self._found = found

    def seldom(
        self, event: str, text: str, *, level: int = logging.WARNING, error: BaseException | None = None
    ) -> None:
        if error is not None:
            self._found.append(_text(error))
        super().seldom(event, text, level=level, error=error)


class ListenerRig:
    """One worker for all inputs; used from one event loop."""

    def __init__(self, settings: ProxySettings | None = None) -> None:
        self.found: list[str] = []
        self.worker = Worker(settings or ProxySettings(brokers=("127.0.0.1:1",)), None)
        self.worker.refusals = _EveryFailure(self.found)
        self.worker.nodes = stub_nodes()
        self.worker.containers = Containers(self.worker.nodes, 0.0, self.worker.keep, self.worker.refusals)
        self._noted = _Noted(self.found)
        logging.getLogger("lockstep.proxy").addHandler(self._noted)
        asyncio.get_running_loop().set_exception_handler(self._note)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.found.append(str(context.get("message")) + ": " + ("" if error is None else _text(error)))

    async def play(self, pieces: Input) -> int:
        """Plays one input to its end; returns how many bytes were answered. Raises `AssertionError` with what it found."""
        self.found.clear()
        transport = FakeTransport()
        socket = self.worker.socket(None)
        transport.protocol = socket
        socket.connection_made(transport)
        for data, turns in pieces:
            if transport.is_closing():
                break
            try:
                socket.data_received(data)
            except Exception as error:
                self.found.append(_text(error))
            for _ in range(turns):
                await asyncio.sleep(0)
        transport.close()
        del socket
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
            if not self.worker.connections and len(asyncio.all_tasks()) == 1:
                break
        else:
            left = [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            self.found.append(f"left over: {self.worker.connections}, {left}")
        assert not self.found, "\n".join(self.found)
        return transport.written

    def engines(self) -> int:
        """How many engines there are still."""
        gc.collect()
        return sum(isinstance(one, Engine) for one in gc.get_objects())
