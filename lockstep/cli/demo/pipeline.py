"""The pipeline at the end of the demo: Spark reads what the demo has committed, audits it, and draws a report.

Law: the group is opened before the first message, so the audit sees every event there is. Without Java or PySpark the demo says
so and goes without.
"""

import asyncio
import importlib.util
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.client.events import EventsClient, Start

GROUP = "demo"
SECONDS_MAX = 300.0
"""A JVM starts, and reads some 90,000 events: 40 s on an idle machine."""


@dataclass(frozen=True, slots=True)
class Audited:
    """What came of it."""

    is_clean: bool
    said: str
    """The audit's own words, or what went wrong."""
    report: Path | None


def missing() -> str:
    """Why there is no pipeline here; "": nothing is missing."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed (the extra 'pipeline')"
    return "" if shutil.which("java") else "there is no Java 17 or newer"


async def open_group(addresses: Sequence[str]) -> None:
    """From now on what is committed is kept for the pipeline."""

    def opened() -> None:
        with EventsClient(addresses) as client:
            client.open_subscription(f"{GROUP}.ledger", Start.START_LATEST)

    await asyncio.to_thread(opened)


async def run_pipeline(addresses: Sequence[str], output: Path) -> Audited:
    """Runs ledger, audit and report; tables and page are in `output`, a directory, afterwards."""
    report, log = output / "report.html", output / "pipeline.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.pipeline", "run", "ledger", "audit", "--check"),
            *("--brokers", ",".join(addresses), "--group", GROUP, "--output", str(output)),
            *("--report", str(report)),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
        except TimeoutError:
            return Audited(False, f"not done after {SECONDS_MAX:g} s, see {log}", None)
        finally:
            # Also where the demo is interrupted.
            if process.returncode is None:
                process.kill()
                await process.wait()
    audit = next((line for line in said.decode().splitlines() if line.startswith("audit:")), "")
    if not audit:
        return Audited(False, f"failed with status {process.returncode}, see {log}", None)
    words = audit.removeprefix("audit: ")
    return Audited(process.returncode == 0, words, report)
