"""What a set forgets of its outcomes, and what the decision log has it keep."""

import pytest

from lockstep.core.branch_names import (
    GLOBAL_ID_BYTES,
    RANDOM_BYTES,
    GlobalId,
    ParticipantName,
    branch_xid,
    generation_tag,
    new_global_id,
)
from lockstep.core.commands import (
    CommitBranchCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
)
from lockstep.core.decision_log import LoggedParticipants, ParticipantsEntry
from lockstep.core.ids import Incarnation
from lockstep.core.xa import BranchState
from services.primary.core.branches import find, state_of
from services.primary.core.forgetting import WAITED_MS
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish

TAG = generation_tag("a1b2c3d4-0000")
ID = GlobalId(bytes(range(GLOBAL_ID_BYTES)))
OURS = branch_xid(ID, 1, TAG).encode()
OTHERS = ParticipantName("set:others")
OWN = ParticipantName(f"set:{SET}")


def logged(*participants: ParticipantName, committed: tuple[int, ...] = ()) -> ParticipantsEntry:
    return ParticipantsEntry(participants, TAG, Incarnation("c"), 7, committed=committed)


def log_of(*lists: tuple[GlobalId, ParticipantsEntry]) -> LoggedParticipants:
    return LoggedParticipants(lists)


@pytest.fixture
def rig() -> Rig:
    rig = Rig(PrimarySettings(outcomes_max=1))
    rig.client().declare("q")
    return rig


def end_branch(rig: Rig, xid: bytes = OURS, *, is_commit: bool = True) -> RigClient:
    client = rig.client()
    client.ok(SelectDtxCommand(0))
    client.branch(xid, publish("q", b"x"))
    client.ok(PrepareBranchCommand(0, xid))
    client.ok(CommitBranchCommand(0, xid) if is_commit else RollbackBranchCommand(0, xid))
    return client


def others_end(rig: Rig, client: RigClient, count: int = 3) -> None:
    for _ in range(count):
        client.commit(client.begin(), 0)
        rig.pass_time(1_000)


def is_known(rig: Rig, xid: bytes = OURS) -> bool:
    return state_of(find(rig.core.context, xid)) is BranchState.COMMITTED


@pytest.mark.parametrize(
    ("entry", "is_kept"),
    [
        (logged(OTHERS, OWN), True),
        (logged(OTHERS, OWN, committed=(0,)), True),
        (logged(OTHERS, OWN, committed=(1,)), False),
        (logged(OWN, OTHERS), False),
        (logged(OTHERS), False),
        (None, False),
    ],
    ids=["it is not over", "another has committed", "the log says so", "not its number", "not in it", "over"],
)
def test_what_has_committed_is_known_as_long_as_somebody_may_ask(
    rig: Rig, entry: ParticipantsEntry | None, is_kept: bool
) -> None:
    rig.logged = log_of((ID, entry)) if entry is not None else log_of()
    client = end_branch(rig)
    others_end(rig, client)
    assert is_known(rig) is is_kept
    assert len(rig.state.outcomes) <= 2 + is_kept, "others are forgotten"
    rig.logged = log_of()
    others_end(rig, client)
    assert not is_known(rig), "nobody asks any more"


def test_what_was_rolled_back_is_not_kept(rig: Rig) -> None:
    rig.logged = log_of((ID, logged(OTHERS, OWN)))
    client = end_branch(rig, is_commit=False)
    others_end(rig, client)
    assert rig.state.outcomes.find_xid(OURS) is None


def test_what_is_kept_is_kept_behind_a_restart(rig: Rig) -> None:
    rig.logged = log_of((ID, logged(OTHERS, OWN)))
    others_end(rig, end_branch(rig))
    successor = Rig(PrimarySettings(outcomes_max=1), predecessor=rig, is_restarted=True)
    successor.logged = rig.logged
    assert is_known(successor)
    others_end(successor, successor.client())
    assert is_known(successor)
    assert len(successor.state.outcomes) <= 3
    successor.logged = log_of()
    others_end(successor, successor.client())
    assert not is_known(successor)


