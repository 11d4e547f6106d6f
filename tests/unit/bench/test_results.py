"""Medians of repetitions, and which runs are written."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import json, structs

from bench.environment import Disk, Machine, Refused
from bench.results import Run, Trial, medians, read_run, write_run
from tests.unit.bench.made import measurement, trial

KEPT = Path(__file__).parents[3] / "docs" / "performance"
MACHINE = Machine("a processor", 2, 24.0, "Linux 6", "3.11", {})


def run(disk: Disk) -> Run:
    return Run("short", datetime(2026, 1, 2, tzinfo=UTC), "abc", MACHINE, disk, [measurement("one", 10.0)])


def test_the_median_of_each_system_path_and_case_is_a_whole_measurement() -> None:
    found = [
        *(measurement("one", rate) for rate in (30.0, 10.0, 20.0)),
        *(measurement("one", rate, "rabbitmq") for rate in (3.0, 1.0)),
        measurement("one", 5.0, path="amqp"),
        measurement("two", 7.0),
    ]
    assert [(one.system, one.path, one.case, one.messages_per_second) for one in medians(found)] == [
        ("lockstep", "sdk", "one", 20.0),
        ("rabbitmq", "sdk", "one", 1.0),
        ("lockstep", "amqp", "one", 5.0),
        ("lockstep", "sdk", "two", 7.0),
    ]


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_run(run(Disk("ext4", 5000.0)), tmp_path / "out" / "run.json")
    assert read_run(tmp_path / "out" / "run.json") == run(Disk("ext4", 5000.0))


def test_failovers_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = structs.replace(run(Disk("ext4", 5000.0)), failovers=[trial("SIGKILL", 0.3, slowdown=1.1)])
    write_run(written, tmp_path / "run.json")
    assert read_run(tmp_path / "run.json") == written


def test_failovers_are_read_that_have_a_goal_in_words_and_neither_disk_nor_processors() -> None:
    text = b'{"what": "SIGKILL", "goal": "0.5 median, 1.5 worst", "seconds": [0.3, 0.1], "other_cores": 0.4}'
    read = json.decode(text, type=Trial)
    assert read == trial("SIGKILL", 0.3, 0.1, sync_ms=0.0, other_cores=0.4, slowdown=0.0)
    assert read.is_noisy


@pytest.mark.parametrize("disk", [Disk("tmpfs", 5000.0), Disk("ext4", 0.0)])
def test_a_run_without_a_real_disk_is_not_written_and_not_read(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(Refused):
        write_run(run(disk), path)
    assert not path.exists()
    write_run(run(Disk("ext4", 5000.0)), path)
    path.write_text(path.read_text().replace('"ext4"', '"tmpfs"'))
    with pytest.raises(Refused):
        read_run(path)


@pytest.mark.parametrize(
    ("what", "instead"),
    [('"filesystem": "ext4",', ""), ('"ext4"', "4"), ("{", "")],
    ids=["lacks", "mixes up", "is torn"],
)
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, what: str, instead: str) -> None:
    path = tmp_path / "run.json"
    write_run(run(Disk("ext4", 5000.0)), path)
    written = path.read_text()
    assert what in written
    path.write_text(written.replace(what, instead, 1))
    with pytest.raises(Refused, match=r"run\.json"):
        read_run(path)


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.name)
def test_runs_that_are_kept_beside_the_page_are_read(path: Path) -> None:
    kept = read_run(path)
    assert kept.measurements or kept.failovers


@dataclass(frozen=True)
class Mark:
    other_cores: float
    client_cores: float
    is_noisy: bool
    is_bound: bool
    slowdown: float = 1.0


@pytest.mark.parametrize(
    "mark",
    [
        Mark(0.35, 0.9, False, False, 1.25),
        Mark(0.36, 0.9, True, False),
        Mark(0.0, 0.91, False, True),
        Mark(0.0, 0.9, True, False, 1.26),
    ],
)
def test_a_busy_machine_a_slow_one_and_a_full_load_program_are_marked(mark: Mark) -> None:
    one = measurement(
        "one", 10.0, other_cores=mark.other_cores, client_cores=mark.client_cores, slowdown=mark.slowdown
    )
    assert (one.is_noisy, one.is_bound_by_client) == (mark.is_noisy, mark.is_bound)
    failover = trial("SIGKILL", 0.3, other_cores=mark.other_cores, slowdown=mark.slowdown)
    assert failover.is_noisy == mark.is_noisy


@pytest.mark.parametrize("path", ["amqp", "librabbitmq (C), all nodes", "JMS (Java)"])
def test_a_load_program_with_threads_is_not_full_at_one_core(path: str) -> None:
    assert not measurement("one", 10.0, path=path, client_cores=1.4).is_bound_by_client


def test_costs_of_servers_and_clients_are_sums() -> None:
    one = measurement("one", 10.0)
    assert (one.server_us, one.client_us) == (30.0, 5.0)
