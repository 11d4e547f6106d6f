"""`lockstep health`: whether one process serves."""

from typing import Annotated

import typer

from lockstep.cli.connection import Json, console, one_sentence, print_json
from lockstep.runtime.health_check import ask


def health(
    address: Annotated[str, typer.Argument(help="host:port or unix:path of any process of a cluster.")],
    name: Annotated[str, typer.Argument(help='Of what: "" the process; ready: a broker, in its sets.')] = "",
    json: Json = False,
) -> None:
    """Ask a process whether it serves (grpc.health.v1). Exit status 1: it does not."""
    with one_sentence():
        said = ask(address, name)
    if json:
        print_json({"address": address, "name": name, "status": said})
    else:
        console.print(said)
    if said != "SERVING":
        raise typer.Exit(1)
