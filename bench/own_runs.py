"""Runs of Lockstep alone: which cluster each workload gets, and in which order.

Law: cases that need nothing special share one cluster, one after the other, each with queues of its own that it removes again;
what kills processes comes last. What is to be measured is missing until it is: what fails stays so, and the others go on; with a
cluster of which a server ended goes only what was still to be measured on it.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from rich.console import Console

from bench import cases
from bench.cases import Case
from bench.compiling import compiled
from bench.database import synced_database
from bench.environment import Refused
from bench.failover import (
    LEADER_KILLED,
    LEADER_STALLED,
    PRIMARY_KILLED,
    PRIMARY_STALLED,
    measure_etcd_failovers,
    measure_failovers,
    series_of,
)
from bench.load_programs import SYSTEM_LOST, LoadFailed, Plan, measure, reason
from bench.own_cluster import NAME, started
from bench.patience import Patience
from bench.rest import at_rest
from bench.results import NOT_YET, Measurement, Trial
from bench.tables import measurement_line

AMQP_SOURCE = Path(__file__).with_name("amqp_client.cpp")
AMQP_PACKAGES = "g++, libqpid-proton11-dev"
_SERIES = (
    (PRIMARY_KILLED, PRIMARY_STALLED),
    (*series_of(LEADER_KILLED, is_watched=True), *series_of(LEADER_STALLED, is_watched=True)),
)
"""Of W5: on the cluster of most cases, and on one whose etcd has three members."""


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
        self.seconds = seconds
        self._client_processes = client_processes
        self._patience = Patience(patience_seconds)
        self.found: list[Measurement] = []
        self.failovers: list[Trial] = []
        self.missing: dict[str, str] = {}
        """What is to be measured and was not, and why; what this machine has no program for is in it, too."""
        self.set_aside = self._patience.set_aside
        """What was measured again, and does not count."""
        self.has_failed = False
        """Something is missing that this machine has everything for."""

    async def run(self, *, is_full: bool, failovers: tuple[int, int, int]) -> None:
        """All workloads that were asked for; `failovers`: how many of SIGKILL and SIGSTOP of the primary, and of
        each of these of etcd's leader."""
        program = await amqp_program(self._console, self._directory)
        first = [*cases.W1, *cases.W2, *cases.W3, *cases.W4_XA]
        first += cases.AMQP_FULL if is_full else cases.AMQP
        shapes = cases.LATENCY_FULL if is_full else cases.LATENCY_SHORT
        scaled = [case for name, some in cases.W7.items() if name not in cases.W7_SHAPES for case in some]
        later = [*scaled, *cases.W7_AMQP] if is_full else []
        main = self.expect(*map(_name, first), *map(_paced_name, shapes), *map(_name, later))
        main += self.expect(*map(_series_name, _SERIES[0]))
        distributed = cases.W4_COORDINATED_FULL if is_full else cases.W4_COORDINATED
        parts = [
            (main, partial(self._main, program, first, shapes, later, failovers)),
            (self.expect(*map(_name, distributed)), partial(self._distributed, distributed)),
        ]
        for case in (case for name in cases.W7_SHAPES for case in cases.W7[name]) if is_full else ():
            parts.append((self.expect(_name(case)), partial(self._shape, case, len(parts))))
        parts.append(
            (self.expect(*map(_series_name, _SERIES[1])), partial(self._etcd_failovers, failovers[2]))
        )
        for expected, measuring in parts:
            await self.part(expected, measuring)

    def expect(self, *names: str) -> list[str]:
        """Those whose workload was asked for: they are missing from now on."""
        expected = [name for name in names if name.partition(" ")[0] in self._workloads]
        self.missing |= dict.fromkeys(expected, NOT_YET)
        return expected

    async def part(self, expected: Sequence[str], measuring: Callable[[], Awaitable[None]]) -> None:
        """What is to be measured on one cluster, if there is anything; a cluster that is lost takes only what was left of it."""
        if not expected:
            return
        try:
            await measuring()
        except SYSTEM_LOST as error:
            self._console.print(f"a cluster is lost: {error}", markup=False)
            self._miss(error, *(name for name in expected if self.missing.get(name) == NOT_YET))

    def _miss(self, error: Exception, *names: str) -> None:
        self.has_failed = True
        for name in names:
            self.missing[name] = reason(error)
            self._console.print(f"{name}: {self.missing[name]}", markup=False)

    def _leave_out(self, why: str, wanted: Sequence[Case]) -> None:
        """Of those that were asked for."""
        self.missing |= {name: why for name in map(_name, wanted) if name in self.missing}

    async def _main(
        self,
        program: Path | None,
        first: Sequence[Case],
        shapes: Sequence[tuple[int, int]],
        later: Sequence[Case],
        failovers: tuple[int, int, int],
    ) -> None:
        """All that needs nothing special."""
        async with started(
            self._directory / "main", proxies=1 if program else 0, amqp_program=program
        ) as cluster:
            unable = [case for case in (*first, *later) if not cluster.handles(case)]
            self._leave_out("no load program for the proxy", unable)
            await self.measure_all(cluster, [case for case in first if cluster.handles(case)])
            await self.measure_latency(cluster, shapes)
            await self.measure_all(cluster, [case for case in later if cluster.handles(case)])
            if "W5" in self._workloads:
                kills, stalls, _ = failovers
                await at_rest({NAME: await cluster.pids()})
                await measure_failovers(cluster.deployment, cluster.sets[0], kills, stalls, self.take_trial)

    async def measure_all(self, cluster: Planning, wanted: Sequence[Case]) -> None:
        """Those whose workload was asked for."""
        for case in wanted:
            if case.workload in self._workloads:
                one = await self._measured(cluster, case, _name(case))
                self._take(one, _name(case))

    async def _measured(self, cluster: Planning, case: Case, name: str) -> Measurement | None:
        """None where a load program failed: then what has that name is missing."""

        async def once() -> Measurement:
            plan = await cluster.plan(case, seconds=self.seconds, client_processes=self._client_processes)
            one = await measure(plan, self._directory)
            self._console.print(measurement_line(one))
            return one

        try:
            return await self._patience.least_noisy(once)
        except LoadFailed as failure:
            self._miss(failure, name)
            return None

    def _take(self, one: Measurement | None, name: str) -> None:
        if one is not None:
            self.found.append(one)
            self.missing.pop(name, None)

    async def measure_latency(self, cluster: Planning, shapes: Sequence[tuple[int, int]]) -> None:
        """W6, at half of the rate that W1 showed; measured here if that was not asked for."""
        if "W6" not in self._workloads:
            return
        for shape in shapes:
            case, name = Case("W1", "publish", *shape), _paced_name(shape)
            known = [one for one in self.found if one.key == case.key and one.path == "sdk"]
            one = known[0] if known else await self._measured(cluster, case, name)
            if one is not None:
                rate = max(1.0, round(one.operations_per_second / 2))
                paced = replace(case, workload="W6", rate=rate)
                self._take(await self._measured(cluster, paced, name), name)

    def take_trial(self, trial: Trial) -> None:
        """A series of W5, as far as it came."""
        name = _series_name(trial.what)
        if trial.seconds:
            self.failovers.append(trial)
            self._console.print(f"{name}: {' '.join(f'{one:.2f}' for one in trial.seconds)} s", markup=False)
        if trial.cut_short:
            self.has_failed = True
            self.missing[name] = f"behind {len(trial.seconds)} trials: {trial.cut_short}"
        else:
            self.missing.pop(name, None)

    async def _distributed(self, wanted: Sequence[Case]) -> None:
        """W4 over two sets, and with a database that syncs."""
        async with (
            started(self._directory / "two-sets", sets=2, coordinators=1) as cluster,
            contextlib.AsyncExitStack() as stack,
        ):
            with_database = [case for case in wanted if case.operation == "postgres"]
            try:
                postgres = await stack.enter_async_context(synced_database(self._directory / "postgres"))
                await cluster.use_postgres(postgres, self._directory)
            except Refused as refused:
                self._console.print(f"{refused}: left out")
                self._leave_out(str(refused), with_database)
                wanted = [case for case in wanted if case not in with_database]
            except SYSTEM_LOST as error:
                self._miss(error, *map(_name, with_database))
                wanted = [case for case in wanted if case not in with_database]
            await self.measure_all(cluster, wanted)

    async def _etcd_failovers(self, count: int) -> None:
        """The part of W5 that needs an etcd of three members."""
        async with started(self._directory / "etcd-members", etcd_members=3) as cluster:
            await at_rest({NAME: await cluster.pids()})
            await measure_etcd_failovers(
                cluster.deployment, cluster.etcd, cluster.sets[0], count, self.take_trial
            )

    async def _shape(self, case: Case, number: int) -> None:
        """W7: a cluster of another size."""
        async with started(
            self._directory / f"shape-{number}", brokers=case.brokers, sets=case.sets
        ) as cluster:
            await self.measure_all(cluster, [case])


def _name(case: Case) -> str:
    return f"{case.workload} {case.title} ({case.path})"


def _paced_name(shape: tuple[int, int]) -> str:
    """Of a case of W6, before its rate is known."""
    return _name(Case("W6", "publish", *shape))


def _series_name(what: str) -> str:
    return f"W5 {what}"


async def amqp_program(console: Console, directory: Path) -> Path | None:
    """The load program for the proxy; None where it cannot be compiled, which is said."""
    try:
        return await compiled(AMQP_SOURCE, directory, ("qpid-proton", "pthread"), AMQP_PACKAGES)
    except Refused as refused:
        console.print(f"{refused}; cases through the proxy are left out")
        return None
