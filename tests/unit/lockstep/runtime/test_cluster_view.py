"""Cluster view: it only moves forward, and says what each set should hear."""

from dataclasses import replace

from lockstep.core.cluster_map import Keys, Member, SetMap
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, SetName
from lockstep.core.inputs import AnyInput, CandidatesSeen, LeaseKeySeen, MapSeen, PresencesSeen
from lockstep.core.lineage import Lineage
from lockstep.core.stamps import NO_STAMPS, Stamp
from lockstep.runtime.cluster_view import ClusterView, MemberEntry
from lockstep.runtime.etcd import DeleteEvent, Entry, PutEvent

KEYS = Keys("test")
ORDERS, BILLING = SetName("orders"), SetName("billing")
B1, B2 = BrokerId("B1"), BrokerId("B2")


def entry(key: str, value: bytes, revision: int) -> Entry:
    return Entry(key, value, revision, revision, 0)


def set_map(epoch: int = 0, primary: str = "", name: SetName = ORDERS) -> SetMap:
    return SetMap(
        name, Epoch(epoch), BrokerId(primary), Incarnation(""), (), (), (B1, B2), 1, 1, Incarnation("p")
    )


def put_map(revision: int, **fields: object) -> PutEvent:
    entry_of = set_map(**fields)  # type: ignore[arg-type]
    return PutEvent(entry(KEYS.set_map(entry_of.set_name), entry_of.encode(), revision))


def test_a_full_read_tells_every_set_everything() -> None:
    view = ClusterView(KEYS)
    entries = [
        entry(KEYS.generation, b"g1", 1),
        entry(KEYS.set_map(ORDERS), set_map().encode(), 5),
        entry(KEYS.set_lease(ORDERS), b"i1", 6),
        entry(KEYS.presence(ORDERS, B1), b"i1", 7),
    ]
    assert view.read_all(entries, 9) == [
        MapSeen(ORDERS, set_map(), 5, set_map().encode(), "g1", (), 9),
        LeaseKeySeen(ORDERS, Incarnation("i1")),
        PresencesSeen(ORDERS, ((B1, Incarnation("i1"), 7),)),
    ]


def test_events_tell_only_what_changed() -> None:
    view = ClusterView(KEYS)
    view.read_all([], 1)
    assert view.apply([put_map(2, epoch=1)]) == [
        MapSeen(ORDERS, set_map(1), 2, set_map(1).encode(), "", (), 2)
    ]
    assert view.apply([DeleteEvent(KEYS.set_lease(ORDERS), 3)]) == [LeaseKeySeen(ORDERS, None)]
    put = PutEvent(entry(KEYS.presence(ORDERS, B2), b"i2", 4))
    assert view.apply([put]) == [PresencesSeen(ORDERS, ((B2, Incarnation("i2"), 4),))]


def test_events_that_a_read_contains_are_dropped() -> None:
    view = ClusterView(KEYS)
    view.read_set(ORDERS, [entry(KEYS.set_map(ORDERS), set_map(3).encode(), 8)], 8)
    assert view.apply([put_map(7, epoch=2)]) == []
    assert view.set_map(ORDERS) == set_map(3)


def test_a_read_older_than_an_event_is_dropped() -> None:
    view = ClusterView(KEYS)
    view.apply([put_map(9, epoch=4)])
    assert view.read_set(ORDERS, [entry(KEYS.set_map(ORDERS), set_map(3).encode(), 8)], 8) == []
    assert view.set_map(ORDERS) == set_map(4)
    view.read_all([entry(KEYS.set_map(ORDERS), set_map(3).encode(), 8)], 8, seen_before=7)
    assert view.set_map(ORDERS) == set_map(4)


def test_what_an_etcd_that_was_set_back_has_of_a_set_is_taken_for_what_there_is() -> None:
    view, generation = ClusterView(KEYS), entry(KEYS.generation, b"g1", 1)
    view.read_all([generation, put_map(5, epoch=1).entry], 9)
    view.apply([put_map(40, epoch=2), PutEvent(entry(KEYS.set_lease(ORDERS), b"i2", 40))])
    old = [generation, put_map(5, epoch=1).entry]
    map_seen, *others = view.read_all(old, 20, seen_before=view.etcd_revision)
    assert isinstance(map_seen, MapSeen) and (map_seen.set_map, map_seen.mod_revision) == (set_map(1), 5)
    assert others == [LeaseKeySeen(ORDERS, None), PresencesSeen(ORDERS, ())]
    assert [one.set_map for one in view.apply([put_map(21, epoch=7)]) if isinstance(one, MapSeen)] == [
        set_map(7)
    ]


