"""Whose turn it is, and what is missing behind them."""

import io
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from bench.cases import Case
from bench.load_programs import Plan
from bench.musts import MUSTS
from bench.peers.rounds import Rounds, turns
from lockstep.core.errors import ErrorCode, Rejected
from tests.unit.bench.test_load_programs import WORKS

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

    async def plan(self, case: Case, *, seconds: float, warm_seconds: float = 1.0) -> Plan:
        self.planned.append(case)
        if len(self.planned) > self.plans_max:
            raise Rejected(ErrorCode.ILLEGAL_STATE, f"{self.name} does not run")
        program = WORKS if case.operation not in self.fails else "import sys; sys.exit(3)"
        command = (sys.executable, "-I", "-S", "-c", program)
        return Plan(
            self.name, "C", case.workload, case.title, [command], {"server": os.getpid()}, 0.0, seconds
        )


def test_systems_take_turns_case_by_case_and_another_begins_each_round() -> None:
    systems = [Fake("own"), Fake("peer"), Fake("database", ("publish",))]
    found = [(case.operation, system.name) for case, system in turns([TX, STREAM], systems, 2)]
    assert found == [
        *(("publish", name) for name in ("own", "peer", "database")),
        *(("stream", name) for name in ("own", "peer")),
        *(("publish", name) for name in ("peer", "database", "own")),
        *(("stream", name) for name in ("peer", "own")),
    ]


def test_a_case_that_nobody_handles_has_no_turn() -> None:
    assert list(turns([TX], [Fake("other", ())], 3)) == []


@pytest.fixture
def of_one_call(tmp_path: Path) -> Rounds:
    return Rounds(Console(file=io.StringIO(), width=200), tmp_path, 0.1, 0.0)


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
