"""The command `lockstep demo`: starts a cluster of its own, plays, and prints the account."""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from lockstep.cli.connection import Json, console, print_json, run, show_table, table
from lockstep.cli.demo.pipeline import Audited, missing, run_pipeline
from lockstep.cli.demo.play import Play, Result
from lockstep.client import connect
from lockstep.core.counted import counted
from lockstep.runtime.local_cluster import LocalCluster


def demo(
    messages: Annotated[int, typer.Option(min=0, help="Messages; 0: every row of the data sets once.")] = 0,
    movers: Annotated[
        int, typer.Option(min=1, help="Clients that move messages, in each of the three sets.")
    ] = 2,
    batch: Annotated[int, typer.Option(min=1, help="Messages in one transaction.")] = 10,
    data: Annotated[
        Path | None, typer.Option("--data", help="Directory to use and keep; otherwise a temporary one.")
    ] = None,
    pipeline: Annotated[
        bool, typer.Option(help="At the end, audit all committed events with Spark, and draw a report.")
    ] = True,
    json: Json = False,
) -> None:
    """A cluster on this machine, real data, a killed primary, and an account of every message."""

    async def command() -> None:
        if not await play(messages, movers, batch, data, pipeline, json):
            sys.exit(1)

    run(command())


async def play(messages: int, movers: int, batch: int, data: Path | None, pipeline: bool, json: bool) -> bool:
    """Runs it all; whether nothing was lost, duplicated or torn."""
    started = time.monotonic()
    lacking = missing() if pipeline else ""
    audited: Audited | None = None
    directory = data or Path(tempfile.mkdtemp(prefix="lockstep-demo-"))
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        is_shown = console.is_terminal and not json
        with Progress(*columns, console=console, disable=not is_shown, transient=True) as progress:
            task = progress.add_task("Starting", total=None)

            def say(text: str) -> None:
                if not json:
                    progress.console.print(f"{time.monotonic() - started:5.1f} s  {text}")

            def show(what: str, completed: int, total: int) -> None:
                progress.update(task, description=what, completed=completed, total=total)

            async with LocalCluster(directory, brokers=3, cluster="demo", first_port=0) as cluster:
                say(
                    f"{counted(len(cluster.brokers), 'broker')} with their stores, and etcd, run on this machine"
                )
                is_audited = pipeline and not lacking
                async with await connect(cluster.addresses) as client:
                    result = await Play(cluster, client, say, show, is_audited).run(messages, movers, batch)
                if is_audited:
                    progress.update(task, description="Auditing")
                    say("Spark reads and audits what was committed")
                    audited = await run_pipeline(cluster.addresses, tables_in(data))
                elif lacking:
                    say(f"No audit of the committed events: {lacking}")
                progress.update(task, description="Stopping")
    finally:
        if data is None:
            shutil.rmtree(directory, ignore_errors=True)
    seconds = time.monotonic() - started
    is_clean = result.is_clean and (audited is None or audited.is_clean)
    if json:
        print_json(as_json(result, audited, seconds))
    else:
        show_result(result, audited, seconds)
    return is_clean


def tables_in(data: Path | None) -> Path:
    """Where the pipeline's tables and report are; they stay."""
    if data is None:
        return Path(tempfile.mkdtemp(prefix="lockstep-pipeline-"))
    tables = data / "pipeline"
    tables.mkdir(parents=True, exist_ok=True)
    return tables


def as_json(result: Result, audited: Audited | None, seconds: float) -> dict[str, object]:
    account, killing = result.account, result.killing
    return {
        "audit": None if audited is None else audited.said,
        "report": None if audited is None or audited.report is None else str(audited.report),
        "messages_in": account.messages_in,
        "messages_out": account.messages_out,
        "left": account.left,
        "committed": result.committed,
        "rolled_back": result.rolled_back,
        "in_flight_at_kill": killing.in_flight,
        "in_doubt_at_kill": killing.in_doubt,
        "resolved_by_outcome": result.resolved,
        "unresolved": result.unresolved,
        "lost": account.lost,
        "duplicated": account.duplicated,
        "torn": account.torn,
        "killed": killing.broker,
        "sets_without_primary": sorted(killing.led),
        "promoted": result.promoted,
        "failover_seconds": round(result.failover_seconds, 3),
        "back_in_sync_seconds": round(result.back_seconds, 3),
        "moving_seconds": round(result.moving_seconds, 3),
        "state_hashes": {
            set_name: {name: {"index": at, "hash": text} for name, (at, text) in of_set.items()}
            for set_name, of_set in result.hashes.items()
        },
        "seconds": round(seconds, 3),
        "is_clean": result.is_clean and (audited is None or audited.is_clean),
    }


def show_result(result: Result, audited: Audited | None, seconds: float) -> None:
    """The table at the end."""
    account, killing = result.account, result.killing
    rows = table("", "#")
    rows.show_header = False

    def row(name: str, value: object, is_good: bool | None = None) -> None:
        style = "" if is_good is None else "bold green" if is_good else "bold red"
        rows.add_row(name, Text(str(value), style=style))

    row("Messages in", f"{account.messages_in:,}")
    row(
        "Messages out (each in two queues)",
        f"{account.messages_out:,}",
        account.messages_out == 2 * account.messages_in,
    )
    row("Transactions committed", f"{result.committed:,}")
    row("Transactions rolled back, and done again", f"{result.rolled_back:,}")
    row("Transactions under way when the primary was killed", killing.in_flight)
    row("Commits in doubt, then resolved", max(killing.in_doubt, result.resolved) - result.unresolved)
    row("  of them by asking for their outcome, the others by resuming the session", result.resolved)
    row("Commits in doubt, not resolved", result.unresolved, not result.unresolved)
    row("Messages lost", account.lost, not account.lost)
    row("Messages duplicated", account.duplicated, not account.duplicated)
    row("Transactions torn", account.torn, not account.torn)
    row(
        f"Failover: {killing.broker} killed to first commit under {', '.join(result.promoted)}",
        f"{result.failover_seconds:.2f} s",
    )
    row(f"{killing.broker} started again to in sync", f"{result.back_seconds:.2f} s")
    rate = account.messages_in / result.moving_seconds if result.moving_seconds else 0
    row("Messages moved a second, failover included", f"{rate:,.0f}")
    for set_name, of_set in result.hashes.items():
        is_equal = len(set(of_set.values())) == 1
        for name, (index, text) in sorted(of_set.items()):
            row(f"State hash of {set_name} on {name} at index {index:,}", text[:16] or "-", is_equal)
    if audited is not None:
        row("Audit of all committed events", audited.said, audited.is_clean)
        if audited.report is not None:
            row("Report", audited.report)
    console.print()
    show_table(rows)
    is_clean = result.is_clean and (audited is None or audited.is_clean)
    verdict = "Nothing lost, nothing duplicated, nothing torn." if is_clean else "SOMETHING IS WRONG."
    console.print(Text.assemble("\n", (verdict, "bold"), f" {seconds:.1f} s in all."))
