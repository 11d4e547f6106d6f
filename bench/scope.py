"""What holds where: the page's first lines, and its first table.

Law: each column is of the newest run that there is of its kind, whatever it says, and where there is none it says so. Where
Lockstep is slower stands beside where it is faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.cases import Case
from bench.comparing import Comparison, compared
from bench.forms import ALONE
from bench.musts import MUSTS, PEER
from bench.results import USUAL_CORES, Run
from bench.tables import table

NOT_MEASURED = "not measured"
_UNWATCHED = "*"
_WORDS = """\
**What holds where.** Figures are messages a second of Lockstep as parts of another system's, in the same run: below 1
Lockstep is the slower one. In brackets are the rounds, the interval that the median lies in with 95 %, or all of less
than six, and the run: of those that have the case the newest, whatever it says.

- **Bursts.** A measurement is of five seconds and begins with all systems at rest. What Lockstep's stores put off (up to
  512 MiB) is done behind it. The columns of five minutes have that work in them.
- **Two cores.** All servers and clients of a system share two cores, which bind RabbitMQ's three nodes. Of four it used
  2.4 to 3.2, and Lockstep 1.4, as a resource set is a chain: more cores help others more than Lockstep.
- **The SDK.** The proxy for AMQP 1.0 has columns of its own: whoever comes from another broker comes with such clients.
- **Closed loops.** Each client waits for its transaction before it begins the next, at as many as the title says, as fast
  as they go. Lockstep gathers what such clients send; at a given rate below that (W6) its latency is higher than these
  tables show, and others' was not measured so. Latencies of different systems are at different rates: they do not compare.
- **One client with one message** is the first line."""
_OLD_FOUR = """\
On all four cores of a machine there is one round of older code (f34050d, in the notes), in which six of the eight musts
were missed, and Lockstep was slower than RabbitMQ in four of them."""
_UNWATCHED_WORDS = f"""\
{_UNWATCHED}: measured before runs had all systems at rest and watched them. RabbitMQ's clients at all nodes came directly behind
Lockstep, whose stores were still at work then: those figures of RabbitMQ are up to 45 % too low, and the ratio is too high
where they are its better way to be driven."""


@dataclass(frozen=True, slots=True)
class Column:
    """One of the table: kinds of runs, of which the newest one that has the case counts."""

    title: str
    kinds: tuple[str, ...]
    is_usual: bool = True
    """On two cores; False: on more."""
    path: str = "sdk"
    peer: str = PEER


_BURSTS = ("peers", "musts")
COLUMNS = (
    Column(f"to {PEER}: SDK, bursts, two cores", _BURSTS),
    Column(f"to {PEER}: AMQP proxy, bursts, two cores", _BURSTS, path="amqp"),
    Column(f"to {PEER}: SDK, five minutes, two cores", ("sustained",)),
    Column(f"to {PEER}: AMQP proxy, five minutes, two cores", ("sustained",), path="amqp"),
    Column(f"to {PEER}: SDK, bursts, all cores of a bigger machine", _BURSTS, is_usual=False),
    Column(
        f"to {PEER}: AMQP proxy, bursts, all cores of a bigger machine", _BURSTS, is_usual=False, path="amqp"
    ),
    Column("to artemis: SDK, bursts, two cores", _BURSTS, peer="artemis"),
)
CASES = (ALONE, *(must.case for must in MUSTS))


def scope(runs: Sequence[Run]) -> str:
    """In words, and as a table."""
    cells = [[_found(runs, column, case) for column in COLUMNS] for case in CASES]
    rows = [
        [f"{case.workload}: {case.title}", *map(_cell, found)]
        for case, found in zip(CASES, cells, strict=True)
    ]
    parts = [_WORDS, table(("case", *(column.title for column in COLUMNS)), rows)]
    if any(one is not None and not one[1].was_watched for found in cells for one in found):
        parts.append(_UNWATCHED_WORDS)
    if all(found[place] is None for found in cells for place, one in enumerate(COLUMNS) if not one.is_usual):
        parts.append(_OLD_FOUR)
    return "\n\n".join(parts)


def _found(runs: Sequence[Run], column: Column, case: Case) -> tuple[Run, Comparison] | None:
    """None: there is no such run."""
    able = [
        (run, one)
        for run in runs
        if run.kind in column.kinds and (run.machine.cores == USUAL_CORES) == column.is_usual
        if (one := compared(run.measurements, case, column.peer, column.path)).ratio
    ]
    return max(able, key=lambda one: one[0].started, default=None)


def _cell(counted: tuple[Run, Comparison] | None) -> str:
    if counted is None:
        return NOT_MEASURED
    run, found = counted
    mark = "" if found.was_watched else _UNWATCHED
    noise = ", noisy" if found.is_noisy else ""
    return f"{found.ratio:.2f}{mark} ({found.interval}{noise}; {run.kind})"
