"""A bit that rots in RocksDB's files: what is read is whole, or it is said that it is not (DESIGN R10)."""

import shutil
from pathlib import Path
from random import Random

import pytest

from lockstep.core.store_protocol import StateItem
from services.store.snapshot_db import SnapshotCorrupt, SnapshotDb, SnapshotFailed

ITEMS = tuple(StateItem(b"%04d" % number, bytes([number % 251]) * 100, True) for number in range(2000))


def read_all(path: Path) -> tuple[StateItem, ...]:
    database = SnapshotDb(path)
    try:
        assert database.read_meta() == b"meta"
        found: list[StateItem] = []
        is_last = False
        while not is_last:
            from_key = found[-1].key + b"\0" if found else b""
            items, is_last = database.read_items(from_key, 10_000)
            found += items
        return tuple(found)
    finally:
        database.close()


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    database = SnapshotDb(tmp_path / "snapshot")
    database.write(ITEMS, (), b"meta")
    database.flush()
    database.close()
    return tmp_path / "snapshot"


def test_what_is_whole_is_read_to_its_end(snapshot: Path) -> None:
    assert read_all(snapshot) == ITEMS


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_ends_no_reading_as_if_nothing_came_behind_it(
    snapshot: Path, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    (table,) = snapshot.glob("*.sst")
    data = bytearray(table.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    damaged = tmp_path / "damaged"
    shutil.copytree(snapshot, damaged)
    (damaged / table.name).write_bytes(data)
    try:
        found = read_all(damaged)
    except (SnapshotCorrupt, SnapshotFailed):
        return
    assert found == ITEMS
