"""Whose turn it is, and what is missing behind them."""

import io
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio
from rich.console import Console

from bench import rest
from bench.cases import Case
from bench.load_programs import Plan
from bench.measuring import cpu_seconds
from bench.musts import MUSTS
from bench.peers.rounds import Rounds, turns
from lockstep.core.errors import ErrorCode, Rejected
from tests.unit.bench.test_load_programs import WORKS
from tests.unit.bench.test_rest import NEVER, Burning, looks

__all__ = ["looks"]

TX, STREAM = Case("W1", "publish", 10, 4), Case("W3", "stream", 1000, 4)


@dataclass
class Fake:
    name: str
    operations: tuple[str, ...] = ("publish", "stream")
    syncs: str = ""
    fails: tuple[str, ...] = ()
    """Whose load programs do."""
    plans_max: int = 100
    """Behind which it is lost."""
    planned: list[Case] = field(default_factory=list)

    def handles(self, case: Case) -> bool:
        return case.operation in self.operations

    idle: int = field(default_factory=os.getpid)
    """A process of it that does nothing."""
    takes_seconds: float = 0.0
    """Of its load programs, to be measured in."""
    late: int = 0
    """One that works on, whoever's turn it is; 0: none."""

    async def pids(self) -> dict[str, int]:
        return {"server": self.idle, "late": self.late} if self.late else {"server": self.idle}

    async def plan(self, case: Case, *, seconds: float, warm_seconds: float = 1.0) -> Plan:
        self.planned.append(case)
        if len(self.planned) > self.plans_max:
            raise Rejected(ErrorCode.ILLEGAL_STATE, f"{self.name} does not run")
        program = WORKS if case.operation not in self.fails else "import sys; sys.exit(3)"
        program = program.replace("input();", f"input(); import time; time.sleep({self.takes_seconds});")
        command = (sys.executable, "-I", "-S", "-c", program)
        return Plan(self.name, "C", case.workload, case.title, [command], {"server": self.idle}, 0.0, seconds)


def test_systems_take_turns_case_by_case_in_rows_of_a_balanced_square() -> None:
    systems = [Fake("own"), Fake("peer"), Fake("database", ("publish",))]
    found = [(turn.round, turn.case.operation, turn.system.name) for turn in turns([TX, STREAM], systems, 2)]
    assert found == [
        *((1, "publish", name) for name in ("own", "peer", "database")),
        *((1, "stream", name) for name in ("peer", "own")),
        *((2, "publish", name) for name in ("peer", "database", "own")),
        *((2, "stream", name) for name in ("own", "peer")),
    ]


@pytest.mark.parametrize("count", [3, 4, 6])
def test_over_a_whole_square_nobody_is_always_behind_the_same_one(count: int) -> None:
    """Also between the cases of a round: whoever leaves work behind leaves it to all alike."""
    systems = [Fake(f"system {number}") for number in range(count)]
    cases = [replace(TX, size=size) for size in range(1, count + 1)]
    order = list(turns(cases, systems, 2 * count))
    follows = Counter((one.system.name, other.system.name) for one, other in pairwise(order))
    within = Counter(
        (one.system.name, other.system.name) for one, other in pairwise(order) if one.case == other.case
    )
    assert len(set(within.values())) == 1
    assert max(follows.values()) <= 1.5 * min(follows[pair] for pair in within)


def test_a_case_that_nobody_handles_has_no_turn() -> None:
    assert list(turns([TX], [Fake("other", ())], 3)) == []


def rounds_of(directory: Path, *, resting_seconds_max: float = 20.0, patience: float = 0.0) -> Rounds:
    return Rounds(Console(file=io.StringIO(), width=200), directory, 0.1, patience, resting_seconds_max)


@pytest_asyncio.fixture
async def burner() -> AsyncIterator[Burning]:
    made = Burning()
    yield made
    await made.stop()


