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
    EndHeuristicallyCommand,
    ForgetBranchCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
    StartCommand,
)
from lockstep.core.decision_log import LoggedParticipants, ParticipantsEntry
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Incarnation
from lockstep.core.inputs import ParticipantsListed
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


def prepare_branch(rig: Rig, xid: bytes) -> RigClient:
    client = rig.client()
    client.ok(SelectDtxCommand(0))
    client.branch(xid, publish("q", b"x"))
    client.ok(PrepareBranchCommand(0, xid))
    return client


def end_branch(rig: Rig, xid: bytes = OURS, *, is_commit: bool = True) -> RigClient:
    client = prepare_branch(rig, xid)
    client.ok(CommitBranchCommand(0, xid) if is_commit else RollbackBranchCommand(0, xid))
    return client


def end_by_operator(rig: Rig, xid: bytes) -> RigClient:
    client = prepare_branch(rig, xid)
    client.ok(EndHeuristicallyCommand(0, xid, True))
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
def test_what_the_log_was_not_looked_at_for_may_be_in_it(rig: Rig, seen_up_to_ms: int, is_kept: bool) -> None:
    """There are more transactions in it than one look takes."""
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


def named_ahead(rig: Rig, ahead_ms: int) -> bytes:
    """A branch of a transaction that was named by a clock so far ahead of this broker's."""
    begun_ms = rig.core.context.now.wall_ms + ahead_ms
    return branch_xid(new_global_id(begun_ms, bytes(RANDOM_BYTES)), 1, TAG).encode()


def begins_again(rig: Rig, xid: bytes) -> bool:
    client = rig.client()
    client.ok(SelectDtxCommand(0))
    return client.do(StartCommand(0, xid)).code is ErrorCode.NONE


def test_who_ends_a_branch_hears_that_it_may_have_ended_where_that_would_be_forgotten(rig: Rig) -> None:
    """Nobody is to take it for rolled back: it has committed in one phase, say, and nobody has heard that."""
    now_ms = rig.core.context.now.wall_ms
    before, committed, later = (named(now_ms + begun_ms)[1] for begun_ms in (-1, 0, 1))
    others_end(rig, end_branch(rig, committed), 5)
    client = rig.client()
    for command in (RollbackBranchCommand, CommitBranchCommand, PrepareBranchCommand):
        for xid, met in (
            (before, BranchState.FORGOTTEN),
            (committed, BranchState.FORGOTTEN),
            (later, BranchState.UNKNOWN),
        ):
            answer = client.do(command(0, xid))
            assert (answer.code, answer.value) == (ErrorCode.NOT_FOUND, met)


AHEAD_MS = 600_000


def test_what_a_clock_that_is_ahead_has_named_stays_until_that_time_has_come(rig: Rig) -> None:
    """Work that is repeated under its name would be committed a second time: no horizon covers it, and none may."""
    ahead = named_ahead(rig, AHEAD_MS)
    others_end(rig, end_branch(rig, ahead), 5)
    assert is_known(rig, ahead) and not begins_again(rig, ahead)
    assert begins_again(rig, named_ahead(rig, 0)), "others are as welcome as ever"
    rig.pass_time(AHEAD_MS)
    client = rig.client()
    for _ in range(5):
        others_end(rig, client, 1)
    assert not is_known(rig, ahead) and not begins_again(rig, ahead), "now the horizon tells of it"


def test_what_a_clock_that_is_ahead_has_named_stays_beside_what_the_log_has(rig: Rig) -> None:
    rig.logged = log_of((ID, logged(OTHERS, OWN)))
    ahead = named_ahead(rig, AHEAD_MS)
    end_branch(rig)
    others_end(rig, end_branch(rig, ahead), 5)
    assert is_known(rig) and is_known(rig, ahead)
    assert len(rig.state.outcomes) <= 4


def test_what_a_clock_that_is_ahead_has_named_is_forgotten_if_it_was_rolled_back(rig: Rig) -> None:
    ahead = named_ahead(rig, AHEAD_MS)
    others_end(rig, end_branch(rig, ahead, is_commit=False), 5)
    assert rig.state.outcomes.find_xid(ahead) is None


def test_names_of_a_far_future_and_those_for_which_there_is_no_room_are_forgotten() -> None:
    """A name can be chosen: it must not fill memory, nor have all others refused."""
    rig = Rig(PrimarySettings(outcomes_max=1, outcomes_kept_max=1))
    rig.client().declare("q")
    far = named_ahead(rig, 10 * rig.core.context.settings.outcome_retention_ms)
    first, second = named_ahead(rig, AHEAD_MS), named_ahead(rig, AHEAD_MS + 1)
    for xid in (far, first, second):
        client = end_branch(rig, xid)
    others_end(rig, client, 5)
    assert [is_known(rig, xid) for xid in (far, first, second)] == [False, True, False]
    assert begins_again(rig, named_ahead(rig, 0))


def test_an_operator_forgets_what_a_clock_that_is_ahead_has_named_when_that_time_has_come() -> None:
    rig = Rig(PrimarySettings())
    rig.client().declare("q")
    ahead = named_ahead(rig, AHEAD_MS)
    client = end_by_operator(rig, ahead)
    refused = client.do(ForgetBranchCommand(0, ahead))
    assert refused.code is ErrorCode.ILLEGAL_STATE and "begun later than now" in refused.message
    rig.pass_time(AHEAD_MS)
    client = rig.client()
    client.ok(ForgetBranchCommand(0, ahead))
    assert not begins_again(rig, ahead)


def test_what_an_operator_forgets_while_the_log_is_asked_is_not_forgotten_with_what_it_was_asked_for(
    rig: Rig,
) -> None:
    """It is younger than those, and no horizon would tell of it; the log may have its COMMIT for another participant."""
    (_, old), (_, young) = named(1_000), named(2_000)
    client = end_by_operator(rig, young)
    rig.lists_asked = []
    end_branch(rig, old)
    others_end(rig, client)
    (request,) = rig.lists_asked
    client.ok(ForgetBranchCommand(0, young))
    rig.lists_asked = None
    rig.feed(ParticipantsListed(SET, request, log_of()))
    assert is_known(rig, young) and not begins_again(rig, young)
    others_end(rig, client)
    assert not is_known(rig, old) and not is_known(rig, young)
    assert not begins_again(rig, young), "the horizon tells of it"


def test_the_horizon_does_not_fall_with_an_answer_to_what_was_asked_before_it_rose(rig: Rig) -> None:
    (_, old), (_, young) = named(1_000), named(2_000)
    client = end_by_operator(rig, young)
    others_end(rig, client)
    rig.lists_asked = []
    end_branch(rig, old)
    others_end(rig, client)
    (request,) = rig.lists_asked
    client.ok(ForgetBranchCommand(0, young))
    assert not begins_again(rig, young)
    rig.feed(ParticipantsListed(SET, request, log_of()))
    assert not is_known(rig, old), "the floor has risen"
    assert not begins_again(rig, young)
