"""Whose turn it is."""

from dataclasses import dataclass

from bench.cases import Case
from bench.load_programs import Plan
from bench.peers.rounds import turns

TX, STREAM = Case("W1", "publish", 10, 4), Case("W3", "stream", 1000, 4)


@dataclass
class Fake:
    name: str
    operations: tuple[str, ...] = ("publish", "stream")
    syncs: str = ""

    def handles(self, case: Case) -> bool:
        return case.operation in self.operations

    async def plan(self, case: Case, *, seconds: float, warm_seconds: float = 1.0) -> Plan:
        raise AssertionError("nothing is measured here")


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
