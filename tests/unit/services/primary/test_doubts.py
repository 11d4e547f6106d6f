"""What a primary says of branches that stay prepared."""

from lockstep.core.commands import (
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
    StartCommand,
)
from lockstep.core.doubt_watch import DoubtFigures
from lockstep.core.effects import Note
from lockstep.core.ids import transaction_id
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient

SETTINGS = PrimarySettings(in_doubt_ms=10_000)
XID = Xid(7, b"global", b"branch")


def prepare(client: RigClient, xid: Xid = XID) -> None:
    client.branch(xid.encode())
    assert client.ok(PrepareBranchCommand(0, xid.encode())) == XaStatus.OK


def select(rig: Rig) -> RigClient:
    client = rig.client()
    client.ok(SelectDtxCommand(0))
    return client


def warnings(rig: Rig) -> list[Note]:
    return [note for note in rig.notes if note.is_warning]


def details(rig: Rig) -> list[str]:
    return [note.details for note in warnings(rig)]


def words_of(rig: Rig, seconds: int) -> str:
    (branch,) = rig.state.transactions.prepared()
    name = transaction_id(SET, branch.key)
    return f"xid={XID} age_seconds={seconds} transaction={name} state=prepared"


def wait(rig: Rig, seconds: int) -> None:
    for _ in range(seconds):
        rig.pass_time(1_000)


def test_a_branch_that_stays_prepared_is_warned_of_at_a_growing_interval() -> None:
    rig = Rig(SETTINGS)
    prepare(select(rig))
    wait(rig, 9)
    assert not warnings(rig)
    wait(rig, 41)
    assert [note.event for note in warnings(rig)] == ["in_doubt"] * 3
    assert details(rig) == [words_of(rig, seconds) for seconds in (10, 20, 40)]
    assert rig.core.context.doubts.figures(rig.wall_ms) == DoubtFigures(1, 50.0, 1)


def test_an_open_branch_is_not_in_doubt_and_an_ended_one_is_not_any_more() -> None:
    rig = Rig(SETTINGS)
    client = select(rig)
    prepare(client)
    client.ok(StartCommand(0, Xid(7, b"open", b"").encode()))
    wait(rig, 1)
    assert rig.core.context.doubts.figures(rig.wall_ms).count == 1
    client.ok(RollbackBranchCommand(0, XID.encode()))
    wait(rig, 30)
    assert not warnings(rig)
    assert rig.core.context.doubts.figures(rig.wall_ms) == DoubtFigures(0, 0.0, 0)


def test_a_successor_says_it_again_at_once_with_the_age_of_the_branch() -> None:
    first = Rig(SETTINGS)
    prepare(select(first))
    wait(first, 30)
    second = Rig(SETTINGS, predecessor=first)
    wait(second, 1)
    assert details(second) == [words_of(second, 31)]
