"""The page's first table: what was measured where, also where Lockstep is slower, and what was not."""

from datetime import UTC, datetime

from msgspec import structs

from bench.forms import ALONE
from bench.musts import MUSTS, PEER
from bench.results import Measurement, Run
from bench.scope import COLUMNS, NOT_MEASURED, scope
from tests.unit.bench.made import measurement
from tests.unit.bench.test_page import MACHINE, run

CASE = MUSTS[0].case
WATCHED = {"somebody": 0.0}


def sides(own: float, peer: float = 10.0, *, path: str = "sdk", other: str = PEER) -> list[Measurement]:
    return [
        measurement(CASE, own, path=path, system_cores=WATCHED),
        measurement(CASE, peer, other, path="C", system_cores=WATCHED),
    ]


def on(day: int, kind: str, measurements: list[Measurement], cores: int = 2) -> Run:
    return structs.replace(
        run(kind, measurements),
        started=datetime(2026, 1, day, tzinfo=UTC),
        machine=structs.replace(MACHINE, cores=cores),
    )


def cells(*runs: Run) -> list[str]:
    """Of the first must."""
    (line,) = [line for line in scope(runs).splitlines() if line.startswith(f"| W1: {CASE.title} |")]
    return line.strip("| ").split(" | ")[1:]


def test_what_nobody_measured_says_so() -> None:
    assert cells() == [NOT_MEASURED] * len(COLUMNS)
    assert "f34050d" in scope([]), "what is known of more cores, of older code, is said instead"


def test_every_column_is_of_its_own_kind_of_run() -> None:
    found = cells(
        on(1, "musts", sides(30.0)),
        on(2, "peers", [*sides(16.0, path="amqp"), *sides(5.0, other="artemis")]),  # newer, and slower
        on(3, "sustained", [*sides(22.0), *sides(12.0, path="amqp")]),
        on(4, "musts", [*sides(15.0), *sides(8.0, path="amqp")], cores=8),
    )
    ratios = [cell.partition(" ")[0] for cell in found]
    assert ratios == ["0.50", "1.60", "2.20", "1.20", "1.50", "0.80", "0.50"]


def test_the_newest_run_counts_and_not_the_best() -> None:
    for days in ((1, 2), (2, 1)):
        runs = [on(day, kind, sides(10.0 * day)) for day, kind in zip(days, ("musts", "peers"), strict=True)]
        assert cells(*runs)[0].startswith("2.00 (")
    runs = [on(1, "musts", sides(50.0)), on(2, "peers", sides(4.0))]
    assert cells(*runs)[0] == "0.40 (1 round; peers)"


def test_one_client_with_one_message_is_the_first_line() -> None:
    own, peer = measurement(ALONE, 63.0), measurement(ALONE, 100.0, PEER)
    lines = scope([on(1, "peers", [own, peer])]).splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("| :--")) + 1
    assert lines[first].startswith(f"| W1: {ALONE.title} | 0.63* (")


def test_what_was_measured_beside_systems_that_nobody_watched_is_marked() -> None:
    unwatched = [measurement(CASE, 30.0), measurement(CASE, 10.0, PEER)]
    text = scope([on(1, "musts", unwatched)])
    assert "3.00* (" in text and "up to 45 % too low" in text
    assert "up to 45 % too low" not in scope([on(1, "musts", sides(30.0))])
