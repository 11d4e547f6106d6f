"""What stands against stopping a broker, set by set."""

from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, SetName
from services.broker.core.obstacles import obstacle


def set_map(brokers: str, in_sync: str, min_in_sync: int) -> SetMap:
    members = tuple(Member(BrokerId(one), DiskId(f"d{one}"), Incarnation(f"i{one}")) for one in in_sync)
    return SetMap(
        SetName("orders"),
        Epoch(3),
        BrokerId(in_sync[:1]),
        Incarnation(f"i{in_sync[:1]}"),
        members,
        (),
        tuple(BrokerId(one) for one in brokers),
        min_in_sync,
        1,
        Incarnation("p"),
    )


def ask(brokers: str, in_sync: str, min_in_sync: int, whole: str, prepared: int = 0) -> str:
    """Of the broker A."""
    return obstacle(
        set_map(brokers, in_sync, min_in_sync), BrokerId("A"), list(map(BrokerId, whole)), prepared
    )


def test_a_broker_may_stop_while_enough_others_are_in_sync() -> None:
    assert ask("ABC", "ABC", 2, "ABC") == ""


def test_it_waits_while_the_set_would_go_below_its_minimum() -> None:
    assert ask("ABC", "AB", 2, "AB") == "1 others are in sync, and 2 have to be"


def test_one_that_is_in_the_map_and_does_not_run_does_not_count() -> None:
    assert ask("ABC", "ABC", 2, "AB") == "1 others are in sync, and 2 have to be"


def test_one_that_is_not_in_sync_may_stop_at_any_time() -> None:
    assert ask("ABC", "BC", 2, "B", prepared=4) == ""


def test_a_set_is_not_asked_for_more_others_than_it_has() -> None:
    assert ask("AB", "AB", 2, "AB") == ""
    assert ask("AB", "A", 1, "A") == "0 others are in sync, and 1 have to be"
    assert ask("A", "A", 1, "A") == ""


def test_the_only_memory_of_a_prepared_branch_stays() -> None:
    assert ask("A", "A", 1, "A", prepared=2) == "nobody else has its 2 prepared transactions"
    assert ask("AB", "AB", 1, "AB", prepared=2) == ""
