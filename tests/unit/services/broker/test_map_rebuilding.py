"""Map rebuilding: what is promised to an operator whose etcd is gone."""

from dataclasses import replace

import pytest

from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.epoch_table import EpochStarts, reign_of
from lockstep.core.ids import EPOCH_MAX, BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.lineage import Lineage
from lockstep.core.stamps import NO_STAMPS, Stamp
from services.broker.core.map_rebuilding import (
    EPOCHS_LEFT_FREE,
    DiskFound,
    EtcdKnows,
    SetPlan,
    Verdict,
    directory_of,
    plan_set,
    with_all_seen,
)
from tests.unit.lockstep.core.test_cluster_map import NONSENSE

SET = SetName("orders")
BROKERS = (BrokerId("B1"), BrokerId("B2"), BrokerId("B3"))
NOTHING = EtcdKnows(None, 0, False, Lineage("new"))
ME = Incarnation("me")


def entry(epoch: int = 4, in_sync: tuple[str, ...] = BROKERS) -> SetMap:
    return SetMap(
        SET,
        Epoch(epoch),
        BrokerId(in_sync[0]),
        Incarnation("old"),
        tuple(Member(BrokerId(b), DiskId(f"disk-{b}"), Incarnation("old")) for b in in_sync),
        (),
        BROKERS,
        2,
        7,
        Incarnation("old"),
    )


