"""TX that a commit began: of most the log hears nothing before their own commit (DESIGN 4, T1, T5, T8)."""

import pytest

from lockstep.core.commands import CommitCommand, SelectDtxCommand, StartCommand
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, TransactionKey
from lockstep.core.records import Begin, RollbackReason
from lockstep.core.requests import DetachSession
from lockstep.core.server_messages import OutcomeState
from lockstep.core.xid import Xid
from services.primary.core.handing_on import fits
from tests.unit.services.primary.primary_rig import Rig, RigClient, publish
from tests.unit.services.primary.test_handing_on import copy_of, resume
from tests.unit.services.primary.test_transactions import outcome


@pytest.fixture
def client(rig: Rig) -> RigClient:
    client = rig.client(outlives_hand_over=True)
    client.declare("q")
    client.declare("r")
    return client


def names(client: RigClient, count: int) -> list[TransactionKey]:
    """TX that a commit begins."""
    key = client.begin()
    committed = client.ok(CommitCommand(0, key, 0, begins=count))
    return [(LogIndex(committed - count + number), client.rig.core.epoch) for number in range(count)]


def commit_whole(client: RigClient, key: TransactionKey, body: bytes, begins: int = 0) -> ErrorCode:
    last = publish("q", body, transaction=key, sequence=1)
    return client.do(CommitCommand(0, key, 1, begins, last)).code


def test_the_log_has_no_begin_of_them(rig: Rig, client: RigClient) -> None:
    one, two = names(client, 2)
    begins = sum(isinstance(record, Begin) for record in rig.records())
    assert commit_whole(client, two, b"1", begins=3) is ErrorCode.NONE
    assert commit_whole(client, one, b"2") is ErrorCode.NONE
    assert rig.bodies("q") == [b"1", b"2"]
    assert sum(isinstance(record, Begin) for record in rig.records()) == begins == 1
    assert len(rig.core.context.progress) == 3
    rig.check_log()


def test_one_is_open_for_whoever_asks_and_commits_all_the_same(rig: Rig, client: RigClient) -> None:
    (key,) = names(client, 1)
    assert outcome(rig.client(), key)[0] == outcome(client, key)[0] == OutcomeState.OPEN
    assert commit_whole(client, key, b"1") is ErrorCode.NONE
    assert outcome(client, key)[0] == OutcomeState.COMMITTED
    rig.check_log()


def test_one_that_is_fenced_commits_nothing(rig: Rig, client: RigClient) -> None:
    (key,) = names(client, 1)
    assert outcome(rig.client(), key, fence=True)[0] == OutcomeState.OPEN
    assert outcome(rig.client(), key, fence=True, of=client) == (
        OutcomeState.ROLLED_BACK,
        RollbackReason.FENCED,
    )
    assert commit_whole(client, key, b"1") is ErrorCode.ROLLED_BACK
    assert rig.bodies("q") == []
    rig.check_log()


def test_one_belongs_to_the_session_that_was_told(rig: Rig, client: RigClient) -> None:
    (key,) = names(client, 1)
    other = rig.client()
    assert commit_whole(other, key, b"x") is ErrorCode.LOCKED
    assert other.do(publish("q", b"x", transaction=key, sequence=1)).code is ErrorCode.LOCKED
    assert commit_whole(client, key, b"1") is ErrorCode.NONE
    assert rig.bodies("q") == [b"1"]
    rig.check_log()


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_operations_one_by_one(rig: Rig, client: RigClient, is_asked_for: bool) -> None:
    (key,) = names(client, 1)
    if is_asked_for:
        outcome(client, key)
    client.ok(publish("q", b"1", transaction=key, sequence=1))
    client.ok(publish("r", b"2", transaction=key, sequence=2))
    assert client.commit(key, 2).code is ErrorCode.NONE
    assert (rig.bodies("q"), rig.bodies("r")) == ([b"1"], [b"2"])
    rig.check_log()


def test_behind_an_operation_that_failed_nothing_commits(rig: Rig, client: RigClient) -> None:
    one, two = names(client, 2)
    assert client.do(publish("nowhere", b"1", transaction=one, sequence=1)).code is ErrorCode.NOT_FOUND
    assert client.do(publish("q", b"1", transaction=two, sequence=2)).code is ErrorCode.SEQUENCE_GAP
    assert client.commit(one, 0).code is client.commit(two, 0).code is ErrorCode.ROLLED_BACK
    assert len(rig.core.context.progress) == 0
    rig.check_log()


def test_a_last_publish_that_is_refused_rolls_one_back(rig: Rig, client: RigClient) -> None:
    (key,) = names(client, 1)
    last = publish("nowhere", b"1", transaction=key, sequence=1)
    assert client.do(CommitCommand(0, key, 1, last_publish=last)).code is ErrorCode.NOT_FOUND
    assert outcome(client, key)[0] == OutcomeState.ROLLED_BACK
    assert commit_whole(client, key, b"1") is ErrorCode.ROLLED_BACK
    rig.check_log()


def test_rolled_back_and_forgotten(rig: Rig, client: RigClient) -> None:
    one, _ = names(client, 2)
    client.rollback(one)
    assert outcome(client, one)[0] == OutcomeState.ROLLED_BACK
    client.say(DetachSession())
    assert len(rig.core.context.progress) == 0
    assert not rig.state.transactions.live
    rig.check_log()


def test_one_becomes_a_branch(rig: Rig, client: RigClient) -> None:
    (key,) = names(client, 1)
    client.ok(SelectDtxCommand(0))
    assert client.ok(StartCommand(0, Xid(7, b"global", b"one").encode(), transaction=key)) == key[0]
    rig.check_log()


def test_they_go_on_behind_a_hand_over(rig: Rig, client: RigClient) -> None:
    one, two = names(client, 2)
    handed = rig.hand_on()
    assert fits(handed, Epoch(handed.epoch + 1), copy_of(rig))
    successor = Rig(predecessor=rig, handed=handed)
    resume(successor, client)
    assert commit_whole(client, two, b"1", begins=1) is ErrorCode.NONE
    client.ok(publish("q", b"2", transaction=one, sequence=1))
    assert client.commit(one, 1).code is ErrorCode.NONE
    assert successor.bodies("q") == [b"1", b"2"]
    successor.check_log()


def test_a_command_behind_them_counts_their_indexes(rig: Rig, client: RigClient) -> None:
    names(client, 3)
    before = rig.core.log_end
    assert client.declare("s") == before + 1
    rig.check_log()
