"""What a message costs at each hop, and the record of it."""

from pathlib import Path

from msgspec.structs import replace

from bench.cpu import Entry, Hops, add_to_record, by_hop, changes, read_record
from bench.environment import Disk
from bench.results import Measurement, Used
from tests.unit.bench.made import measurement


def repetition(scale: float) -> Measurement:
    made = measurement("one", 1000.0 * scale)
    return Measurement(
        **{
            name: getattr(made, name)
            for name in made.__struct_fields__
            if name not in ("processes", "clients")
        },
        processes={
            "primary B1": Used(0.5, 1.0, 20.0 * scale),
            "backup B2": Used(0.5, 1.0, 8.0 * scale),
            "backup B3": Used(0.5, 1.0, 12.0 * scale),
            "store B1": Used(0.5, 1.0, 6.0 * scale),
            "etcd": Used(0.5, 1.0, 99.0),
        },
        clients={"client 1": Used(0.5, 1.0, 1.0 * scale), "client 2": Used(0.5, 1.0, 2.0 * scale)},
    )


def entry(primary: float) -> Entry:
    hops = Hops({"primary": primary, "client": 3.0}, 1000.0)
    return Entry("2026-01-02 03:04", "abc", "a processor", 2, Disk("ext4", 5000.0), 0.1, {"one": hops})


def test_a_hop_is_the_mean_of_its_processes_and_the_median_of_repetitions() -> None:
    found = by_hop([repetition(scale) for scale in (1.0, 9.0, 2.0)])
    assert found.us == {"client": 6.0, "primary": 40.0, "backup": 20.0, "store": 12.0}
    assert (found.messages_per_second, found.instructions) == (2000.0, {})


def test_instructions_are_shown_where_they_were_counted() -> None:
    hops = by_hop([repetition(1.0)], {"primary": 50_000.0})
    assert hops.instructions == {"primary": 50_000.0}
    counted = replace(entry(10.0), cases={"one": hops})
    assert changes(counted, None).splitlines()[-3] == "| one | - | - | 50,000 | - | - |"
    assert changes(counted, counted).splitlines()[-3] == "| one | - | - | 50,000 (50,000) | - | - |"


def test_entries_are_added_behind_those_that_are_there(tmp_path: Path) -> None:
    record = tmp_path / "docs" / "record.jsonl"
    assert read_record(record) == []
    for primary in (20.0, 10.0):
        add_to_record(entry(primary), record)
    assert read_record(record) == [entry(20.0), entry(10.0)]


def test_an_entry_from_before_processors_were_looked_at_is_read(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    add_to_record(replace(entry(20.0), slowdown=1.5), record)
    record.write_text(record.read_text().replace(',"slowdown":1.5', ""))
    assert read_record(record) == [replace(entry(20.0), slowdown=0.0)]


def test_a_change_is_shown_beside_what_it_was() -> None:
    shown = changes(entry(10.0), entry(20.0)).splitlines()
    assert shown[-3] == "| one | 3.0 (3.0) | - | 10.0 (20.0) | - | - | 1,000 |"
    assert changes(entry(10.0), None).splitlines()[-3] == "| one | 3.0 | - | 10.0 | - | - | 1,000 |"


def test_a_change_says_how_disturbed_both_were() -> None:
    slow = replace(entry(10.0), slowdown=2.0)
    of_slow = "others used up to 0.10 cores, and processors were up to 2.00 times slower than at best"
    before = "others used up to 0.10 cores, and processors were not looked at"
    assert changes(slow, None).splitlines()[-1] == f"Meanwhile {of_slow}."
    assert changes(slow, entry(20.0)).splitlines()[-1] == f"Meanwhile {of_slow} (before: {before})."