def disk(broker: str, last_epoch: int = 4, log_end: int = 90, **changes: object) -> DiskFound:
    found = DiskFound(
        BrokerId(broker),
        DiskId(f"disk-{broker}"),
        Epoch(last_epoch),
        LogIndex(log_end),
        Epoch(4),
        entry().encode(),
        11,
        "old",
        "",
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def plan(
    *disks: DiskFound,
    etcd: EtcdKnows = NOTHING,
    reached: tuple[str, ...] = BROKERS,
    without: tuple[str, ...] = (),
) -> SetPlan:
    found = plan_set(SET, etcd, disks, [BrokerId(b) for b in reached], [BrokerId(b) for b in without], ME)
    assert found is not None
    return found


def test_entry_is_above_every_epoch_that_a_disk_has_seen() -> None:
    found = plan(disk("B1"), disk("B2", highest_epoch=Epoch(9)), disk("B3"))
    assert found.verdict is Verdict.REBUILT and found.entry is not None
    assert found.entry.epoch == 10 and found.entry.primary == "" and found.entry.min_in_sync == 2
    assert [member.broker for member in found.entry.in_sync] == ["B1", "B2", "B3"]
    assert found.entry.supersedes == ("old",)


def test_only_disks_with_the_whole_log_are_named() -> None:
    found = plan(disk("B1"), disk("B2", log_end=80), disk("B3", last_epoch=3, log_end=500))
    assert found.entry is not None
    assert [member.broker for member in found.entry.in_sync] == ["B1"]


def test_missing_disk_stops_the_rebuild_unless_it_is_given_up_by_name() -> None:
    found = plan(disk("B1"), disk("B2"), reached=("B1", "B2"))
    assert found.verdict is Verdict.STUCK and "B3" in found.problem
    found = plan(disk("B1"), disk("B2"), reached=("B1", "B2"), without=("B3",))
    assert found.verdict is Verdict.REBUILT and found.unheard == ("B3",)


def test_disk_that_the_last_known_map_does_not_name_is_asked_for_too() -> None:
    """B3 may have become primary by a map that no reachable disk was told of."""
    remembered = entry(in_sync=("B1", "B2")).encode()
    found = plan(disk("B1", map_bytes=remembered), disk("B2", map_bytes=remembered), reached=("B1", "B2"))
    assert found.verdict is Verdict.STUCK


def test_epochs_that_only_a_lost_disk_knew_are_not_given_again() -> None:
    """B3 led epochs that no disk heard of: an offset of its log must not fit the log that goes on."""
    found = plan(disk("B1"), disk("B2"), reached=("B1", "B2"), without=("B3",))
    assert found.entry is not None and found.entry.epoch == 4 + EPOCHS_LEFT_FREE


def test_broker_that_never_joined_the_set_is_not_waited_for() -> None:
    remembered = entry(in_sync=("B1", "B2")).encode()
    found = plan(disk("B1", map_bytes=remembered), disk("B2", map_bytes=remembered))
    assert found.verdict is Verdict.REBUILT and found.unheard == ()
    assert found.entry is not None and found.entry.epoch == 5


def test_disk_in_the_place_of_one_that_was_in_sync_is_not_that_disk() -> None:
    """B3 may have led alone, with its old disk: that it has an empty one now says nothing of what was acknowledged."""
    found = plan(disk("B1"), disk("B2"))
    assert found.verdict is Verdict.STUCK and "B3" in found.problem
    new = disk("B3", last_epoch=4, log_end=20, disk=DiskId("new"), map_bytes=b"", map_revision=0)
    found = plan(disk("B1"), disk("B2"), new)
    assert found.verdict is Verdict.STUCK and "B3" in found.problem
    found = plan(disk("B1"), disk("B2"), new, without=("B3",))
    assert found.verdict is Verdict.REBUILT and found.unheard == ("B3",)


def test_disk_that_took_the_place_of_another_while_etcd_knew_is_as_good_as_that() -> None:
    members = (*entry().in_sync[:2], Member(BrokerId("B3"), DiskId("new"), Incarnation("old")))
    told = replace(entry(), in_sync=members).encode()
    new = disk("B3", disk=DiskId("new"), map_bytes=told)
    found = plan(disk("B1", map_bytes=told), disk("B2", map_bytes=told), new)
    assert found.verdict is Verdict.REBUILT and found.unheard == ()


def test_damaged_disk_counts_as_missing() -> None:
    found = plan(disk("B1"), disk("B2"), disk("B3", trouble="a hole"))
    assert found.verdict is Verdict.STUCK
    found = plan(disk("B1"), disk("B2"), disk("B3", trouble="a hole"), without=("B3",))
    assert found.entry is not None
    assert [member.broker for member in found.entry.in_sync] == ["B1", "B2"]


def test_nothing_is_rebuilt_from_disks_that_were_all_given_up() -> None:
    found = plan(disk("B1", trouble="a hole"), without=("B1", "B2", "B3"))
    assert found.verdict is Verdict.STUCK and found.problem == "no whole disk is left"


def test_set_that_is_led_is_left_alone() -> None:
    etcd = EtcdKnows(entry(), 5, True, Lineage("other"))
    assert plan(disk("B1"), etcd=etcd).verdict is Verdict.LED


def test_a_lead_is_doubtful_in_an_etcd_that_was_set_back() -> None:
    """The lease may have come back with it."""
    known = EtcdKnows(entry(), 11, True, Lineage("old"))
    assert not plan(disk("B1"), etcd=known).is_lead_doubtful
    found = plan(disk("B1"), etcd=replace(known, is_set_back=True))
    assert found.verdict is Verdict.LED and found.is_lead_doubtful


@pytest.mark.parametrize(("epoch", "revision"), [(3, 11), (4, 10)])
def test_a_lead_by_an_entry_that_a_disk_has_seen_another_of_is_not_left_alone(
    epoch: int, revision: int
) -> None:
    """In a new generation a disk that slept through it would be promoted without what was acknowledged since."""
    known, disks = EtcdKnows(entry(epoch=epoch), revision, True, Lineage("old")), (disk("B1"), disk("B2"))
    found = plan(*disks, etcd=known)
    assert found.verdict is Verdict.STUCK and found.is_lead_doubtful
    assert found.problem.endswith("where it does not end, stop B1 and start it again")
    assert plan(*disks, etcd=known, without=("B1", "B2")).verdict is Verdict.LED
    assert plan(*disks, etcd=replace(known, lineage=Lineage("other"))).verdict is Verdict.LED


def test_set_that_etcd_has_right_is_left_alone() -> None:
    etcd = EtcdKnows(entry(), 11, False, Lineage("old"))
    assert plan(disk("B1"), disk("B2"), disk("B3"), etcd=etcd).verdict is Verdict.CURRENT


def test_etcd_that_was_set_back_is_overruled() -> None:
    found = plan(disk("B1"), disk("B2"), disk("B3"), etcd=EtcdKnows(entry(epoch=3), 5, False, Lineage("old")))
    assert found.verdict is Verdict.REBUILT
    found = plan(disk("B1"), disk("B2"), disk("B3"), etcd=EtcdKnows(entry(), 10, False, Lineage("old")))
    assert found.verdict is Verdict.REBUILT


def test_etcd_that_was_set_back_behind_the_map_is_overruled() -> None:
    known = EtcdKnows(entry(), 11, False, Lineage("old"), 40)
    disks = disk("B1", etcd_revision=40), disk("B2", etcd_revision=41), disk("B3")
    assert plan(*disks, etcd=known).verdict is Verdict.REBUILT
    assert plan(*disks, etcd=replace(known, etcd_revision=41)).verdict is Verdict.CURRENT
    said_so = replace(known, etcd_revision=90, is_set_back=True)
    assert plan(*disks, etcd=said_so).verdict is Verdict.REBUILT
    assert plan(*disks, etcd=replace(said_so, is_led=True)).verdict is Verdict.LED


def test_disk_of_before_an_accepted_loss_is_no_reason_to_rebuild() -> None:
    lineage = Lineage("old").changed_to("after the loss")
    disks = disk("B1"), disk("B2"), disk("B3")
    assert plan(*disks, etcd=EtcdKnows(entry(), 11, False, lineage)).verdict is Verdict.CURRENT
    assert plan(*disks, etcd=EtcdKnows(entry(), 10, False, lineage)).verdict is Verdict.REBUILT


def test_set_of_which_no_disk_in_sync_was_heard_is_left_alone_and_told() -> None:
    """Its disks may be ahead of etcd, or of another generation by then: nobody can say."""
    etcd = EtcdKnows(entry(in_sync=("B1", "B2")), 11, False, Lineage("old"))
    assert plan(etcd=etcd, reached=()).verdict is Verdict.UNHEARD
    learner = disk("B3", map_bytes=etcd.set_map.encode() if etcd.set_map else b"")
    assert plan(learner, etcd=etcd, reached=("B3",)).verdict is Verdict.UNHEARD
    assert plan(disk("B1"), etcd=etcd, reached=("B1",)).verdict is Verdict.CURRENT
    never_served = replace(etcd, set_map=entry(epoch=0))
    assert plan(etcd=never_served, reached=()).verdict is Verdict.CURRENT


def test_set_of_which_nothing_was_heard_is_not_left_alone_where_etcd_was_set_back() -> None:
    """In the new generation its disks would tell no more what they know of that."""
    etcd = EtcdKnows(entry(in_sync=("B1", "B2")), 11, False, Lineage("old"), is_set_back=True)
    found = plan(etcd=etcd, reached=("B3",))
    assert found.verdict is Verdict.STUCK and "no whole disk of B1, B2 was found" in found.problem
    assert found.unheard == ("B1", "B2")
    assert plan(etcd=etcd, reached=("B3",), without=("B1", "B2")).verdict is Verdict.UNHEARD


@pytest.mark.parametrize("is_broker_ahead", [False, True])
def test_etcd_was_set_back_if_a_disk_of_any_set_tells_so_that_has_yet_to_say_it_there(
    is_broker_ahead: bool,
) -> None:
    etcd = EtcdKnows(entry(in_sync=("B1", "B2")), 11, False, Lineage("old"))
    telling = [disk("B2"), disk("B3", is_broker_ahead=is_broker_ahead)]
    found = {SetName("invoices"): [disk("B3")], SetName("payments"): telling, SET: []}
    verdict = plan(etcd=etcd.in_sight_of(found), reached=("B3",)).verdict
    assert verdict is (Verdict.STUCK if is_broker_ahead else Verdict.UNHEARD)


def test_etcd_that_says_of_itself_that_it_was_set_back_needs_no_disk_for_that() -> None:
    assert replace(NOTHING, is_set_back=True).in_sight_of({SET: [disk("B1")]}).is_set_back


def test_rebuilt_entry_is_not_rebuilt_again() -> None:
    first = plan(disk("B1"), disk("B2"), disk("B3"))
    assert first.entry is not None
    fenced = [disk(broker, highest_epoch=first.entry.epoch) for broker in BROKERS]
    assert plan(*fenced, etcd=EtcdKnows(first.entry, 3, False, Lineage("newer"))).verdict is Verdict.CURRENT


def rival(broker: str, log_end: int = 90) -> DiskFound:
    """A disk that remembers another primary of the epoch, which began twice."""
    told = replace(entry(), primary=BrokerId(broker), primary_incarnation=Incarnation("new"))
    return disk(broker, log_end=log_end, map_bytes=told.encode())


@pytest.mark.parametrize("end", [80, 90, 100])
def test_an_epoch_that_has_begun_twice_is_an_operators_to_decide(end: int) -> None:
    """What was acknowledged is in both of its logs, whichever is longer."""
    disks = disk("B1"), disk("B2"), rival("B3", log_end=end)
    found = plan(*disks)
    assert found.verdict is Verdict.STUCK and "epoch 4 has begun twice" in found.problem
    found = plan(*disks, without=("B3",))
    assert found.entry is not None and found.entry.is_forked and found.entry.epoch == 5
    assert [member.broker for member in found.entry.in_sync] == ["B1", "B2"]
    found = plan(*disks, without=("B1", "B2"))
    assert found.entry is not None and [member.broker for member in found.entry.in_sync] == ["B3"]


def test_an_epoch_that_has_begun_twice_is_found_however_far_etcd_has_come() -> None:
    told = rival("B3").remembered()
    known = EtcdKnows(told, 20, False, Lineage("old"))
    disks = disk("B1"), disk("B2"), rival("B3")
    assert plan(*disks, etcd=known).verdict is Verdict.STUCK
    found = plan(*disks, etcd=replace(known, is_led=True))
    assert found.verdict is Verdict.STUCK and "has seen another entry of the map" in found.problem


COMMON = ((Epoch(1), LogIndex(1)), (Epoch(4), LogIndex(50)))
LATER = (*COMMON[:1], (Epoch(5), LogIndex(51)))


def told_log(
    broker: str, log_end: int, commit: int, epochs: EpochStarts = COMMON, reign: int = 7
) -> DiskFound:
    last = epochs[-1][0]
    reigns = ((last, reign),) if reign else ()
    return disk(
        broker,
        last,
        log_end,
        epochs=epochs,
        reigns=reigns,
        commit_index=LogIndex(commit),
        highest_epoch=Epoch(5),
    )


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (told_log("B3", 90, 90), ""),
        (told_log("B3", 95, 90), ""),
        (told_log("B3", 80, 80), ""),
        (told_log("B3", 90, 49, reign=8), "epoch 4 has begun twice: behind index 49 the disk of B3 "),
        (told_log("B3", 90, 49, (*COMMON[:1], (Epoch(4), LogIndex(51)))), "epoch 4 has begun twice: "),
        (
            told_log("B3", 90, 50, LATER),
            "behind index 49 the disk of B1 has another log than that of B3, up to ",
        ),
        (told_log("B3", 90, 90, reign=0), ""),
        (replace(told_log("B3", 90, 90, reign=8), trouble="a hole"), ""),
        (replace(told_log("B3", 90, 90, reign=8), epochs=()), ""),
    ],
)
def test_what_was_acknowledged_and_only_another_disk_has_is_an_operators_to_give_up(
    other: DiskFound, problem: str
) -> None:
    """Led or not; in a new generation no disk would tell. One that is surveyed a moment later may know more to be committed."""
    disks = told_log("B1", 90, 90), told_log("B2", 90, 90), other
    without = ("B3",) if other.trouble else ()
    found = plan(*disks, without=without)
    assert (found.verdict is Verdict.STUCK, found.problem.startswith(problem)) == (bool(problem), True)
    if problem:
        assert plan(*disks, without=("B3",)).verdict is Verdict.REBUILT
        assert plan(*disks, without=("B1", "B2")).verdict is Verdict.REBUILT
    known = EtcdKnows(replace(entry(5), primary=BrokerId("B3")), 30, True, Lineage("other"))
    found = plan(*disks, etcd=known, without=without)
    assert found.verdict is (Verdict.STUCK if problem else Verdict.LED)
    assert plan(*disks, etcd=known, without=("B1", "B2")).verdict is Verdict.LED


