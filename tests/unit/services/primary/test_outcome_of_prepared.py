"""A client that asks for the outcome of a prepared branch is told the decision, when there is one (DESIGN T5)."""

import pytest

from lockstep.core.branch_names import GLOBAL_ID_BYTES, GlobalId, ParticipantName, branch_xid, generation_tag
from lockstep.core.commands import (
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
)
from lockstep.core.decision_log import LogView, OutcomeEntry, ParticipantsEntry, Verdict
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Incarnation, TransactionKey
from lockstep.core.inputs import DecisionHeard
from lockstep.core.requests import GetOutcome
from lockstep.core.server_messages import OutcomeAnswer, OutcomeState, SessionEnded
from lockstep.core.xid import Xid
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish

GENERATION = "a1b2c3d4-0000"
TAG = generation_tag(GENERATION)
GLOBAL_ID = GlobalId(bytes(range(GLOBAL_ID_BYTES)))
ENTRY = ParticipantsEntry((ParticipantName("set:orders"),), TAG, Incarnation("c"), 0)
UNDECIDED = LogView(GENERATION, ENTRY, 5)
SETTINGS = PrimarySettings()
PREPARED: int = OutcomeState.PREPARED
COMMITTED: int = OutcomeState.COMMITTED
ROLLED_BACK: int = OutcomeState.ROLLED_BACK


def prepare(client: RigClient, xid: Xid | None = None) -> TransactionKey:
    name = (xid or branch_xid(GLOBAL_ID, 0, TAG)).encode()
    key = client.branch(name, publish("q", b"in branch"))
    client.ok(PrepareBranchCommand(0, name))
    return key


def ask(client: RigClient, key: TransactionKey, *, fence: bool = False, number: int = 1) -> None:
    client.say(GetOutcome(number, key, fence))


def told(client: RigClient) -> list[int]:
    return [answer.state for answer in client.heard_of(OutcomeAnswer)]


def answer(rig: Rig, view: LogView | None) -> None:
    """The log answers the oldest question."""
    asked = rig.questions.pop(0)
    rig.feed(DecisionHeard(SET, asked.request, asked.transaction, view))


@pytest.fixture
def client(rig: Rig) -> RigClient:
    client = rig.client()
    client.declare("q")
    client.ok(SelectDtxCommand(0))
    return client


@pytest.mark.parametrize(
    ("view", "state"),
    [
        (LogView(GENERATION, ENTRY, 5, Verdict.COMMIT), COMMITTED),
        (LogView(GENERATION, ENTRY, 5, Verdict.ABORT), ROLLED_BACK),
        (LogView(GENERATION, outcome=OutcomeEntry(Verdict.COMMIT)), COMMITTED),
        (LogView(GENERATION, outcome=OutcomeEntry(Verdict.ABORT)), ROLLED_BACK),
        (LogView("of another history", ENTRY, 5, Verdict.COMMIT), COMMITTED),
        (LogView(GENERATION), ROLLED_BACK),
        (UNDECIDED, PREPARED),
        (LogView("of another history"), PREPARED),
        (None, PREPARED),
    ],
)
@pytest.mark.parametrize("fence", [False, True])
def test_the_answer_is_the_decision_if_there_is_one(
    rig: Rig, client: RigClient, view: LogView | None, state: int, fence: bool
) -> None:
    key = prepare(client)
    ask(client, key, fence=fence)
    assert told(client) == [], "it looks first, and nothing waits for that"
    answer(rig, view)
    assert told(client) == [state]
    assert rig.bodies("q") == ([b"in branch"] if state == COMMITTED else [])
    assert len(rig.state.transactions.prepared()) == (state == PREPARED), "it is done, not only told"
    rig.check_log()


def test_what_is_told_is_committed_first(client: RigClient, rig: Rig) -> None:
    key = prepare(client)
    rig.holds_store = True
    ask(client, key)
    answer(rig, LogView(GENERATION, ENTRY, 5, Verdict.COMMIT))
    assert told(client) == []
    rig.acknowledge()
    assert told(client) == [COMMITTED]


def test_a_silent_log_is_not_waited_for_long(rig: Rig, client: RigClient) -> None:
    key = prepare(client)
    ask(client, key)
    rig.pass_time(SETTINGS.outcome_wait_ms - 1)
    assert told(client) == []
    rig.pass_time(600)
    assert told(client) == [PREPARED]
    answer(rig, LogView(GENERATION, ENTRY, 5, Verdict.COMMIT))
    assert told(client) == [PREPARED], "once; and what the log said is done all the same"
    assert rig.bodies("q") == [b"in branch"]


