"""A branch that was prepared by a worker, who does not know the other branches, and then by its coordinator, which does."""

import pytest

from lockstep.core.branch_names import GLOBAL_ID_BYTES, GlobalId, branch_xid, generation_tag
from lockstep.core.commands import (
    CommitBranchCommand,
    PrepareBranchCommand,
    SelectDtxCommand,
)
from lockstep.core.decision_log import LogView, OutcomeEntry, Verdict
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, SetName, TimeMs, TransactionKey
from lockstep.core.inputs import DecisionHeard
from lockstep.core.server_messages import BranchEnd
from lockstep.core.xa import XaStatus
from services.broker.core.events.planning import Cutting, Mark, Offset, joint_commit
from services.broker.core.events.planning import LogView as ShownLog
from services.broker.core.events.state_names import StateNames
from services.broker.core.events.transactions import CommittedTransaction
from tests.unit.services.broker.core.events.event_rig import read
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish
from tests.unit.services.primary.test_tx_queues import Log

GENERATION = "a1b2c3d4-0000"
GLOBAL_ID = GlobalId(bytes(range(GLOBAL_ID_BYTES)))
XID = branch_xid(GLOBAL_ID, 0, generation_tag(GENERATION)).encode()
SETS = ("orders", "west")
BY_WORKER = PrepareBranchCommand(0, XID)
BY_COORDINATOR = PrepareBranchCommand(0, XID, SETS)


def work(client: RigClient) -> TransactionKey:
    client.declare("q")
    client.ok(SelectDtxCommand(0))
    return client.branch(XID, publish("q", b"in branch"))


def told(rig: Rig) -> CommittedTransaction:
    """The last of what the log commits, as every reader gets it."""
    frames = [*rig.core.context.writer.log.frames_after(LogIndex(0))]
    return list(read(frames, 0, StateNames(rig.state)))[-1]


@pytest.mark.parametrize(
    "votes",
    [
        [BY_WORKER, BY_COORDINATOR],
        [BY_WORKER, BY_COORDINATOR, BY_WORKER],
        [BY_WORKER, BY_COORDINATOR, BY_COORDINATOR],
        [PrepareBranchCommand(0, XID, ("orders",)), BY_COORDINATOR],
        [BY_COORDINATOR, PrepareBranchCommand(0, XID, ("west",))],
    ],
)
def test_readers_are_told_all_sets_whoever_votes_first(votes: list[PrepareBranchCommand]) -> None:
    rig = Rig()
    client = rig.client()
    work(client)
    for vote in votes:
        assert client.ok(vote) == XaStatus.OK
    client.ok(CommitBranchCommand(0, XID))
    assert (told(rig).resource_sets, told(rig).is_joint) == (SETS, True)
    assert rig.bodies("q") == [b"in branch"]
    rig.check_log()


def test_a_reader_that_is_behind_waits_for_the_other_half_though_its_outcome_is_forgotten() -> None:
    """The sets of a transaction say whose forgotten outcomes may be of it; without them the cut would take this half alone."""
    rig = Rig()
    client = rig.client()
    work(client)
    for command in (BY_WORKER, BY_COORDINATOR, CommitBranchCommand(0, XID)):
        client.ok(command)
    done = told(rig)
    joint = joint_commit(done.xid, done.index, done.epoch, done.time_ms, done.resource_sets)
    assert joint is not None
    start, west = Offset(LogIndex(0), Epoch(0)), SetName("west")
    here = [Mark(Offset(LogIndex(done.index + 1), done.epoch), TimeMs(done.time_ms + 9), 1)]
    there = [Mark(Offset(LogIndex(30), Epoch(1)), TimeMs(done.time_ms + 9), 10)]
    logs = {
        SET: ShownLog(start, here, [joint], False, 10_000_000),
        west: ShownLog(start, there, [], False, 10_000_000),
    }
    cutting = Cutting(logs, 10)
    assert set(cutting.questions()) == {west}
    cutting.learn({(west, GLOBAL_ID): BranchEnd(forgotten_up_to=LogIndex(1_000))})
    assert not cutting.questions()
    assert cutting.cut.ends[SET].index < done.index
    assert cutting.cut.is_short, "it looks further for the other half"


def test_what_a_coordinator_is_told_of_a_vote_is_in_the_log_with_the_sets_first() -> None:
    """It decides by that, and a commit may be the next record."""
    rig = Rig()
    client = rig.client()
    work(client)
    client.ok(BY_WORKER)
    rig.holds_store = True
    number = client.command(BY_COORDINATOR)
    assert number not in client.answers
    rig.acknowledge()
    assert client.answers[number].value == XaStatus.OK


def test_a_successor_takes_the_sets_of_what_was_prepared_before_it() -> None:
    first = Rig()
    work(client := first.client())
    client.ok(BY_WORKER)
    rig = Rig(predecessor=first, is_restarted=True)
    again = rig.client()
    again.ok(SelectDtxCommand(0))
    again.ok(BY_COORDINATOR)
    again.ok(CommitBranchCommand(0, XID))
    assert told(rig).resource_sets == SETS
    rig.check_log()


def test_a_branch_that_finds_its_decision_has_the_sets_too() -> None:
    rig = Rig()
    key = work(client := rig.client())
    client.ok(BY_WORKER)
    client.ok(BY_COORDINATOR)
    rig.pass_time(6_000)
    asked = rig.questions.pop(0)
    view = LogView(GENERATION, outcome=OutcomeEntry(Verdict.COMMIT, ended_ms=rig.wall_ms + 60_000))
    rig.feed(DecisionHeard(SET, asked.request, asked.transaction, view))
    assert (told(rig).key, told(rig).resource_sets) == (key, SETS)


def test_observers_hear_of_one_prepare_and_its_tx_queue_stays_closed() -> None:
    log = Log()
    rig = Rig(factories=(log,))
    key = work(client := rig.client())
    for command in (BY_WORKER, BY_COORDINATOR, BY_COORDINATOR):
        client.ok(command)
    queue = rig.core.context.tx_queues.by_key[key]
    assert queue.is_closed
    client.ok(CommitBranchCommand(0, XID))
    assert [event for heard, event in log.told if heard == key] == ["begin", "publish", "prepare", "commit"]
    assert key not in rig.core.context.tx_queues.by_key


def test_what_names_no_sets_or_bad_ones_writes_nothing() -> None:
    rig = Rig()
    work(client := rig.client())
    client.ok(BY_COORDINATOR)
    for name in ("", "x" * 300):
        refused = client.do(PrepareBranchCommand(0, XID, (name,)))
        assert refused.code is ErrorCode.INVALID_ARGUMENT
    client.ok(BY_WORKER)
    client.ok(CommitBranchCommand(0, XID))
    assert told(rig).resource_sets == SETS