def test_what_is_in_the_snapshot_of_a_newcomer_was_acknowledged_if_the_map_named_it() -> None:
    """It may not have heard so before it was gone; of a learner nobody knows."""
    newcomer = replace(told_log("B1", 90, 0), snapshot_index=LogIndex(80))
    others = told_log("B2", 90, 50, LATER), told_log("B3", 90, 50, LATER)
    found = plan(newcomer, *others)
    assert found.verdict is Verdict.STUCK and found.problem.startswith("behind index 49 the disk of B1 ")
    assert "up to index 90, and 80 was acknowledged: one of them has to be given up" in found.problem
    assert plan(newcomer, *others, without=("B1",)).verdict is Verdict.REBUILT
    learner = replace(newcomer, map_bytes=entry(in_sync=("B2", "B3")).encode())
    assert plan(learner, *others).verdict is Verdict.REBUILT
    assert plan(replace(newcomer, snapshot_index=LogIndex(49)), *others).verdict is Verdict.REBUILT


LOST = "p/2/20"
"""A stamp that etcd had."""
SET_BACK = EtcdKnows(
    replace(entry(5), primary=BrokerId("B2")),
    30,
    True,
    Lineage("old"),
    90,
    NO_STAMPS.stamped(Stamp("p", 1, 9)),
    True,
)
"""B2 leads epoch 5 there."""
FORGOTTEN = replace(told_log("B1", 90, 49), highest_epoch=Epoch(4), stamp=LOST)
"""It was in the set in epoch 4, as that etcd does not know any more."""


