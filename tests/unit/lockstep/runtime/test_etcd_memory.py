"""How far etcd is, remembered by the own disk: one set's at a time, and seldom."""

from typing import Any, cast

from lockstep.core.cluster_map import Keys
from lockstep.core.effects import MarkSetBack
from lockstep.core.ids import DiskId, SetName
from lockstep.core.inputs import MapSeen
from lockstep.core.stamps import NO_STAMPS, Stamp, Stamps
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd_memory import REMEMBERED_EVERY_MS, EtcdMemory
from lockstep.runtime.etcd_values import Entry

KEYS = Keys("c")


def no_mark(mark: MarkSetBack) -> None:
    raise AssertionError(f"etcd was not set back: {mark}")


class Sets:
    """A driver that hosts sets and notes what they are fed."""

    def __init__(self, *names: str) -> None:
        self.set_names = [SetName(name) for name in names]
        self.fed: list[tuple[str, int]] = []

    def feed(self, given: Any) -> None:
        assert isinstance(given, MapSeen)
        self.fed.append((given.set_name, given.etcd_revision))


def test_sets_take_turns_and_only_when_etcd_has_gone_on() -> None:
    sets, now_ms = Sets("b", "a", "c"), [0]
    memory = EtcdMemory(ClusterView(KEYS), cast(Driver, sets), lambda: now_ms[0], no_mark)
    for revision in (5, 6, 7, 7, 7, 9, 9, 10, 11):
        memory.saw(revision)
        now_ms[0] += REMEMBERED_EVERY_MS // 2
    assert sets.fed == [("a", 5), ("b", 7), ("c", 9), ("a", 10)]


def test_what_was_seen_before_there_was_a_set_is_remembered_by_the_first() -> None:
    sets = Sets()
    memory = EtcdMemory(ClusterView(KEYS), cast(Driver, sets), lambda: 0, no_mark)
    memory.saw(5)
    sets.set_names.append(SetName("a"))
    memory.saw(5)
    assert sets.fed == [("a", 5)]


FIRST = NO_STAMPS.stamped(Stamp("p", 1, 4))
SECOND = FIRST.stamped(Stamp("p", 2, 9))


def read(view: ClusterView, stamps: Stamps, revision: int, generation: bytes = b"g1") -> None:
    entries = [
        Entry(KEYS.generation, generation, 1, 3, 0),
        Entry(KEYS.stamps, stamps.encode(), 1, revision, 0),
    ]
    view.read_all(entries, revision)


def test_a_new_stamp_is_remembered_at_once() -> None:
    sets, view = Sets("a", "b"), ClusterView(KEYS)
    memory = EtcdMemory(view, cast(Driver, sets), lambda: 0, no_mark)
    read(view, FIRST, 5)
    memory.look()
    read(view, SECOND, 10)
    memory.look()
    memory.look()
    assert sets.fed == [("a", 5), ("b", 10)]


def test_a_process_that_misses_a_stamp_has_etcd_say_so_once_and_remembers_nothing_of_it() -> None:
    sets, view, marks = Sets("b", "a"), ClusterView(KEYS), list[MarkSetBack]()
    memory = EtcdMemory(view, cast(Driver, sets), lambda: 0, marks.append)
    read(view, SECOND, 10)
    memory.look()
    read(view, FIRST.stamped(Stamp("q", 1, 30)), 31)
    for _ in range(3):
        memory.saw(50)
    assert marks == [MarkSetBack(SetName("a"), 0, DiskId(""), Stamp("p", 2, 9), "g1")]
    assert sets.fed == [("a", 10)]
    read(view, FIRST, 5, b"g2")
    memory.look()
    assert sets.fed == [("a", 10), ("b", 5)] and len(marks) == 1


def test_a_read_that_was_late_is_no_reason_to_be_silent_when_etcd_is_set_back() -> None:
    """All of etcd was read before this process put a stamp there, and is taken in behind that: the watch is told of it later."""
    sets, view, marks = Sets("a"), ClusterView(KEYS), list[MarkSetBack]()
    memory = EtcdMemory(view, cast(Driver, sets), lambda: 0, marks.append)
    read(view, FIRST, 5)
    view.stamps_put(SECOND.encode(), 10)
    memory.look()
    read(view, FIRST, 9)
    memory.look()
    told = len(marks)
    read(view, SECOND, 10)
    memory.look()
    # Now it is set back.
    read(view, FIRST.stamped(Stamp("q", 1, 30)), 31)
    memory.look()
    assert len(marks) > told, "etcd lacks a stamp, and nobody says so"
