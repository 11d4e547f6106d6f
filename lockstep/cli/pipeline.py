"""`lockstep pipeline`: Spark jobs over committed events, as a process of their own."""

import importlib.util
import os
import sys
from typing import Annotated, NoReturn

import typer

from lockstep.cli.connection import DEFAULT_BROKERS, Brokers, errors

app = typer.Typer(no_args_is_help=True)
_PASS = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command("run", context_settings=_PASS)
def run(
    context: typer.Context,
    jobs: Annotated[
        list[str], typer.Argument(metavar="JOB...", help="ledger, metrics, backlog, time_in_queue, audit.")
    ],
    brokers: Brokers = DEFAULT_BROKERS,
) -> None:
    """Run jobs over what is committed, or go on with --follow.

    More options: `python -m services.pipeline run --help`.
    """
    _become("run", *jobs, "--brokers", brokers, *context.args)


@app.command("report", context_settings=_PASS)
def report(context: typer.Context) -> None:
    """One HTML page with plots, from what the ledger has.

    Options: `python -m services.pipeline report --help`.
    """
    _become("report", *context.args)


def _become(*arguments: str) -> NoReturn:
    if importlib.util.find_spec("pyspark") is None:
        errors.print("lockstep: the pipeline needs PySpark: pip install 'lockstep[pipeline]'", style="red")
        sys.exit(1)
    os.execv(sys.executable, (sys.executable, "-m", "services.pipeline", *arguments))
