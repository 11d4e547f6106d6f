"""What every process of Lockstep does around its own code: malloc settings, logging, the event loop, starting, and stopping at
once.

Law: a bug of ours stops the process (CONVENTIONS, Failure), unless it is in the core of one resource set (`driver`): a stopped
broker is safe, one that goes on after a broken assumption is not. Only `halt` ends it that way, and it never returns.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import grpc.aio
import uvloop

from lockstep.runtime.garbage import YoungCollections, tune_garbage_collection
from lockstep.runtime.log_format import make_formatter
from lockstep.runtime.tracing import start_tracing

HALT_STATUS = 70
"""Exit status of a process that stopped itself (sysexits' EX_SOFTWARE)."""
CANCEL_SECONDS = 2.0
"""Between two requests to a start that it be given up: it may have something to close."""
MALLOC_ENVIRONMENT = {
    # glibc would map and unmap each large buffer: 26-54 page faults per batch of 100 KiB.
    "MALLOC_MMAP_THRESHOLD_": "67108864",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
}

_LOG_LEVEL = "LOCKSTEP_LOG"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_log = logging.getLogger("lockstep.process")


class CannotStart(Exception):
    """What keeps a program from starting: a sentence for whoever started it."""


def run_program(main: Callable[[], Coroutine[Any, Any, int]], traced_as: str = "") -> NoReturn:
    """Runs a service's `main` on uvloop and exits with its status, 1 after `CannotStart`; starts the program anew first if
    malloc's settings lack. `traced_as`: what it is called in traces; "": it makes none.
    """
    ensure_malloc_settings()
    set_up_logging()
    if traced_as:
        start_tracing(traced_as)
    tune_garbage_collection()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(_halt_on_loop_error)
        YoungCollections(loop).begin()
        try:
            status = runner.run(main())
        except CannotStart as error:
            _log.error("%s", error)
            status = 1
    sys.exit(status)


def ensure_malloc_settings() -> None:
    """glibc reads its settings when a process begins: without them this one begins again, with the same pid and arguments."""
    if any(name not in os.environ for name in MALLOC_ENVIRONMENT):
        environment = {**MALLOC_ENVIRONMENT, **os.environ}
        os.execve(sys.executable, sys.orig_argv, environment)


def set_up_logging() -> None:
    """One line per event on stderr; `LOCKSTEP_LOG` names the level (default INFO), `LOCKSTEP_LOG_FORMAT` the form.

    Raises `SystemExit`, with a sentence, for a level or a form that is none.
    """
    handler = logging.StreamHandler(sys.stderr)
    try:
        handler.setFormatter(make_formatter())
        level = _level(os.environ.get(_LOG_LEVEL, "INFO"))
    except ValueError as error:
        sys.exit(str(error))
    logging.basicConfig(level=level, handlers=[handler])
    for foreign in ("grpc", "asyncio"):
        logging.getLogger(foreign).setLevel(max(logging.INFO, logging.getLogger().level))


def _level(name: str) -> str:
    level = name.upper()
    if level not in logging.getLevelNamesMapping():
        raise ValueError(f"{_LOG_LEVEL} is one of {', '.join(_LEVELS)}, not {name!r}")
    return level


async def started(starting: Coroutine[Any, Any, None], stopping: asyncio.Event) -> bool:
    """Whether `starting` came to its end before `stopping` was set, which gives it up. Raises what it raised.

    A start may wait for other processes for ever; whoever is told to stop meanwhile stops.
    """
    work, stop = asyncio.ensure_future(starting), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
            return True
        return False
    finally:
        stop.cancel()
        while not work.done():
            # Again and again: a call that fails at that very moment may leave no trace of it.
            work.cancel()
            await asyncio.wait({work}, timeout=CANCEL_SECONDS)
        await asyncio.gather(work, stop, return_exceptions=True)


def bind(server: grpc.aio.Server, address: str) -> int:
    """The port, of a server that does not serve yet. Raises `CannotStart` where the address cannot be had."""
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise CannotStart(str(error)) from error


def halt(reason: str, error: BaseException | None = None) -> NoReturn:
    """Logs `reason` (and the traceback of `error`) and ends the process at once, without closing or flushing anything else."""
    _log.critical("halt: %s", reason, exc_info=error)
    logging.shutdown()
    os._exit(HALT_STATUS)


def spawn(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task of the process's own; if it raises, the process halts. The caller keeps the task."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    task.add_done_callback(_halt_on_error)
    return task


def _halt_on_error(task: asyncio.Task[None]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        halt(f"task {task.get_name()} failed", error)


def _halt_on_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, AssertionError):
        halt(str(context.get("message")), error)
    _log.warning("event loop: %s", context.get("message"), exc_info=error)