def test_a_set_that_a_full_read_does_not_find_any_more_is_gone() -> None:
    view = ClusterView(KEYS)
    view.read_all([entry(KEYS.set_map(ORDERS), set_map().encode(), 5)], 5)
    assert view.read_all([], 9)[0] == MapSeen(ORDERS, None, 9, b"", "", (), 9)


def test_a_new_generation_is_told_to_every_set() -> None:
    view = ClusterView(KEYS)
    view.apply([put_map(2), put_map(3, name=BILLING)])
    seen = view.apply([PutEvent(entry(KEYS.generation, b"g2", 4))])
    assert [(one.set_name, one.generation) for one in seen if isinstance(one, MapSeen)] == [
        (BILLING, "g2"),
        (ORDERS, "g2"),
    ]


def test_the_lineage_is_told_with_the_generation_that_it_is_of() -> None:
    view, lineage = ClusterView(KEYS), Lineage("g1").changed_to("g2")
    view.apply([put_map(2), PutEvent(entry(KEYS.generation, b"g1", 3))])
    news = [PutEvent(entry(KEYS.lineage, lineage.encode(), 4)), PutEvent(entry(KEYS.generation, b"g2", 4))]
    (seen,) = [one for one in view.apply(news) if isinstance(one, MapSeen)]
    assert (seen.generation, seen.earlier_generations) == ("g2", ("g1",))
    (seen,) = [one for one in view.apply([DeleteEvent(KEYS.lineage, 5)]) if isinstance(one, MapSeen)]
    assert (seen.generation, seen.earlier_generations) == ("g2", ())


def told(inputs: list[AnyInput]) -> list[tuple[int, bool]]:
    return [(one.etcd_revision, one.is_set_back) for one in inputs if isinstance(one, MapSeen)]


def test_etcds_revision_grows_in_a_lineage_and_begins_anew_with_another() -> None:
    view = ClusterView(KEYS)
    assert told(view.read_all([entry(KEYS.generation, b"g1", 3), put_map(5).entry], 8)) == [(8, False)]
    assert view.saw(20) and not view.saw(19)
    lineage = Lineage("g1").changed_to("g2")
    news = [PutEvent(entry(KEYS.lineage, lineage.encode(), 21)), PutEvent(entry(KEYS.generation, b"g2", 21))]
    assert told(view.apply(news)) == [(20, False)]
    assert told(view.read_all([entry(KEYS.generation, b"g3", 3), put_map(5).entry], 9)) == [(9, False)]


def test_a_stamp_that_was_seen_and_is_not_there_any_more_is_missed_until_the_map_is_rebuilt() -> None:
    view, first = ClusterView(KEYS), NO_STAMPS.stamped(Stamp("p", 1, 4))
    second = first.stamped(Stamp("p", 2, 9))
    generation = entry(KEYS.generation, b"g1", 3)
    view.read_all([generation, put_map(4).entry, entry(KEYS.stamps, first.encode(), 5)], 8)
    view.apply([PutEvent(entry(KEYS.stamps, second.encode(), 10))])
    found = [(view.is_stamp_lost, view.stamp)]
    fork = first.stamped(Stamp("q", 1, 30))
    inputs = view.read_all([generation, put_map(4).entry, entry(KEYS.stamps, fork.encode(), 31)], 40)
    found.append((view.is_stamp_lost, view.stamp))
    assert [one.stamps for one in inputs if isinstance(one, MapSeen)] == [fork]
    view.apply([PutEvent(entry(KEYS.generation, b"g2", 41)), DeleteEvent(KEYS.stamps, 41)])
    assert [*found, (view.is_stamp_lost, view.stamp)] == [
        (False, Stamp("p", 2, 9)),
        (True, Stamp("p", 2, 9)),
        (False, None),
    ]
    assert view.stamps_revision == 0


def test_witnesses_are_there_as_long_as_their_keys() -> None:
    view, key = ClusterView(KEYS), KEYS.witness(BrokerId("a"))
    view.apply([PutEvent(entry(key, b"p/1", 3))])
    assert view.witnesses == {"a": "p/1"}
    view.apply([DeleteEvent(key, 4)])
    assert view.witnesses == {}
    view.apply([PutEvent(entry(KEYS.stamps, b"{", 5))])
    assert view.stamps == NO_STAMPS


def test_an_etcd_that_was_set_back_says_so_to_every_set_until_the_map_is_rebuilt() -> None:
    view = ClusterView(KEYS)
    view.apply([put_map(2), put_map(3, name=BILLING)])
    assert told(view.apply([PutEvent(entry(KEYS.set_back, b"a disk", 9))])) == [(3, True), (3, True)]
    assert view.set_back_by == "a disk"
    assert told(view.apply([DeleteEvent(KEYS.set_back, 10)])) == [(3, False), (3, False)]


