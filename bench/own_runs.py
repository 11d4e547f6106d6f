"""Runs of Lockstep alone: which cluster each workload gets, and in which order.

Law: cases that need nothing special share one cluster, one after the other, each with queues of its own that it removes again;
what kills processes comes last. What fails is missing and remembered, and the others go on.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rich.console import Console

from bench import cases
from bench.cases import Case
from bench.compiling import compiled
from bench.database import synced_database
from bench.environment import Refused
from bench.failover import NeverCommitted, measured_etcd_failovers, measured_failovers
from bench.load_programs import LoadFailed, Plan, measure, settled
from bench.own_cluster import started
from bench.patience import Patience
from bench.results import Measurement, Trial
from bench.tables import measurement_line

AMQP_SOURCE = Path(__file__).with_name("amqp_client.cpp")
AMQP_PACKAGES = "g++, libqpid-proton11-dev"


class Planning(Protocol):
    """What `OwnCluster` is for one case."""

    async def plan(self, case: Case, *, seconds: float, client_processes: int = 1) -> Plan:
        """How it is measured."""


class Runs:
    """One call of the harness."""

    def __init__(
        self,
        console: Console,
        directory: Path,
        workloads: Sequence[str],
        seconds: float,
        client_processes: int,
        patience_seconds: float,
    ) -> None:
        """`patience_seconds`: how long all together for measuring again what came out noisy; 0: never."""
        self._console = console
        self._directory = directory
        self._workloads = workloads
        self._seconds = seconds
        self._client_processes = client_processes
        self._patience = Patience(patience_seconds)
        self.found: list[Measurement] = []
        self.failovers: list[Trial] = []
        self.failed: list[str] = []
        """What is missing."""

    async def run(self, *, is_full: bool, failovers: tuple[int, int, int]) -> None:
        """All workloads that were asked for; `failovers`: how many of SIGKILL and SIGSTOP of the primary, and of
        each of these of etcd's leader."""
        kills, stalls, of_etcd = failovers
        program = await amqp_program(self._console, self._directory)
        amqp = [] if program is None else cases.AMQP_FULL if is_full else cases.AMQP
        plain = [
            *cases.W1,
            *cases.W2,
            *cases.W3,
            *cases.W4_XA,
        ]
        async with started(
            self._directory / "main", proxies=1 if program else 0, amqp_program=program
        ) as cluster:
            await self.measure_all(cluster, [*plain, *amqp])
            await self.measure_latency(cluster, cases.LATENCY_FULL if is_full else cases.LATENCY_SHORT)
            if is_full:
                shared = [some for name, some in cases.W7.items() if name not in cases.W7_SHAPES]
                await self.measure_all(cluster, [case for some in shared for case in some])
                await self.measure_all(cluster, [] if program is None else cases.W7_AMQP)
            if "W5" in self._workloads:
                await settled(await cluster.pids())
                await self.take_trials(
                    measured_failovers(
                        cluster.deployment, cluster.sets[0], kills, stalls, self._console.print
                    )
                )
        if "W4" in self._workloads:
            await self._distributed(cases.W4_COORDINATED_FULL if is_full else cases.W4_COORDINATED)
        if is_full and "W7" in self._workloads:
            await self._shapes()
        if "W5" in self._workloads:
            await self._etcd_failovers(of_etcd)

    async def measure_all(self, cluster: Planning, wanted: Sequence[Case]) -> None:
        """Those whose workload was asked for."""
        for case in wanted:
            if case.workload in self._workloads and (one := await self._measured(cluster, case)) is not None:
                self.found.append(one)

    async def _measured(self, cluster: Planning, case: Case) -> Measurement | None:
        """None where a load program failed, which is said and remembered."""

        async def once() -> Measurement:
            plan = await cluster.plan(case, seconds=self._seconds, client_processes=self._client_processes)
            one = await measure(plan, self._directory)
            self._console.print(measurement_line(one))
            return one

        try:
            return await self._patience.least_noisy(once)
        except LoadFailed as failure:
            self.failed.append(f"{case.workload} {case.title} ({case.path})")
            self._console.print(f"{self.failed[-1]}: {failure}")
            return None

    async def measure_latency(self, cluster: Planning, shapes: Sequence[tuple[int, int]]) -> None:
        """W6, at half of the rate that W1 showed; measured here if that was not asked for."""
        if "W6" not in self._workloads:
            return
        for size, connections in shapes:
            case = Case("W1", "publish", size, connections)
            known = [one for one in self.found if one.key == case.key and one.path == "sdk"]
            one = known[0] if known else await self._measured(cluster, case)
            if one is None:
                continue
            paced = replace(case, workload="W6", rate=max(1.0, round(one.operations_per_second / 2)))
            await self.measure_all(cluster, [paced])

    async def take_trials(self, trials: AsyncIterator[Trial]) -> None:
        """W5, as far as it comes."""
        try:
            async for trial in trials:
                self.failovers.append(trial)
        except NeverCommitted as failure:
            self.failed.append(str(failure))
            self._console.print(self.failed[-1], markup=False)

    async def _distributed(self, wanted: Sequence[Case]) -> None:
        """W4 over two sets, and with a database that syncs."""
        async with (
            started(self._directory / "two-sets", sets=2, coordinators=1) as cluster,
            contextlib.AsyncExitStack() as stack,
        ):
            try:
                postgres = await stack.enter_async_context(synced_database(self._directory / "postgres"))
            except Refused as refused:
                self._console.print(f"{refused}: left out")
                wanted = [case for case in wanted if case.operation != "postgres"]
            else:
                await cluster.use_postgres(postgres, self._directory)
            await self.measure_all(cluster, wanted)

    async def _etcd_failovers(self, count: int) -> None:
        """The part of W5 that needs an etcd of three members."""
        async with started(self._directory / "etcd-members", etcd_members=3) as cluster:
            assert cluster.etcd_members is not None
            await settled(await cluster.pids())
            await self.take_trials(
                measured_etcd_failovers(
                    cluster.deployment, cluster.etcd_members, cluster.sets[0], count, self._console.print
                )
            )

    async def _shapes(self) -> None:
        """W7: clusters of other sizes."""
        for number, case in enumerate(case for name in cases.W7_SHAPES for case in cases.W7[name]):
            async with started(
                self._directory / f"shape-{number}", brokers=case.brokers, sets=case.sets
            ) as cluster:
                await self.measure_all(cluster, [case])


async def amqp_program(console: Console, directory: Path) -> Path | None:
    """The load program for the proxy; None where it cannot be compiled, which is said."""
    try:
        return await compiled(AMQP_SOURCE, directory, ("qpid-proton", "pthread"), AMQP_PACKAGES)
    except Refused as refused:
        console.print(f"{refused}; cases through the proxy are left out")
        return None
