"""The pipeline over what a chaos run has committed: its audit finds nothing, and its ledger is what the stores' logs mean."""

import asyncio
from pathlib import Path
from typing import Any

from lockstep.client.events import EventsClient, Start
from lockstep.core.ids import place
from services.pipeline.command import main
from services.pipeline.tables import Tables
from tests.chaos.committed_logs import model_of, one_log, read_journal
from tests.integration.cluster import SETS, Deployment
from tests.simulation.checkers.events import Seen, expected_events

GROUP = "chaos"
JOB = "ledger"


class LedgerAudit:
    """Of one cluster: `open` it before anything is committed that it is to see; `check` when nothing is in doubt."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._began: dict[str, int] = {}

    async def open(self) -> None:
        def opened() -> dict[str, int]:
            with EventsClient(self._deployment.addresses) as client:
                offsets = client.open_subscription(f"{GROUP}.{JOB}", Start.START_LATEST).offsets
            return {name: offset.index for name, offset in offsets.items()}

        self._began = await asyncio.to_thread(opened)

    async def check(self, spark: Any, directory: Path) -> int:
        """How many events there were. `directory`: for the pipeline's tables."""
        # Before the group acknowledges: then it keeps what the stores have to show.
        expected = {name: await self._expected(name) for name in SETS}
        arguments = ("run", JOB, "audit", "--check", "--brokers", ",".join(self._deployment.addresses))
        status = await asyncio.to_thread(
            main, (*arguments, "--group", GROUP, "--output", str(directory)), spark
        )
        tables = Tables(directory)
        assert status == 0, tables.audit.read_text()
        ledger = spark.read.parquet(str(tables.of(JOB)))
        rows = await asyncio.to_thread(ledger.drop("body", "properties").collect)
        for name in SETS:
            found = [_seen(row) for row in rows if row["resource_set"] == name and row["message_id"]]
            assert len(found) == len(set(found)), f"the ledger has an event of {name} twice"
            assert set(found) == expected[name], name
        return len(rows)

    async def _expected(self, set_name: str) -> set[Seen]:
        """What the set's log means, worked out from what its stores have."""
        addresses = self._deployment.store_addresses(set_name)
        journals = {broker: await read_journal(address, set_name) for broker, address in addresses.items()}
        model = model_of(one_log(journals))
        return {seen for seen in expected_events(model) if seen.at > self._began[set_name]}


def _seen(row: Any) -> Seen:
    position = place(row["position_index"], row["position_ordinal"])
    return Seen(row["index"], row["queue_id"], position, row["kind"] == "enqueue")