def test_a_lineage_that_cannot_be_read_has_nothing_earlier() -> None:
    view = ClusterView(KEYS)
    view.read_all([entry(KEYS.generation, b"g2", 4), entry(KEYS.lineage, b"{", 4)], 5)
    assert view.lineage == Lineage("g2")


def test_a_bad_map_entry_changes_nothing() -> None:
    view = ClusterView(KEYS)
    view.apply([put_map(2)])
    view.apply([PutEvent(entry(KEYS.set_map(ORDERS), b"{", 3))])
    assert view.set_map(ORDERS) == set_map()


def test_candidates_begin_with_the_primary() -> None:
    view = ClusterView(KEYS)
    for broker in (B1, B2):
        member = MemberEntry(broker, f"{broker}:1", Incarnation("i"))
        view.apply([PutEvent(entry(KEYS.member(broker), member.encode(), 1))])
    view.apply([put_map(2, epoch=1, primary="B2")])
    assert view.candidates(ORDERS) == ["B2:1", "B1:1"]
    assert view.candidates(BILLING) == []


def test_the_directory_follows_events() -> None:
    view = ClusterView(KEYS)
    key = KEYS.directory("queue", "in")
    view.apply([PutEvent(entry(key, b"orders", 1))])
    assert view.directory == {("queue", "in"): ORDERS}
    view.apply([DeleteEvent(key, 2)])
    assert view.directory == {}


def test_a_broker_is_in_sync_with_the_memory_that_the_map_names_and_in_all_of_its_sets() -> None:
    view = ClusterView(KEYS)
    assert view.is_in_sync(B1), "it is in no set"
    member = Member(B1, DiskId("d1"), Incarnation("i1"))
    both = [
        (KEYS.set_map(name), replace(set_map(1, "B1", name), in_sync=(member,)).encode())
        for name in (ORDERS, BILLING)
    ]
    memories = [(KEYS.presence(name, B1), b"i1") for name in (ORDERS, BILLING)]
    view.read_all([entry(key, value, 5) for key, value in (*both, *memories)], 5)
    assert view.is_in_sync(B1)
    assert not view.is_in_sync(B2)
    view.apply([PutEvent(entry(KEYS.presence(BILLING, B1), b"i2", 6))])
    assert not view.is_in_sync(B1), "it has started again since it was swapped in"
    view.apply([DeleteEvent(KEYS.presence(BILLING, B1), 7)])
    assert not view.is_in_sync(B1)


def candidates_seen(seen: list[AnyInput]) -> list[str]:
    return [one.set_name for one in seen if isinstance(one, CandidatesSeen)]


def put_member(broker: BrokerId, address: str, revision: int) -> PutEvent:
    member = MemberEntry(broker, address, Incarnation("i"))
    return PutEvent(entry(KEYS.member(broker), member.encode(), revision))


def test_a_set_hears_when_others_may_serve_it_or_in_another_order() -> None:
    view = ClusterView(KEYS)
    assert candidates_seen(view.apply([put_map(2), put_map(3, name=BILLING)])) == [], "nobody is known"
    assert candidates_seen(view.apply([put_member(B1, "B1:1", 4)])) == [BILLING, ORDERS]
    assert candidates_seen(view.apply([put_member(B1, "B1:1", 5)])) == [], "it registered again"
    assert candidates_seen(view.apply([put_member(B1, "B1:7", 6), put_member(B2, "B2:1", 6)])) == [
        BILLING,
        ORDERS,
    ]
    assert candidates_seen(view.apply([put_map(7, epoch=2, primary="B2")])) == [ORDERS]
    assert candidates_seen(view.apply([put_map(8, epoch=3, primary="B2")])) == [], "the same led on"
    assert candidates_seen(view.apply([DeleteEvent(KEYS.member(B1), 9)])) == [BILLING, ORDERS]
    assert view.candidates(ORDERS) == ["B2:1"]


def test_a_set_that_is_read_hears_of_other_candidates_once() -> None:
    view = ClusterView(KEYS)
    members = [put_member(B1, "B1:1", 4).entry, put_member(B2, "B2:1", 4).entry]
    first = [*members, entry(KEYS.set_map(ORDERS), set_map(1).encode(), 5)]
    assert candidates_seen(view.read_all(first, 5)) == [ORDERS]
    assert candidates_seen(view.read_all(first, 6)) == []
    moved = [*members, entry(KEYS.set_map(ORDERS), set_map(2, primary="B2").encode(), 7)]
    assert candidates_seen(view.read_set(ORDERS, moved, 7)) == [ORDERS]
