"""How far etcd is, remembered by the own disk: one set's at a time, and seldom."""

from typing import Any, cast

from lockstep.core.cluster_map import Keys
from lockstep.core.ids import SetName
from lockstep.core.inputs import MapSeen
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from services.broker.etcd_memory import REMEMBERED_EVERY_MS, EtcdMemory


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
    memory = EtcdMemory(ClusterView(Keys("c")), cast(Driver, sets), lambda: now_ms[0])
    for revision in (5, 6, 7, 7, 7, 9, 9, 10, 11):
        memory.saw(revision)
        now_ms[0] += REMEMBERED_EVERY_MS // 2
    assert sets.fed == [("a", 5), ("b", 7), ("c", 9), ("a", 10)]


def test_what_was_seen_before_there_was_a_set_is_remembered_by_the_first() -> None:
    sets = Sets()
    memory = EtcdMemory(ClusterView(Keys("c")), cast(Driver, sets), lambda: 0)
    memory.saw(5)
    sets.set_names.append(SetName("a"))
    memory.saw(5)
    assert sets.fed == [("a", 5)]
