"""What every process of Lockstep does around its own code: malloc settings, logging, the event loop, and stopping at once.

Law: a bug of ours stops the process (CONVENTIONS, Failure): a stopped broker is safe, one that goes on after a broken
assumption is not. Only `halt` ends it that way, and it never returns.
"""

import asyncio
import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import uvloop

from lockstep.runtime.log_format import make_formatter

HALT_STATUS = 70
"""Exit status of a process that stopped itself (sysexits' EX_SOFTWARE)."""
MALLOC_ENVIRONMENT = {
    # glibc would map and unmap each large buffer: 26-54 page faults per batch of 100 KiB.
    "MALLOC_MMAP_THRESHOLD_": "67108864",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
}

_log = logging.getLogger("lockstep.process")


def run_program(main: Callable[[], Coroutine[Any, Any, int]]) -> NoReturn:
    """Runs a service's `main` on uvloop and exits with its status; starts the program anew first if malloc's settings lack."""
    ensure_malloc_settings()
    set_up_logging()
    tune_garbage_collection()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(_halt_on_loop_error)
        status = runner.run(main())
    sys.exit(status)


def ensure_malloc_settings() -> None:
    """glibc reads its settings when a process begins: without them this one begins again, with the same pid and arguments."""
    if any(name not in os.environ for name in MALLOC_ENVIRONMENT):
        environment = {**MALLOC_ENVIRONMENT, **os.environ}
        os.execve(sys.executable, sys.orig_argv, environment)


def set_up_logging() -> None:
    """One line per event on stderr; `LOCKSTEP_LOG` names the level (default INFO), `LOCKSTEP_LOG_FORMAT` the form."""
    handler = logging.StreamHandler(sys.stderr)
    try:
        handler.setFormatter(make_formatter())
    except ValueError as error:
        sys.exit(str(error))
    logging.basicConfig(level=os.environ.get("LOCKSTEP_LOG", "INFO").upper(), handlers=[handler])
    for foreign in ("grpc", "asyncio"):
        logging.getLogger(foreign).setLevel(max(logging.INFO, logging.getLogger().level))


def tune_garbage_collection() -> None:
    """Fewer collections of the oldest generation: it holds all queues, and walking them takes longer than a commit."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def halt(reason: str, error: BaseException | None = None) -> NoReturn:
    """Logs `reason` (and the traceback of `error`) and ends the process at once, without closing or flushing anything else."""
    lines = "".join(traceback.format_exception(error)) if error is not None else ""
    _log.critical("halt: %s%s", reason, f"\n{lines}" if lines else "")
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