def test_many_askers_are_one_question(rig: Rig, client: RigClient) -> None:
    key = prepare(client)
    other = rig.client()
    for number in range(5):
        ask(client, key, number=number)
    ask(other, key)
    assert len(rig.questions) == 1
    answer(rig, UNDECIDED)
    assert (told(client), told(other)) == ([PREPARED] * 5, [PREPARED])
    ask(client, key)
    answer(rig, LogView(GENERATION, ENTRY, 5, Verdict.COMMIT))
    assert told(client)[-1] == COMMITTED


def test_what_was_asked_in_an_earlier_reign_of_this_process_is_not_believed() -> None:
    """The branch has voted since, and a client asks again: both questions are the first of their reign."""
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.ok(SelectDtxCommand(0))
    key = prepare(client)
    ask(client, key)
    (old,) = rig.questions
    rig = Rig(predecessor=rig)
    client = rig.client()
    client.ok(SelectDtxCommand(0))
    client.ok(PrepareBranchCommand(0, branch_xid(GLOBAL_ID, 0, TAG).encode()))
    ask(client, key)
    rig.feed(DecisionHeard(SET, old.request, old.transaction, LogView(GENERATION)))
    assert told(client) == []
    assert len(rig.state.transactions.prepared()) == 1
    answer(rig, UNDECIDED)
    assert told(client) == [PREPARED]


def test_a_vote_that_overtakes_the_answer_voids_it(rig: Rig, client: RigClient) -> None:
    """As for the questions that come by themselves: the log was read before that vote, perhaps."""
    key = prepare(client)
    ask(client, key)
    client.ok(PrepareBranchCommand(0, branch_xid(GLOBAL_ID, 0, TAG).encode()))
    answer(rig, LogView(GENERATION))
    assert told(client) == [PREPARED]
    assert len(rig.state.transactions.prepared()) == 1


def test_an_earlier_question_neither_counts_nor_answers(rig: Rig, client: RigClient) -> None:
    key = prepare(client)
    for _ in range(SETTINGS.decision_ask_ms // 500 + 2):
        rig.pass_time(500)
    assert len(rig.questions) == 1, "by itself"
    ask(client, key)
    answer(rig, LogView(GENERATION))
    assert told(client) == [] and len(rig.state.transactions.prepared()) == 1
    answer(rig, LogView(GENERATION, ENTRY, 5, Verdict.COMMIT))
    assert told(client) == [COMMITTED]


def test_who_ends_it_meanwhile_is_whom_the_answer_tells_of(rig: Rig, client: RigClient) -> None:
    key = prepare(client)
    ask(client, key)
    client.ok(RollbackBranchCommand(0, branch_xid(GLOBAL_ID, 0, TAG).encode()))
    answer(rig, UNDECIDED)
    assert told(client) == [ROLLED_BACK]


def test_a_branch_of_another_transaction_manager_is_just_prepared(rig: Rig, client: RigClient) -> None:
    key = prepare(client, Xid(7, b"global", b"branch"))
    ask(client, key)
    assert (told(client), rig.questions) == ([PREPARED], [])


def test_no_more_branches_look_than_the_limit_allows() -> None:
    rig = Rig(PrimarySettings(decisions_asked_max=1))
    client = rig.client()
    client.declare("q")
    client.ok(SelectDtxCommand(0))
    first = prepare(client)
    second = prepare(client, branch_xid(GlobalId(bytes(GLOBAL_ID_BYTES)), 0, TAG))
    ask(client, first)
    ask(client, second)
    assert (told(client), len(rig.questions)) == ([PREPARED], 1)


def test_askers_count_as_questions_that_wait() -> None:
    rig = Rig(PrimarySettings(questions_waiting_max=3))
    client = rig.client()
    client.declare("q")
    client.ok(SelectDtxCommand(0))
    key = prepare(client)
    for number in range(3):
        ask(client, key, number=number)
    assert not client.heard_of(SessionEnded)
    ask(client, key, number=3)
    (ended,) = client.heard_of(SessionEnded)
    assert ended.code is ErrorCode.UNAVAILABLE


def test_an_asker_that_is_gone_is_not_missed(rig: Rig, client: RigClient) -> None:
    key = prepare(client)
    ask(client, key)
    client.lose_stream()
    answer(rig, LogView(GENERATION, ENTRY, 5, Verdict.COMMIT))
    client.attach()
    ask(client, key)
    assert told(client) == [COMMITTED]
