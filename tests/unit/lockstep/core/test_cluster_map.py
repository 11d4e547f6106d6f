"""Entries of the map as disks remember them: whatever somebody has put there, it is an entry or none."""

import json
from typing import Any

import pytest

from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.ids import EPOCH_MAX, BrokerId, DiskId, Epoch, Incarnation, SetName

ENTRY = SetMap(
    SetName("orders"),
    Epoch(4),
    BrokerId("B1"),
    Incarnation("i"),
    (Member(BrokerId("B1"), DiskId("d"), Incarnation("i")),),
    (),
    (BrokerId("B1"),),
    1,
    7,
    Incarnation("i"),
)


def changed(**fields: Any) -> bytes:
    """The entry with other fields."""
    return json.dumps(json.loads(ENTRY.encode()) | fields).encode()


NONSENSE = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "too deep": b"[" * 200_000,
    "an epoch without end": changed(epoch=float("inf")),
    "an epoch that no set comes to": changed(epoch=EPOCH_MAX + 1),
    "an epoch below all": changed(epoch=-1),
    "a set without a name": changed(set_name=None),
    "a broker that is a number": changed(brokers=[1, "B2"]),
    "a member that is nothing": changed(in_sync=[None]),
    "a member whose broker is an object": changed(in_sync=[{"broker": {}, "disk": "d", "incarnation": "i"}]),
}


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
def test_what_is_no_entry_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        SetMap.decode(data)


def test_an_entry_is_read_as_it_was_written() -> None:
    for epoch in (0, 4, EPOCH_MAX):
        data = changed(epoch=epoch)
        assert SetMap.decode(data).epoch == epoch
    assert SetMap.decode(ENTRY.encode()) == ENTRY
