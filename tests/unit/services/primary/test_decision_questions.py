"""Whose turn it is to look for its decision (DESIGN T4): every prepared branch has its turn, and none costs anything before."""

from collections import Counter

from lockstep.core.branch_names import GLOBAL_ID_BYTES, GlobalId, branch_xid, generation_tag
from lockstep.core.commands import (
    CommitBranchCommand,
    PrepareBranchCommand,
    SelectDtxCommand,
)
from lockstep.core.decision_log import LogView
from lockstep.core.effects import AskDecision
from lockstep.core.ids import Epoch, LogIndex, TransactionKey
from lockstep.core.inputs import DecisionHeard, Tick
from lockstep.core.xid import Xid
from services.primary.core.decision_questions import DecisionQuestions
from services.primary.core.settings import PrimarySettings
from tests.counted_work import CountedCalls
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient

TAG = generation_tag("a1b2c3d4-0000")
SETTINGS = PrimarySettings()
LOOK_MS = 500


def key_of(number: int) -> TransactionKey:
    return LogIndex(number), Epoch(1)


def global_id(number: int) -> GlobalId:
    return GlobalId(number.to_bytes(GLOBAL_ID_BYTES, "big"))


def prepare(client: RigClient, xid: Xid) -> None:
    name = xid.encode()
    client.branch(name)
    client.ok(PrepareBranchCommand(0, name))


def prepare_many(client: RigClient, count: int) -> None:
    client.ok(SelectDtxCommand(0))
    for number in range(count):
        prepare(client, branch_xid(global_id(number), 0, TAG))


def test_every_branch_has_its_turn_however_many_wait() -> None:
    """More than can ask within the time after which the first would ask again; the log says to all that they have to wait."""
    questions = DecisionQuestions(Epoch(1), 5_000, 64)
    count = 1_000
    for number in range(count):
        questions.prepared(key_of(number), global_id(number), 0)
    asked: Counter[TransactionKey] = Counter()
    for now_ms in range(0, 60_000, LOOK_MS):
        for request, key, _ in questions.ask_due(now_ms):
            asked[key] += 1
            assert questions.answered(key, request)
    assert len(asked) == count
    assert max(asked.values()) <= 2 * min(asked.values()), "they take turns"


def test_a_branch_that_only_an_operator_can_end_asks_less_often() -> None:
    questions = DecisionQuestions(Epoch(1), 5_000, 64)
    for number in range(2):
        questions.prepared(key_of(number), global_id(number), 0)
    assert questions.give_up(key_of(0)) and not questions.give_up(key_of(0))
    asked = Counter(key for ms in range(0, 121_000, LOOK_MS) for _, key, _ in questions.ask_due(ms))
    assert asked == {key_of(0): 2, key_of(1): 24}


def test_who_asks_at_once_has_its_next_turn_later_and_who_has_ended_has_none() -> None:
    questions = DecisionQuestions(Epoch(1), 5_000, 64)
    for number in range(3):
        questions.prepared(key_of(number), global_id(number), 0)
    questions.ask_now(key_of(0), 3_000)
    questions.ended(key_of(1))
    questions.ended(key_of(7))
    assert [key for _, key, _ in questions.ask_due(5_000)] == [key_of(2)]
    assert [key for _, key, _ in questions.ask_due(8_000)] == [key_of(0)]
    assert key_of(1) not in questions


def calls_of_a_look(rig: Rig) -> int:
    """Made while the primary looks at its prepared branches and none is due."""
    rig.boottime_ms += LOOK_MS
    rig.wall_ms += LOOK_MS
    with CountedCalls() as calls:
        effects = rig.core.handle(Tick(SET), rig.now)
    assert not any(isinstance(effect, AskDecision) for effect in effects)
    return calls.total


def test_a_look_takes_no_more_steps_for_many_prepared_branches_than_for_few() -> None:
    steps = []
    for count in (1, 200):
        rig = Rig()
        prepare_many(rig.client(), count)
        rig.pass_time(LOOK_MS)
        steps.append(calls_of_a_look(rig))
    assert steps[0] == steps[1]


def test_branches_that_a_successor_finds_prepared_ask_too_and_those_of_other_managers_do_not() -> None:
    rig = Rig()
    client = rig.client()
    prepare_many(client, 3)
    prepare(client, Xid(7, b"global", b"branch"))
    client.ok(CommitBranchCommand(0, branch_xid(global_id(1), 0, TAG).encode()))
    rig = Rig(predecessor=rig)
    rig.pass_time(SETTINGS.decision_ask_ms)
    assert [asked.global_id for asked in rig.questions] == [global_id(0), global_id(2)]
    for asked in list(rig.questions):
        rig.feed(DecisionHeard(SET, asked.request, asked.transaction, LogView("a1b2c3d4-0000")))
    assert [buffer.xid for buffer in rig.state.transactions.prepared()] == [
        Xid(7, b"global", b"branch").encode()
    ]