def gone_on(**changes: object) -> list[DiskFound]:
    """B2 and B3, which have gone on in epoch 5 of that etcd without it."""
    reign = reign_of(entry().primary_incarnation)
    logs = [told_log(broker, 90, 50, LATER, reign) for broker in ("B2", "B3")]
    return [replace(log, **{"map_bytes": entry(5).encode(), **changes}) for log in logs]  # type: ignore[arg-type]


@pytest.mark.parametrize("is_led", [True, False])
@pytest.mark.parametrize(
    ("lost", "best", "is_asked"),
    [
        ({}, {}, True),
        (
            {"map_bytes": replace(entry(in_sync=("B2", "B3")), learners=entry().in_sync[:1]).encode()},
            {},
            True,
        ),
        # It had come into the set, and was gone before it was told that entry.
        ({"map_bytes": entry(in_sync=("B2", "B3")).encode()}, {}, True),
        # It has nothing more; its entry knows the epoch; or it remembers nothing that etcd lacks.
        ({"log_end": LogIndex(49)}, {}, False),
        ({"map_bytes": entry(5).encode()}, {}, False),
        ({"stamp": "p/1/9"}, {}, False),
        ({"generation": "another"}, {}, False),
        # etcd has forgotten that epoch, too.
        ({}, {"epochs": (*COMMON[:1], (Epoch(6), LogIndex(51))), "last_epoch": Epoch(6)}, False),
        # Whatever the best disk remembers: its broker lived through the loss, or etcd was set back once more.
        ({}, {"stamp": LOST}, True),
        ({}, {"stamp": "r/1/40"}, True),
        ({}, {"etcd_revision": 91}, True),
    ],
)
def test_what_was_not_known_to_be_acknowledged_is_asked_for_where_etcd_had_forgotten_its_disk(
    lost: dict[str, object], best: dict[str, object], is_asked: bool, is_led: bool
) -> None:
    """It may have been gone before it heard so. Of a primary that was deposed as ever, nobody is asked."""
    known = replace(SET_BACK, is_led=is_led)
    gone, others = replace(FORGOTTEN, **lost), gone_on(**best)  # type: ignore[arg-type]
    found = plan(gone, *others, etcd=known)
    goes_on = Verdict.LED if is_led else Verdict.REBUILT
    assert found.verdict is (Verdict.STUCK if is_asked else goes_on), found.problem
    if is_asked:
        assert found.problem.startswith("behind index 49 the disk of B1 has another log than that of B2")
        assert "up to index 90, and that may have been acknowledged: one of them " in found.problem
        assert plan(gone, *others, etcd=known, without=("B1",)).verdict is goes_on


