"""How every command reaches the cluster, says what it has to say, and fails.

Law: an error is one sentence on stderr and exit status 1; with --json, stdout carries JSON and nothing else.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Annotated, Any, NoReturn

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from lockstep.client import Client, Rejected, connect
from lockstep.core.errors import InDoubt, LockstepError
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

WIDTH = 160
"""Columns that a table may take even where the terminal has fewer."""

console = Console(soft_wrap=True)
errors = Console(stderr=True, soft_wrap=True)


def run(coroutine: Awaitable[Any]) -> None:
    """Runs a command to its end; its errors become one sentence."""

    async def main() -> None:
        await coroutine

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except LockstepError as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)


def fail(error: LockstepError) -> NoReturn:
    doubt = "in doubt: " if isinstance(error, InDoubt) else ""
    errors.print(f"lockstep: {doubt}{error.message}", style="red", markup=False, highlight=False)
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
    Console(width=max(console.width, WIDTH), soft_wrap=True).print(made)


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
    "run",
    "table",
    "with_client",
]