def test_nothing_is_forgotten_while_the_log_does_not_answer_but_not_for_ever(rig: Rig) -> None:
    rig.logged = None
    client = end_branch(rig)
    others_end(rig, client, 10)
    assert is_known(rig) and len(rig.state.outcomes) > 10
    rig.logged = log_of((ID, logged(OTHERS, OWN)))
    others_end(rig, client)
    assert is_known(rig) and len(rig.state.outcomes) <= 3
    rig.logged = None
    others_end(rig, client, WAITED_MS // 1_000 + 2)
    assert not is_known(rig) and len(rig.state.outcomes) <= 2


def test_a_set_without_branches_asks_nobody(rig: Rig) -> None:
    rig.logged = None
    others_end(rig, rig.client(), 5)
    assert len(rig.state.outcomes) <= 2


def named(begun_ms: int) -> tuple[GlobalId, bytes]:
    """A transaction, and its branch here."""
    global_id = new_global_id(begun_ms, bytes(RANDOM_BYTES))
    return global_id, branch_xid(global_id, 1, TAG).encode()


def test_the_floor_waits_for_room_and_not_for_ever() -> None:
    """Two may stay, and three are awaited."""
    rig = Rig(PrimarySettings(outcomes_max=1, outcomes_kept_max=2))
    rig.client().declare("q")
    branches = [named(begun_ms) for begun_ms in (1_000, 1_001, 1_002)]
    rig.logged = log_of(*[(global_id, logged(OTHERS, OWN)) for global_id, _ in branches])
    for _, xid in branches:
        client = end_branch(rig, xid)
    others_end(rig, client, 10)
    assert [is_known(rig, xid) for _, xid in branches] == [True, True, True]
    others_end(rig, client, WAITED_MS // 1_000)
    assert [is_known(rig, xid) for _, xid in branches] == [True, True, False], "memory is worth more"
    others_end(rig, client)
    assert len(rig.state.outcomes) <= 4
    rig.logged = log_of()
    others_end(rig, client)
    assert not any(is_known(rig, xid) for _, xid in branches)


def test_the_floor_rises_as_far_as_there_is_room() -> None:
    rig = Rig(PrimarySettings(outcomes_max=1, outcomes_kept_max=1))
    rig.client().declare("q")
    (first, first_xid), (second, second_xid) = named(1_000), named(1_001)
    rig.logged = log_of((first, logged(OTHERS, OWN)), (second, logged(OTHERS, OWN)))
    client = end_branch(rig, first_xid)
    for _ in range(20):
        client.commit(client.begin(), 0)
    end_branch(rig, second_xid)
    others_end(rig, client)
    assert is_known(rig, first_xid) and is_known(rig, second_xid)
    assert len(rig.state.outcomes) < 10, "what lies between them is forgotten"


@pytest.mark.parametrize(("seen_up_to_ms", "is_kept"), [(999, True), (1_000, False)])
def test_what_the_log_was_not_looked_at_for_may_be_in_it(seen_up_to_ms: int, is_kept: bool) -> None:
    """There are more transactions in it than one look takes."""
    rig = Rig(PrimarySettings(outcomes_max=1))
    rig.client().declare("q")
    _, xid = named(1_000)
    rig.logged = LoggedParticipants((), seen_up_to_ms)
    client = end_branch(rig, xid)
    others_end(rig, client)
    assert is_known(rig, xid) is is_kept
    rig.logged = log_of()
    others_end(rig, client)
    assert not is_known(rig, xid)


def test_memory_is_bounded_while_the_log_does_not_answer() -> None:
    rig = Rig(PrimarySettings(outcomes_max=1, outcome_sweep_max=5))
    rig.client().declare("q")
    rig.logged = None
    for second in range(2 * WAITED_MS // 1_000):
        end_branch(rig, named(1_000 + second)[1])
        rig.pass_time(1_000)
    assert len(rig.state.outcomes) <= 5