@pytest.mark.parametrize("is_led", [True, False])
@pytest.mark.parametrize(
    ("epoch", "by", "is_asked"),
    [(5, "B1.1", True), (7, "B1.1", True), (5, "B2.0", False)],
    ids=["another of that number", "a later one that etcd has forgotten", "the very epoch"],
)
def test_an_epoch_of_another_primary_is_not_the_one_in_which_the_best_log_goes_on(
    epoch: int, by: str, is_asked: bool, is_led: bool
) -> None:
    """B1 remembers an epoch of the etcd that is lost, in which nothing was written; B2 has begun its own 5, and 6."""
    now = replace(entry(6), primary=BrokerId("B2"), primary_incarnation=Incarnation("B2.1"))
    known = replace(SET_BACK, set_map=now, is_led=is_led)
    told = replace(entry(epoch), primary_incarnation=Incarnation(by))
    reigns = tuple((Epoch(number), reign_of(Incarnation(one))) for number, one in ((5, "B2.0"), (6, "B2.1")))
    others = gone_on(
        epochs=(*LATER, (Epoch(6), LogIndex(60))),
        last_epoch=Epoch(6),
        highest_epoch=Epoch(6),
        reigns=reigns,
        map_bytes=now.encode(),
    )
    found = plan(replace(FORGOTTEN, map_bytes=told.encode()), *others, etcd=known)
    goes_on = Verdict.LED if is_led else Verdict.REBUILT
    assert found.verdict is (Verdict.STUCK if is_asked else goes_on), found.problem


