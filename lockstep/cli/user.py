"""`lockstep user`: lines of a users file, which says who may log in to a proxy with a password."""

import getpass
import os
import sys
from typing import Annotated

import typer

from lockstep.cli.connection import fail
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.scram_credentials import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    credentials_of,
    user_line,
)

app = typer.Typer(no_args_is_help=True)


@app.callback()
def user() -> None:
    """Keeps `hash` a command of a group, although it is the only one."""


@app.command("hash")
def hash_password(
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    iterations: Annotated[
        int,
        typer.Option(min=ITERATIONS_MIN, max=ITERATIONS_MAX, help="Of the hash: more is slower to guess."),
    ] = ITERATIONS_DEFAULT,
) -> None:
    """Print the line for a users file. The password is the first line of the standard input, or asked for on a terminal."""
    try:
        line = user_line(name, credentials_of(_password(), os.urandom(SALT_BYTES), iterations))
    except ValueError as error:
        fail(Rejected(ErrorCode.INVALID_ARGUMENT, str(error)))
    sys.stdout.write(line + "\n")


def _password() -> str:
    """Raises `ValueError` if two passwords typed differ."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    password = getpass.getpass("Password: ")
    if password != getpass.getpass("Again: "):
        raise ValueError("the two passwords differ")
    return password
