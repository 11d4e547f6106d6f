"""All runs beside others are kept, and none is chosen by its result."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from bench import register
from bench.environment import Refused
from bench.forms import FORMS
from bench.musts import MUSTS, PEER
from bench.results import BESIDE_OTHERS, Run
from tests.unit.bench.made import measurement
from tests.unit.bench.test_page import MACHINE, run

CASE = MUSTS[0].case
KEPT = Path(__file__).parents[3] / "docs" / "performance"


def made(day: int, kind: str = "musts", *, own: float = 30.0, cores: int = 2, is_whole: bool = True) -> Run:
    return structs.replace(
        run(kind, [measurement(CASE, own, slowdown=1.5), measurement(CASE, 10.0, PEER)]),
        started=datetime(2026, 1, day, tzinfo=UTC),
        machine=structs.replace(MACHINE, cores=cores),
        missing={} if is_whole else {"W2": "its turn did not come"},
        set_aside=[measurement(CASE, 99.0)],
    )


def test_a_run_is_written_down_as_it_came_out(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert register.read(path) == []
    for day, own in ((1, 30.0), (2, 20.0)):
        register.append(made(day, own=own), path)
    first, second = register.read(path)
    title = f"W1: {CASE.title}"
    assert (first.ratios[title], second.ratios[title]) == (3.0, 2.0)
    assert second.missed == first.missed + 1
    assert (first.rounds, first.noisy, first.measurements, first.set_aside) == (1, 1, 2, 1)
    table = register.register_table([first, second])
    assert table.count("musts, abc |") == 2 and "not whole" not in table


def test_the_page_takes_the_newest_run_of_each_kind_and_no_other() -> None:
    best, newest = made(1, own=90.0), made(2, own=5.0)
    entries = [register.entry_of(one) for one in (best, newest)]
    register.check([newest], entries)
    with pytest.raises(Refused, match="of 2026-01-01 00:00 has a newer one"):
        register.check([best], entries)
    with pytest.raises(Refused, match="of 2026-01-03 00:00 is not in"):
        register.check([newest, made(3)], entries)


def test_no_kind_is_left_out_of_the_page_and_no_machine() -> None:
    runs = [made(1), made(2, "peers"), made(3, cores=8)]
    entries = [register.entry_of(one) for one in runs]
    register.check(runs, entries)
    for left_out in runs:
        with pytest.raises(Refused, match="the page lacks the run"):
            register.check([one for one in runs if one is not left_out], entries)


def test_a_run_that_was_cut_short_stands_for_its_kind_only_while_there_is_no_whole_one() -> None:
    short, whole = made(2, is_whole=False), made(1)
    register.check([short], [register.entry_of(short)])
    entries = [register.entry_of(one) for one in (whole, short)]
    register.check([whole], entries)
    assert "not whole" in register.register_table(entries), "it is listed all the same"


def test_runs_of_lockstep_alone_are_not_in_it() -> None:
    register.check([run("full", [measurement(CASE, 1.0)])], [])


def test_a_look_in_another_form_is_not_written_down() -> None:
    form = FORMS["musts"]
    assert register.has_form("musts", form.seconds, form.rounds, form.peers[::-1])
    for seconds, rounds, peers in (
        (1.0, form.rounds, form.peers),
        (form.seconds, 1, form.peers),
        (form.seconds, form.rounds, form.peers[:1]),
    ):
        assert not register.has_form("musts", seconds, rounds, peers)


def test_every_kind_beside_others_has_a_form() -> None:
    assert FORMS.keys() == BESIDE_OTHERS.keys()
    assert all({must.case for must in MUSTS} <= set(FORMS[kind].cases) for kind in ("peers", "musts"))


def test_the_runs_that_are_kept_beside_the_page_are_in_the_register() -> None:
    from bench.results import read_run

    runs = [read_run(path) for path in sorted(KEPT.glob("*.json"))]
    register.check(runs, register.read(KEPT / "runs.jsonl"))