@pytest.mark.parametrize(
    ("elsewhere", "is_asked"),
    [
        ({"stamp": LOST}, True),
        ({"etcd_revision": 91}, True),
        ({"stamp": "p/1/9"}, False),
        ({"stamp": LOST, "broker": BrokerId("B3")}, False),
        ({"stamp": LOST, "generation": "another"}, False),
    ],
)
def test_what_a_broker_has_seen_of_etcd_counts_whichever_set_has_it_remembered(
    elsewhere: dict[str, object], is_asked: bool
) -> None:
    """Its sets' stores are told that in turns."""
    another = replace(FORGOTTEN, **({"stamp": ""} | elsewhere))  # type: ignore[arg-type]
    found = {SET: [replace(FORGOTTEN, stamp=""), *gone_on()], SetName("payments"): [another]}
    seen = with_all_seen(found, SET_BACK.lineage, SET_BACK.etcd_revision, SET_BACK.stamps)
    verdict = plan(*seen[SET], etcd=SET_BACK).verdict
    assert verdict is (Verdict.STUCK if is_asked else Verdict.LED)


def test_a_disk_of_another_history_is_not_asked_for_because_its_broker_has_seen_more() -> None:
    left = replace(FORGOTTEN, is_broker_ahead=True, stamp="", generation="another")
    assert plan(left, *gone_on(), etcd=SET_BACK).verdict is Verdict.LED


@pytest.mark.parametrize("stamp", [LOST, "p/1/9"])
def test_whoever_leads_and_has_yet_to_begin_its_epoch_is_about_to_go_on_without_it(stamp: str) -> None:
    """It waits for a member, say. The one who remembers no more than etcd is a backup that was asked a moment later."""
    disks = [told_log(broker, 60, 50) for broker in ("B2", "B3")]
    found = plan(replace(FORGOTTEN, stamp=stamp), *disks, etcd=SET_BACK)
    assert found.verdict is (Verdict.STUCK if stamp == LOST else Verdict.LED), found.problem
    if stamp == LOST:
        assert (
            "behind index 60 the disk of B1 has another log than that of B2, up to index 90" in found.problem
        )


def test_what_a_backup_has_of_whoever_leads_it_has_not_without_him() -> None:
    """It was asked a moment later; its broker has lived through the loss, and its disk has yet to be told the entry."""
    leader, backup = gone_on()
    backup = replace(backup, stamp=LOST, map_bytes=entry().encode())
    found = plan(replace(leader, log_end=LogIndex(60)), backup, etcd=SET_BACK)
    assert found.verdict is Verdict.LED, found.problem


