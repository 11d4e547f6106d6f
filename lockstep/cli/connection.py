"""How every command reaches the cluster, says what it has to say, and fails.

Law: an error is one sentence on stderr and exit status 1; with --json, stdout carries JSON and nothing else.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from lockstep.client import Client, Rejected, connect
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError
from lockstep.runtime.well_known_ports import FIRST_PORT

DEFAULT_BROKERS = ",".join(f"127.0.0.1:{FIRST_PORT + place}" for place in range(3))

Brokers = Annotated[
    str,
    typer.Option(
        "--brokers",
        "-b",
        envvar="LOCKSTEP_BROKERS",
        help="Addresses of brokers, host:port, separated by commas; one is enough.",
        show_default=True,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

WIDTH_MAX = 1 << 20
"""Columns that a table may take, whatever the terminal has: names have up to 255 bytes, and troubles are sentences."""

SECONDS_MAX = 86_400.0
"""What a command may be told to wait: a day."""

# What is printed has names of others in it, such as jobs[eu] or :100:, and says what it says.
_verbatim = partial(Console, soft_wrap=True, markup=False, emoji=False, highlight=False)
console = _verbatim()
errors = _verbatim(stderr=True)


def run(coroutine: Awaitable[Any]) -> None:
    """Runs a command to its end; its errors become one sentence."""

    async def main() -> None:
        await coroutine

    with one_sentence(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@contextmanager
def one_sentence() -> Iterator[None]:
    """What a command fails with in this block ends the process, with one sentence."""
    try:
        yield
    except LockstepError as error:
        fail(error)
    except ExceptionGroup as group:
        ours, others = group.split(LockstepError)
        if ours is None or others is not None:
            raise
        fail(_first_of(ours))
    except UnicodeEncodeError as error:
        fail(Rejected(ErrorCode.INVALID_ARGUMENT, f"{error.object!r} cannot be said in {error.encoding}"))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        if error.errno is None:
            raise  # A time-out of our own that nobody took.
        text = str(error) if error.filename is None else f"{error.filename}: {error.strerror}"
        fail(Rejected(ErrorCode.UNAVAILABLE, text))


def _first_of(group: ExceptionGroup[LockstepError]) -> LockstepError:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first


def fail(error: LockstepError) -> NoReturn:
    doubt = "in doubt: " if isinstance(error, InDoubt) else ""
    errors.print(f"lockstep: {doubt}{error.message}", style="red")
    sys.exit(1)


def with_client(brokers: str, command: Callable[[Client], Awaitable[None]]) -> None:
    """Connects, runs the command, closes."""

    async def main() -> None:
        async with await connect(brokers) as client:
            await command(client)

    run(main())


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def print_json_line(value: object) -> None:
    """One JSON document on one line, for streams of them."""
    sys.stdout.write(json.dumps(value, default=_plain) + "\n")
    sys.stdout.flush()


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Enum):
        return value.value
    return str(value)


def show_table(made: Table) -> None:
    """As wide as it needs to be: a figure that is cut off is worth nothing."""
    # The width of a print is cut to that of its console.
    wide = _verbatim(width=WIDTH_MAX)
    wide.print(made, width=max(1, wide.measure(made).maximum))


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the one style of all commands; a column whose name begins with # holds figures."""
    made = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        is_figure = column.startswith("#")
        made.add_column(column.removeprefix("#"), justify="right" if is_figure else "left", no_wrap=True)
    return made


__all__ = [
    "DEFAULT_BROKERS",
    "Brokers",
    "Json",
    "Rejected",
    "console",
    "errors",
    "one_sentence",
    "run",
    "table",
    "with_client",
]
