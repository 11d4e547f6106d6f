"""When exclusive queues end: with their session, and behind the prepared branches that touch them."""

import pytest

from lockstep.core.commands import (
    AnyCommand,
    CommitBranchCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
)
from lockstep.core.requests import DetachSession
from lockstep.core.xid import Xid
from tests.unit.services.primary.primary_rig import Rig, RigClient, publish

XID = Xid(7, b"global", b"one").encode()


def is_there(rig: Rig) -> bool:
    return "mine" in rig.state.queues.by_name


def prepared_work(rig: Rig) -> RigClient:
    """A branch has a message for an exclusive queue and one for another; whose the first is."""
    owner, worker = rig.client(timeout_ms=2_000), rig.client()
    owner.declare("mine", is_exclusive=True)
    worker.declare("q")
    worker.ok(SelectDtxCommand(0))
    worker.branch(XID, publish("mine", b"reply"), publish("q", b"done"))
    worker.ok(PrepareBranchCommand(0, XID))
    return owner


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("how", ["", "failover", "hand-over"])
@pytest.mark.parametrize("end", [CommitBranchCommand(0, XID), RollbackBranchCommand(0, XID)])
def test_it_ends_with_the_prepared_branch_for_which_it_stayed(
    end: AnyCommand, how: str, is_lost: bool
) -> None:
    rig = Rig()
    owner = prepared_work(rig)
    if is_lost:
        owner.lose_stream()
        rig.pass_time(2_001)
        rig.pass_time(1)
    else:
        owner.say(DetachSession())
    if how:
        rig = rig.next_reign(how)
    for _ in range(5):
        rig.pass_time(1_000)
    assert is_there(rig)
    other = rig.client()
    other.ok(SelectDtxCommand(0))
    other.ok(end)
    if isinstance(end, CommitBranchCommand):
        assert rig.bodies("mine") == [b"reply"] and rig.bodies("q") == [b"done"]
    rig.pass_time(1_001)
    rig.pass_time(1)
    assert not is_there(rig)
    rig.check_log()


def test_what_fails_too_often_as_its_session_is_lost_is_a_dead_letter() -> None:
    rig = Rig()
    rig.client().declare("dead")
    owner = rig.client(timeout_ms=2_000)
    owner.declare("mine", is_exclusive=True, dead_letter_key="dead", delivery_count_max=1)
    owner.publish("mine", b"1")
    owner.consume("mine")
    assert owner.bodies("mine") == [b"1"]
    owner.lose_stream()
    rig.pass_time(2_001)
    rig.pass_time(1)
    assert rig.bodies("dead") == [b"1"] and not is_there(rig)
    rig.check_log()


def test_it_ends_with_its_session_where_no_prepared_branch_touches_it() -> None:
    rig = Rig()
    prepared_work(rig)
    other = rig.client()
    other.declare("another", is_exclusive=True)
    other.say(DetachSession())
    assert "another" not in rig.state.queues.by_name
    assert is_there(rig)