def test_where_etcd_was_set_back_every_disk_is_asked_or_given_up_beside_a_set_that_is_led() -> None:
    """In the new generation none would tell what it knows of that."""
    others = gone_on()
    found = plan(*others, etcd=SET_BACK, reached=("B2", "B3"))
    assert found.verdict is Verdict.STUCK and "no whole disk of B1 was found" in found.problem
    assert (found.unheard, found.is_lead_doubtful) == (("B1",), True)
    damaged = replace(FORGOTTEN, trouble="a hole")
    assert plan(damaged, *others, etcd=SET_BACK).unheard == ("B1",)
    assert plan(*others, etcd=SET_BACK).verdict is Verdict.LED, "B1 has nothing of the set"
    assert plan(*others, etcd=SET_BACK, reached=("B2", "B3"), without=("B1",)).verdict is Verdict.LED
    as_ever = replace(SET_BACK, is_set_back=False)
    assert plan(*others, etcd=as_ever, reached=("B2", "B3")).verdict is Verdict.LED


def test_where_etcd_was_set_back_nothing_is_compared_with_a_primary_whose_disk_was_not_asked() -> None:
    leader, backup = gone_on()
    damaged = replace(leader, trouble="it is damaged")
    for disks in ((backup,), (damaged, backup)):
        for without in ((), ("B2",)):
            found = plan(*disks, etcd=SET_BACK, reached=("B1", "B3"), without=without)
            assert found.verdict is Verdict.STUCK and "no whole disk of B2 was found" in found.problem
        assert found.problem.endswith("who leads: run it again when it is there, or stop B2")


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({}, True),
        ({"revision": 31, "etcd_revision": 91, "stamps": SET_BACK.stamps.stamped(Stamp("q", 1, 90))}, True),
        ({"set_map": replace(entry(5), primary=BrokerId("B2"), in_sync=entry().in_sync[1:])}, True),
        ({"set_map": replace(entry(6), primary=BrokerId("B2"))}, False),
        ({"set_map": replace(entry(5), primary_incarnation=Incarnation("another"))}, False),
        ({"set_map": None}, False),
        ({"is_led": False}, False),
        ({"lineage": Lineage("old").changed_to("new")}, False),
        ({"is_set_back": False}, False),
        ({"etcd_revision": 89}, False),
        ({"stamps": NO_STAMPS}, False),
    ],
)
def test_what_disks_say_compares_with_what_etcd_says_then_if_nothing_was_begun_since_it_was_read_before(
    changes: dict[str, object], is_same: bool
) -> None:
    """An epoch that began meanwhile is in no log that was looked at; what is added, and who is in the set, changes nothing."""
    assert replace(SET_BACK, **changes).goes_on_from(SET_BACK) is is_same  # type: ignore[arg-type]


def test_an_entry_says_whether_an_epoch_may_have_begun_twice() -> None:
    disks = disk("B1"), disk("B2"), disk("B3")
    for etcd, is_forked in ((NOTHING, False), (EtcdKnows(entry(3), 5, False, Lineage("old")), True)):
        found = plan(*disks, etcd=etcd).entry
        assert found is not None and found.is_forked is is_forked
        assert SetMap.decode(found.encode()) == found


def test_newest_entry_says_who_is_configured() -> None:
    older = replace(entry(epoch=2), brokers=(BrokerId("B1"), BrokerId("B9")))
    found = plan(disk("B1", map_bytes=older.encode(), map_revision=90), disk("B2"), disk("B3"))
    assert found.entry is not None and found.entry.brokers == BROKERS


def test_disk_that_remembers_nonsense_is_asked_all_the_same() -> None:
    found = plan(disk("B1", map_bytes=b"{"), disk("B2"), disk("B3"))
    assert found.entry is not None and found.entry.epoch == 5
    assert plan(disk("B1", map_bytes=b"")).verdict is Verdict.STUCK


def test_name_that_two_sets_have_goes_to_the_first_and_is_told() -> None:
    east, west = SetName("east"), SetName("west")
    owners, disputed = directory_of({west: [("queue", "q"), ("queue", "w")], east: [("queue", "q")]})
    assert owners == {("queue", "q"): east, ("queue", "w"): west}
    assert disputed == [("queue", "q")]


@pytest.mark.parametrize("epoch", [50, 1 << 48, EPOCH_MAX - 2])
def test_the_map_goes_on_above_any_epoch_that_a_disk_has_seen(epoch: int) -> None:
    fenced = [disk(broker, highest_epoch=Epoch(epoch)) for broker in BROKERS]
    found = plan(*fenced)
    assert found.verdict is Verdict.REBUILT and found.entry is not None and found.entry.epoch == epoch + 1