@pytest.mark.usefixtures("looks")
async def test_nobody_is_measured_while_another_system_works_on_behind_its_turn(
    tmp_path: Path, burner: Burning
) -> None:
    rounds = rounds_of(tmp_path, resting_seconds_max=60.0)
    peer = Fake("peer", idle=await burner.start(), late=await burner.start(1.0))
    await rounds.run([TX], [Fake("lockstep", idle=await burner.start()), peer], 1)
    first, second = rounds.found
    assert (first.system, second.system) == ("lockstep", "peer")
    assert cpu_seconds(peer.late) > 0.9, "it was done before anything was measured"
    assert (first.system_cores, first.restless, first.round) == ({"peer": 0.0}, [], 1)
    assert second.system_cores == {"lockstep": 0.0, "peer": 0.0}


@pytest.mark.usefixtures("looks")
async def test_what_of_a_system_has_no_part_in_its_turn_is_watched_too(
    tmp_path: Path, burner: Burning
) -> None:
    """As the proxy in a turn of the SDK."""
    own = Fake("lockstep", idle=await burner.start(), late=await burner.start(1.0))
    rounds = rounds_of(tmp_path, resting_seconds_max=60.0)
    await rounds.run([TX], [own], 1)
    assert cpu_seconds(own.late) > 0.9
    assert rounds.found[0].system_cores == {"lockstep": 0.0}


@pytest.mark.usefixtures("looks")
async def test_a_measurement_beside_a_system_that_does_not_come_to_rest_says_whose_work_it_was(
    tmp_path: Path, burner: Burning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "LOOKS", NEVER)
    rounds = rounds_of(tmp_path, resting_seconds_max=3.0)
    peer = Fake("peer", idle=await burner.start(), late=await burner.start(600.0))
    own = Fake("lockstep", idle=await burner.start(), takes_seconds=2.0)
    await rounds.run([TX], [own, peer], 1)
    beside = rounds.found[0]
    assert (beside.system, beside.restless) == ("lockstep", ["peer"])
    assert beside.system_cores["peer"] > 0
    assert beside.disturbing_cores == beside.other_cores + beside.system_cores["peer"]
    assert beside.is_noisy


@pytest.mark.usefixtures("looks")
async def test_what_is_measured_again_is_kept(
    tmp_path: Path, burner: Burning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "LOOKS", NEVER)
    rounds = rounds_of(tmp_path, resting_seconds_max=1.0, patience=3.0)
    peer = Fake("peer", idle=await burner.start(), late=await burner.start(600.0))
    await rounds.run([TX], [Fake("lockstep", idle=await burner.start()), peer], 1)
    assert len(rounds.found) == 2
    assert rounds.set_aside, "noisy ones were measured again"
    assert {one.round for one in (*rounds.found, *rounds.set_aside)} == {1}


@pytest.fixture
def of_one_call(tmp_path: Path) -> Rounds:
    return rounds_of(tmp_path)


async def test_a_system_that_is_lost_has_no_turns_any_more_and_the_others_go_on(of_one_call: Rounds) -> None:
    own, peer = Fake("lockstep"), Fake("peer", plans_max=1)
    await of_one_call.run([TX, STREAM], [own, peer], 2)
    assert [one.system for one in of_one_call.found] == [
        "lockstep",
        "peer",
        "lockstep",
        "lockstep",
        "lockstep",
    ]
    assert len(peer.planned) == 2
    assert of_one_call.missing == {
        f"peer W1 {TX.title} (1 of its measurements)": "peer does not run",
        f"peer W3 {STREAM.title} (2 of its measurements)": "peer does not run",
    }


async def test_a_load_program_that_fails_twice_is_missing(of_one_call: Rounds) -> None:
    peer = Fake("peer", fails=("stream",))
    await of_one_call.run([TX, STREAM], [peer], 1)
    assert peer.planned == [TX, STREAM, STREAM]
    assert of_one_call.missing == {
        f"peer W3 {STREAM.title} (1 of its measurements)": "a load program ended with 3"
    }


@pytest.mark.parametrize(
    ("system", "case", "is_of_must"),
    [("lockstep", TX, True), ("rabbitmq", TX, True), ("postgres", TX, False), ("rabbitmq", STREAM, False)],
)
async def test_one_measurement_that_lacks_of_several_is_one_of_a_must(
    of_one_call: Rounds, system: str, case: Case, is_of_must: bool
) -> None:
    assert TX.key in {must.case.key for must in MUSTS}
    await of_one_call.run([case], [Fake(system, plans_max=1)], 2)
    assert len(of_one_call.found) == 1
    assert of_one_call.is_must_missing == is_of_must
