"""Results as Markdown: the tables of the page, of the terminal and of a run's own file."""

from collections.abc import Mapping, Sequence

from bench.environment import NOISY_CORES, NOISY_SLOWDOWN
from bench.musts import FAILOVER_GOALS
from bench.results import Disturbance, Measurement, Run, Trial

_HEADINGS = (
    "case",
    "through",
    "ops/s",
    "msgs/s",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "servers us/msg",
    "client us/msg",
    "client cores",
    "sync ms",
    "others",
    "slowdown",
)
_MARK = " (noisy)"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first column is text, the others are figures."""
    lines = [headings, [":--", *("--:" for _ in headings[1:])], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def measurements_table(measurements: Sequence[Measurement], with_system: bool = False) -> str:
    """One line for each."""
    rows = [_row(one, with_system) for one in measurements]
    return table(("system", *_HEADINGS, "systems") if with_system else _HEADINGS, rows)


def _row(one: Measurement, with_system: bool) -> list[str]:
    cores = sum(used.cores for used in one.clients.values())
    row = [
        f"{one.workload}: {one.case}",
        one.path,
        figure(one.operations_per_second),
        figure(one.messages_per_second),
        *(f"{value:.2f}" if value else "-" for value in (one.p50_ms, one.p99_ms, one.p999_ms)),
        figure(one.server_us),
        figure(one.client_us),
        f"{cores:.2f}{' (full)' if one.is_bound_by_client else ''}",
        f"{one.sync_ms:.2f}",
        *_disturbance(one),
    ]
    return [one.system, *row, _systems(one)] if with_system else row


def _systems(one: Measurement) -> str:
    """What other systems of the run did meanwhile, and which were not at rest before; "-": nobody looked."""
    worked = sum(one.system_cores.values())
    most = max(one.system_cores, key=lambda name: one.system_cores[name], default="")
    said = f"{worked:.2f}{f' ({most})' if worked > NOISY_CORES else ''}" if one.system_cores else "-"
    return f"{said}, not at rest: {', '.join(one.restless)}" if one.restless else said


def _disturbance(one: Disturbance) -> list[str]:
    return [
        f"{one.other_cores:.2f}{_MARK if one.other_cores > NOISY_CORES else ''}",
        f"{one.slowdown:.2f}{_MARK if one.slowdown > NOISY_SLOWDOWN else ''}" if one.slowdown else "-",
    ]


def processes_table(measurements: Sequence[Measurement]) -> str:
    """Processor time for each message, share of a core and memory of every process."""
    names = list(dict.fromkeys(name for one in measurements for name in (*one.processes, *one.clients)))
    rows = []
    for one in measurements:
        used = {**one.processes, **one.clients}
        cells = [
            f"{used[name].us_per_message:,.0f} us, {used[name].cores:.2f}, {used[name].resident_mib:,.0f} MiB"
            if name in used
            else "-"
            for name in names
        ]
        rows.append([f"{one.workload}: {one.case}, {one.path}", *cells])
    return table(("us a message, cores, resident", *names), rows)


def failovers_table(trials: Sequence[Trial]) -> str:
    """Seconds of every kind, beside its goals."""
    rows = [
        [
            f"W5: {one.what}",
            f"{len(one.seconds)}{', cut short' if one.cut_short else ''}",
            f"{one.median_seconds:.2f}",
            f"{one.worst_seconds:.2f}",
            *_verdict(one),
            f"{one.sync_ms:.2f}" if one.sync_ms else "-",
            *_disturbance(one),
        ]
        for one in trials
        if one.seconds
    ]
    headings = ("trials", "median s", "worst s", "goal", "result", "sync ms", "others", "slowdown")
    return table(("failover", *headings), rows)


def _verdict(trial: Trial) -> tuple[str, str]:
    """The goals, and what became of them; of several that differ each for itself."""
    goals = [goal for goal in FAILOVER_GOALS if goal.what == trial.what]
    results = [goal.result(trial) for goal in goals]
    if len(set(results)) > 1:
        results = [
            f"{goal.unit.removeprefix('s ')} {result}" for goal, result in zip(goals, results, strict=True)
        ]
    return ", ".join(map(str, goals)) or "-", ", ".join(dict.fromkeys(results)) or "-"


def missing_lines(missing: Mapping[str, str]) -> str:
    """A list of what was to be measured and was not; "" if that is nothing."""
    return "\n".join(f"- missing: {what}: {why}" for what, why in missing.items())


def conditions(run: Run) -> str:
    """The machine and the disk, in sentences."""
    machine, disk = run.machine, run.disk
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items() if version)
    return (
        f"{machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.system}, Python {machine.python}"
        f" ({versions}). Data on {disk.filesystem}, {disk.syncs_per_second:,.0f} fdatasync/s of 1 KiB"
        f" ({1000 / disk.syncs_per_second:.2f} ms). Run '{run.kind}' of {run.started:%Y-%m-%d %H:%M} UTC, commit"
        f" {run.commit or 'unknown'}."
    )


def figure(value: float) -> str:
    """Three digits are enough of anything measured."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def measurement_line(one: Measurement) -> str:
    """Of one measurement, for the terminal."""
    noisy = (
        f", others {one.other_cores:.2f} cores, systems {_systems(one)}, slowdown {one.slowdown:.2f}: noisy"
        if one.is_noisy
        else ""
    )
    return (
        f"{one.system:10} {one.workload} {one.case} ({one.path}):"
        f" {figure(one.messages_per_second)} msgs/s, {figure(one.operations_per_second)}/s, p50 {one.p50_ms:.2f} ms,"
        f" p99 {one.p99_ms:.2f} ms, servers {figure(one.server_us)} us/msg, client {figure(one.client_us)} us/msg{noisy}"
    )
