"""Groups that read committed events at a primary, and how branches of our coordinator stand (DESIGN 7)."""

from collections.abc import Iterator

import pytest

from lockstep.core.branch_names import (
    GLOBAL_ID_BYTES,
    PARTICIPANTS_MAX,
    RANDOM_BYTES,
    GlobalId,
    branch_xid,
    generation_tag,
    new_global_id,
)
from lockstep.core.commands import (
    CommitBranchCommand,
    EndCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
    StartCommand,
)
from lockstep.core.effects import Note
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.records import AdvanceSubscription, Begins, CloseSubscription, OpenSubscription
from lockstep.core.requests import ChangeSubscription, FindBranches, SubscriptionChange
from lockstep.core.server_messages import BranchEnd, BranchesFound, SubscriptionsAnswer
from lockstep.core.subscriptions import Group
from lockstep.core.xid import Xid
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import Rig, RigClient, publish

HOUR_MS = 3_600_000
TAG = generation_tag("a1b2c3d4-0000")
RECORDS = OpenSubscription | AdvanceSubscription | CloseSubscription


class Caller:
    """Another service of the broker: it asks on a stream as clients have."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.client = rig.client()
        self._requests = 0

    def change(
        self,
        change: SubscriptionChange,
        group: str = "spark",
        floor: int | None = None,
        *,
        is_earliest: bool = False,
        epoch: int | None = None,
        is_left_behind: bool = False,
        begins: Begins = (),
    ) -> SubscriptionsAnswer:
        self._requests += 1
        index = None if floor is None else LogIndex(floor)
        known = None if epoch is None else Epoch(epoch)
        self._say(
            ChangeSubscription(
                self._requests, group, change, index, is_earliest, known, is_left_behind, begins
            )
        )
        (answer,) = [
            one for one in self.client.heard_of(SubscriptionsAnswer) if one.request == self._requests
        ]
        return answer

    def open(self, group: str = "spark", floor: int | None = None) -> Group:
        answer = self.change(SubscriptionChange.OPEN, group, floor)
        assert answer.code is ErrorCode.NONE, answer
        return next(one for one in answer.groups if one.name == group)

    def find(self, *xids: Xid) -> BranchesFound:
        self._requests += 1
        self._say(FindBranches(self._requests, tuple(xid.encode() for xid in xids)))
        return self.client.heard_of(BranchesFound)[-1]

    def _say(self, request: ChangeSubscription | FindBranches) -> None:
        self.client.say(request)  # type: ignore[arg-type]


def records(rig: Rig) -> Iterator[RECORDS]:
    return (record for record in rig.records() if isinstance(record, RECORDS))


@pytest.fixture
def caller(rig: Rig) -> Caller:
    return Caller(rig)


def test_a_group_begins_at_the_logs_end(rig: Rig, caller: Caller) -> None:
    caller.client.declare("q")
    end = rig.state.applied
    group = caller.open()
    assert (group.name, group.floor, group.is_started) == ("spark", end, False)


def test_opening_twice_opens_once(rig: Rig, caller: Caller) -> None:
    first = caller.open()
    caller.client.declare("q")
    assert caller.open() == first
    assert len(list(records(rig))) == 1


def test_a_group_begins_where_it_is_told_but_never_beyond_the_log(rig: Rig, caller: Caller) -> None:
    caller.client.declare("q")
    assert caller.open("early", 1).floor == 1
    end = rig.state.applied
    assert caller.open("late", 1 << 40).floor == end
    assert caller.open("all", 0).floor == 0


def test_the_earliest_is_where_somebody_is_owed_from(rig: Rig, caller: Caller) -> None:
    caller.client.declare("q")
    end = rig.state.applied
    alone = caller.change(SubscriptionChange.OPEN, "alone", is_earliest=True)
    assert alone.groups[0].floor == end, "nothing is kept for anybody"
    caller.open("first", 1)
    caller.client.declare("other")
    second = caller.change(SubscriptionChange.OPEN, "second", is_earliest=True)
    assert [(group.name, group.floor) for group in second.groups] == [
        ("alone", end),
        ("first", 1),
        ("second", 1),
    ]


def test_a_group_starts_once_and_goes_on_cumulatively(rig: Rig, caller: Caller) -> None:
    for number in range(5):
        caller.client.declare(f"q{number}")
    caller.open(floor=1)
    for change, floor, expected in (
        (SubscriptionChange.START, 2, 2),
        (SubscriptionChange.START, 4, 2),
        (SubscriptionChange.ADVANCE, 3, 3),
        (SubscriptionChange.ADVANCE, 3, 3),
        (SubscriptionChange.ADVANCE, 1, 3),
        (SubscriptionChange.ADVANCE, 5, 5),
    ):
        (group,) = caller.change(change, floor=floor).groups
        assert (group.floor, group.is_started) == (expected, True), f"{change} {floor}"
    assert len(list(records(rig))) == 4, "what changes nothing is not written"
    rig.check_log()


def test_a_group_that_starts_where_it_stands_has_started(caller: Caller) -> None:
    group = caller.open(floor=1)
    (started,) = caller.change(SubscriptionChange.START, floor=group.floor).groups
    assert started.is_started


def test_a_group_that_has_not_begun_may_begin_below_where_it_was_opened(rig: Rig, caller: Caller) -> None:
    """Whoever opened it here did not know that it had begun in other sets before this one came."""
    caller.client.declare("q")
    opened = caller.open()
    (begun,) = caller.change(SubscriptionChange.START, floor=0).groups
    assert (begun.floor, begun.is_started) == (0, True) and opened.floor > 0
    assert caller.change(SubscriptionChange.START, floor=opened.floor).groups == (begun,)
    rig.check_log()


def test_the_first_that_has_a_group_begin_decides_where_it_does_in_all_sets(rig: Rig, caller: Caller) -> None:
    caller.client.declare("q")
    caller.open(floor=1)
    first, second = (("east", LogIndex(1), Epoch(1)),), (("west", LogIndex(9), Epoch(1)),)
    for begins in (first, second):
        (group,) = caller.change(SubscriptionChange.START, floor=1, begins=begins).groups
        assert group.begins == first
    (group,) = caller.change(SubscriptionChange.ADVANCE, floor=2).groups
    assert (group.floor, group.begins) == (2, first)
    assert caller.change(SubscriptionChange.CLOSE).groups == ()
    assert caller.open(floor=1).begins == ()
    rig.check_log()


def test_an_acknowledgement_of_what_the_log_has_not_is_refused_and_moves_nothing(
    rig: Rig, caller: Caller
) -> None:
    """Such as was there until data loss was accepted (R7)."""
    caller.client.declare("q")
    caller.open(floor=1)
    end, epoch = rig.core.commit_index, rig.core.epoch
    for change in (SubscriptionChange.START, SubscriptionChange.ADVANCE):
        for floor, its_epoch in ((end + 1, epoch), (1 << 40, epoch + 1), (end, epoch + 1), (end, epoch - 1)):
            answer = caller.change(change, floor=floor, epoch=its_epoch)
            assert answer.code is ErrorCode.WRONG_EPOCH
            assert str(floor) in answer.message
            assert [(group.floor, group.is_started) for group in answer.groups] == [(1, False)]
    assert caller.change(SubscriptionChange.ADVANCE, floor=end, epoch=epoch).groups[0].floor == end


def test_what_was_read_from_a_predecessor_is_acknowledged_at_a_primary_that_serves() -> None:
    first = Rig()
    caller = Caller(first)
    caller.open(floor=0)
    caller.client.declare("q")
    read_up_to = first.core.commit_index
    second = Rig(predecessor=first, is_restarted=True)
    answer = Caller(second).change(SubscriptionChange.ADVANCE, floor=read_up_to, epoch=1)
    assert (answer.code, answer.groups[0].floor) == (ErrorCode.NONE, read_up_to)


def test_what_is_not_open_is_not_found(caller: Caller) -> None:
    for change in (SubscriptionChange.START, SubscriptionChange.ADVANCE):
        answer = caller.change(change, "nobody", 1)
        assert (answer.code, answer.groups) == (ErrorCode.NOT_FOUND, ())
        assert "nobody" in answer.message


def test_closing_twice_closes_once(rig: Rig, caller: Caller) -> None:
    caller.open()
    for _ in range(2):
        answer = caller.change(SubscriptionChange.CLOSE)
        assert (answer.code, answer.groups) == (ErrorCode.NONE, ())
    assert len(list(records(rig))) == 2
    assert caller.open().floor == rig.state.applied - 1, "a new one"


@pytest.mark.parametrize("name", ["", "x" * 10_000, "line\nbreak", "\x00"])
def test_a_group_has_a_name_that_can_be_read(name: str, rig: Rig, caller: Caller) -> None:
    answer = caller.change(SubscriptionChange.OPEN, name)
    assert answer.code is ErrorCode.INVALID_ARGUMENT
    assert not list(records(rig))


def test_there_are_not_more_groups_than_the_limit() -> None:
    caller = Caller(Rig(PrimarySettings(subscriptions_max=2)))
    caller.open("one")
    caller.open("two")
    answer = caller.change(SubscriptionChange.OPEN, "three")
    assert answer.code is ErrorCode.UNAVAILABLE
    assert "subscriptions_max" in answer.message
    assert [note.limit for note in caller.rig.notes if note.limit] == ["subscriptions_max"]
    caller.open("two")
    caller.change(SubscriptionChange.CLOSE, "one")
    caller.open("three")


def test_nothing_is_told_before_it_is_committed() -> None:
    rig = Rig(holds_store=True)
    client = rig.client()
    rig.acknowledge()
    client.say(ChangeSubscription(1, "spark", SubscriptionChange.OPEN))  # type: ignore[arg-type]
    assert not client.heard_of(SubscriptionsAnswer)
    client.say(ChangeSubscription(2, "", SubscriptionChange.NONE))  # type: ignore[arg-type]
    assert not client.heard_of(SubscriptionsAnswer), "it would tell of a group that may be lost"
    rig.acknowledge()
    assert [len(answer.groups) for answer in client.heard_of(SubscriptionsAnswer)] == [1, 1]


def test_a_successor_has_the_groups() -> None:
    first = Rig()
    group = Caller(first).open()
    second = Caller(Rig(predecessor=first, is_restarted=True))
    assert second.change(SubscriptionChange.NONE).groups == (group,)


# --- groups that are left behind ----------------------------------------------------------------------------------------


def behind(rig: Rig) -> list[Note]:
    return [note for note in rig.notes if note.event == "subscription_left_behind"]


def is_left_behind(caller: Caller, name: str = "spark") -> bool:
    groups = caller.change(SubscriptionChange.NONE).groups
    return next(group for group in groups if group.name == name).is_left_behind


def wait(rig: Rig, hours: int) -> None:
    for _ in range(hours):
        rig.pass_time(HOUR_MS)


def test_a_group_that_is_owed_what_is_too_old_is_left_behind_with_a_warning() -> None:
    rig = Rig(PrimarySettings(subscription_retention_ms=10 * HOUR_MS))
    caller = Caller(rig)
    caller.open()
    caller.client.declare("q")
    wait(rig, 9)
    assert not is_left_behind(caller)
    wait(rig, 30)
    assert is_left_behind(caller)
    assert rig.state.subscriptions.floor is None
    (note,) = behind(rig)
    assert note.is_warning
    assert "spark" in note.details
    rig.check_log()


def test_a_group_that_was_left_behind_goes_nowhere_until_it_is_closed() -> None:
    rig = Rig(PrimarySettings(subscription_retention_ms=10 * HOUR_MS))
    caller = Caller(rig)
    known = caller.open()
    caller.change(SubscriptionChange.START, floor=known.floor)
    caller.client.declare("q")
    wait(rig, 12)
    (left,) = caller.change(SubscriptionChange.NONE).groups
    written = len(list(records(rig)))
    for change in (SubscriptionChange.OPEN, SubscriptionChange.START, SubscriptionChange.ADVANCE):
        answer = caller.change(change, floor=rig.core.commit_index)
        assert (answer.code, answer.groups) == (ErrorCode.OUT_OF_RANGE, (left,))
        assert f"'spark' was left behind at {known.floor}" in answer.message
    assert len(list(records(rig))) == written
    assert caller.change(SubscriptionChange.CLOSE).groups == ()
    assert caller.open().floor == rig.state.applied - 1, "it begins anew"
    rig.check_log()


def test_a_group_may_be_left_behind_by_who_closes_it(rig: Rig, caller: Caller) -> None:
    caller.open()
    for _ in range(2):
        caller.change(SubscriptionChange.CLOSE, is_left_behind=True)
        assert is_left_behind(caller)
    assert len(list(records(rig))) == 2
    assert caller.change(SubscriptionChange.CLOSE).groups == ()


def test_groups_that_were_left_behind_do_not_pile_up() -> None:
    caller = Caller(Rig(PrimarySettings(subscriptions_max=2)))
    caller.open("one")
    caller.open("two")
    caller.change(SubscriptionChange.CLOSE, "one", is_left_behind=True)
    answer = caller.change(SubscriptionChange.OPEN, "three")
    assert answer.code is ErrorCode.UNAVAILABLE
    assert "1 were left behind" in answer.message
    caller.change(SubscriptionChange.CLOSE, "one")
    caller.open("three")


def test_a_group_that_goes_on_is_not_left_behind() -> None:
    rig = Rig(PrimarySettings(subscription_retention_ms=10 * HOUR_MS))
    caller = Caller(rig)
    caller.open("reader")
    caller.open("sleeper")
    for number in range(40):
        caller.client.declare(f"q{number}")
        caller.change(SubscriptionChange.ADVANCE, "reader", rig.state.applied)
        wait(rig, 1)
    assert not is_left_behind(caller, "reader")
    assert is_left_behind(caller, "sleeper")
    assert len(behind(rig)) == 1


def test_a_successor_counts_from_its_beginning() -> None:
    settings = PrimarySettings(subscription_retention_ms=10 * HOUR_MS)
    first = Rig(settings)
    caller = Caller(first)
    caller.open()
    caller.client.declare("q")
    wait(first, 9)
    second = Rig(settings, predecessor=first, is_restarted=True)
    wait(second, 9)
    assert not is_left_behind(Caller(second))
    wait(second, 3)
    assert is_left_behind(Caller(second))


# --- branches -----------------------------------------------------------------------------------------------------------


def xid_of(number: int, participant: int = 0) -> Xid:
    return branch_xid(GlobalId(number.to_bytes(GLOBAL_ID_BYTES)), participant, TAG)


def dtx_client(caller: Caller) -> RigClient:
    client = caller.rig.client()
    client.declare("q")
    client.ok(SelectDtxCommand(0))
    return client


def prepare(client: RigClient, xid: Xid) -> None:
    key = LogIndex(client.ok(StartCommand(0, xid.encode()))), client.rig.core.epoch
    client.ok(publish("q", b"in branch", transaction=key, sequence=1))
    client.ok(EndCommand(0, xid.encode(), 1))
    client.ok(PrepareBranchCommand(0, xid.encode()))


def test_how_branches_stand(rig: Rig, caller: Caller) -> None:
    client = dtx_client(caller)
    for number in (1, 2, 3):
        prepare(client, xid_of(number))
    client.ok(CommitBranchCommand(0, xid_of(2).encode()))
    committed = rig.state.applied
    client.ok(RollbackBranchCommand(0, xid_of(3).encode()))
    rolled_back = rig.state.applied
    client.ok(StartCommand(0, xid_of(4).encode()))
    found = caller.find(*(xid_of(number) for number in (1, 2, 3, 4, 5)))
    assert found.ends == (
        BranchEnd(is_prepared=True),
        BranchEnd(index=committed, is_committed=True),
        BranchEnd(index=rolled_back),
        BranchEnd(),
        BranchEnd(),
    )
    assert found.prepared == ()
    assert caller.find().prepared == (xid_of(1).encode(),)


def test_how_several_branches_of_a_transaction_stand_together(rig: Rig, caller: Caller) -> None:
    client = dtx_client(caller)
    for number in range(3):
        prepare(client, xid_of(1, number))
    client.ok(CommitBranchCommand(0, xid_of(1, 1).encode()))
    first = rig.state.applied
    assert caller.find(xid_of(1)).ends == (BranchEnd(True, first, True),)
    client.ok(CommitBranchCommand(0, xid_of(1, 0).encode()))
    client.ok(CommitBranchCommand(0, xid_of(1, 2).encode()))
    assert caller.find(xid_of(1)).ends == (BranchEnd(False, rig.state.applied, True, first_index=first),)


def test_a_transaction_is_found_by_the_name_of_any_of_its_branches(caller: Caller) -> None:
    client = dtx_client(caller)
    prepare(client, xid_of(1, PARTICIPANTS_MAX - 1))
    assert caller.find(xid_of(1, 3)).ends == (BranchEnd(is_prepared=True),)


def test_a_name_that_is_as_old_as_what_is_forgotten_may_be_so_itself() -> None:
    """But for one that has an open branch: nothing of its transaction has been committed."""
    rig = Rig(PrimarySettings(outcomes_max=1))
    caller = Caller(rig)
    client = dtx_client(caller)
    names = [branch_xid(new_global_id(rig.wall_ms + at, bytes(RANDOM_BYTES)), 0, TAG) for at in range(5)]
    for prepared in (names[1], names[3]):
        prepare(client, prepared)
    client.ok(StartCommand(0, names[2].encode()))
    client.ok(EndCommand(0, names[2].encode(), 0))
    client.ok(CommitBranchCommand(0, names[3].encode()))
    for _ in range(3):
        client.commit(client.begin(), 0)
        rig.pass_time(1_000)
    floor = rig.state.retention_floor
    nothing = BranchEnd(forgotten_up_to=floor)
    lost = BranchEnd(forgotten_up_to=floor, may_be_forgotten=True)
    still_prepared = BranchEnd(is_prepared=True, may_be_forgotten=True)
    assert caller.find(*names).ends == (lost, still_prepared, nothing, lost, nothing)


def test_branches_of_other_coordinators_are_not_asked_for(caller: Caller) -> None:
    client = dtx_client(caller)
    foreign = Xid(7, b"theirs", b"1")
    prepare(client, foreign)
    found = caller.find(foreign)
    assert found.ends == (BranchEnd(),)
    assert found.prepared == ()