@pytest.mark.parametrize("epoch", [EPOCH_MAX, EPOCH_MAX + 1, (1 << 64) - 1])
def test_a_disk_above_whose_epoch_there_is_none_is_named_and_can_be_given_up(epoch: int) -> None:
    disks = disk("B1"), disk("B2"), disk("B3", highest_epoch=Epoch(epoch))
    stuck = plan(*disks)
    assert stuck.verdict is Verdict.STUCK and f"disk of B3 has seen epoch {epoch}" in stuck.problem
    found = plan(*disks, without=("B3",))
    assert found.verdict is Verdict.REBUILT and found.entry is not None and found.entry.epoch <= EPOCH_MAX
    assert [member.broker for member in found.entry.in_sync] == ["B1", "B2"]


ANOTHER_SETS = replace(entry(9), set_name=SetName("another")).encode()


@pytest.mark.parametrize("data", [*NONSENSE.values(), ANOTHER_SETS], ids=[*NONSENSE, "another set's"])
def test_what_a_disk_remembers_that_is_no_entry_of_the_set_changes_nothing(data: bytes) -> None:
    disks = disk("B1", map_bytes=data, stamp="p/1/" + "9" * 5_000), disk("B2"), disk("B3")
    found = plan(*disks)
    assert found.verdict is Verdict.REBUILT and found.entry is not None
    assert (found.entry.set_name, found.entry.epoch, found.entry.brokers) == (SET, 5, BROKERS)
    for is_led, verdict in ((True, Verdict.LED), (False, Verdict.CURRENT)):
        assert plan(*disks, etcd=EtcdKnows(entry(), 11, is_led, Lineage("old"))).verdict is verdict


def test_a_disk_that_remembers_an_entry_above_whose_epoch_there_is_none_is_named_and_can_be_given_up() -> (
    None
):
    disks = disk("B1"), disk("B2"), disk("B3", map_bytes=entry(EPOCH_MAX).encode())
    stuck = plan(*disks)
    assert stuck.verdict is Verdict.STUCK and f"disk of B3 has seen epoch {EPOCH_MAX}" in stuck.problem
    found = plan(*disks, without=("B3",))
    assert found.verdict is Verdict.REBUILT and found.entry is not None and found.entry.epoch == 5


NO_GOOD = "what the disk has cannot be loaded: frame 3..3 cannot be applied"


def in_sync(found: SetPlan) -> list[str]:
    assert found.verdict is Verdict.REBUILT and found.entry is not None, found.problem
    return [str(member.broker) for member in found.entry.in_sync]


def test_a_disk_on_which_its_broker_does_not_stand_is_not_named_and_comes_back_as_a_learner() -> None:
    """Its store finds nothing wrong with it. Nothing needs to be given up: what it has is known, and others have it."""
    for log_end in (90, 80):
        found = plan(disk("B1"), disk("B2", log_end=log_end, found_by_broker=NO_GOOD), disk("B3"))
        assert (in_sync(found), found.unheard) == (["B1", "B3"], ())


def test_where_only_such_a_disk_has_all_the_log_an_operator_chooses() -> None:
    disks = disk("B1"), disk("B2", log_end=95, found_by_broker=NO_GOOD), disk("B3")
    found = plan(*disks)
    assert found.verdict is Verdict.STUCK
    assert "B2" in found.problem and "index 95 in epoch 4" in found.problem and NO_GOOD in found.problem
    assert in_sync(plan(*disks, without=("B2",))) == ["B1", "B3"]
    assert in_sync(plan(*disks, without=("B1", "B3"))) == ["B2"], (
        "it is led when its damage is accepted, or mended"
    )


def test_what_such_a_disk_knows_to_have_been_acknowledged_counts() -> None:
    table: EpochStarts = ((Epoch(4), LogIndex(1)),)
    knows = disk("B2", 4, 95, epochs=table, commit_index=LogIndex(95), found_by_broker=NO_GOOD)
    later: EpochStarts = ((Epoch(4), LogIndex(1)), (Epoch(5), LogIndex(91)))
    found = plan(disk("B1", 5, 91, epochs=later), knows, disk("B3", 5, 91, epochs=later))
    assert (
        found.verdict is Verdict.STUCK and "behind index 90 the disk of B2 has another log" in found.problem
    )
