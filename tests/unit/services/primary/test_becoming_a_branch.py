"""An open TX that becomes a branch: what it has stays, and from then on a branch's own verbs end it (DESIGN 4)."""

import pytest

from lockstep.core.commands import (
    CommitBranchCommand,
    EndCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
    StartCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import TransactionKey
from lockstep.core.tx_buffer import DtxBuffer
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from tests.unit.services.primary.primary_rig import Rig, RigClient, publish

XID = Xid(7, b"global", b"one").encode()


@pytest.fixture
def client(rig: Rig) -> RigClient:
    client = rig.client()
    client.declare("q")
    client.publish("q", b"taken")
    client.ok(SelectDtxCommand(0, has_many_branches=True))
    return client


def begun(client: RigClient) -> TransactionKey:
    """A TX that takes one message and publishes another."""
    if not client.positions("q"):
        client.consume("q", credit=1)
    key = client.begin()
    client.settle("q", transaction=key, sequence=1)
    client.ok(publish("q", b"before", transaction=key, sequence=2))
    return key


def test_its_operations_go_on_with_their_numbers_and_commit_with_the_branch(
    rig: Rig, client: RigClient
) -> None:
    key = begun(client)
    assert client.ok(StartCommand(0, XID, transaction=key)) == key[0]
    client.ok(publish("q", b"behind", transaction=key, sequence=3))
    assert client.ok(EndCommand(0, XID, 3)) == XaStatus.OK
    assert client.ok(PrepareBranchCommand(0, XID)) == XaStatus.OK
    assert rig.bodies("q") == [b"taken"]
    assert client.ok(CommitBranchCommand(0, XID)) == XaStatus.OK
    assert rig.bodies("q") == [b"before", b"behind"]
    rig.check_log()


def test_a_rollback_gives_back_what_was_taken_before(rig: Rig, client: RigClient) -> None:
    key = begun(client)
    client.ok(StartCommand(0, XID, transaction=key))
    client.ok(EndCommand(0, XID, 2, is_failed=True))
    assert client.ok(RollbackBranchCommand(0, XID)) == XaStatus.OK
    assert rig.bodies("q") == [b"taken"]
    rig.check_log()


def test_an_operation_that_got_lost_before_is_missed_at_the_end(rig: Rig, client: RigClient) -> None:
    key = begun(client)
    client.ok(StartCommand(0, XID, transaction=key))
    assert client.ok(EndCommand(0, XID, 3)) == XaStatus.RBROLLBACK


def test_the_verbs_of_a_tx_do_not_end_it_any_more(rig: Rig, client: RigClient) -> None:
    key = begun(client)
    client.ok(StartCommand(0, XID, transaction=key))
    for answered in (client.commit(key, 2), client.rollback(key)):
        assert (answered.code, "branch" in answered.message) == (ErrorCode.ILLEGAL_STATE, True)


def test_a_branch_has_a_timeout_even_if_the_tx_had_none(rig: Rig, client: RigClient) -> None:
    for timeout_ms, expected in ((0, rig.core.context.settings.branch_timeout_ms), (900, 900)):
        key = client.begin(timeout_ms)
        xid = Xid(7, b"global", b"%d" % timeout_ms).encode()
        client.ok(StartCommand(0, xid, transaction=key))
        branch = rig.core.context.state.transactions.get(key)
        assert isinstance(branch, DtxBuffer) and branch.timeout_ms == expected
        assert rig.core.context.progress[key].ends_ms == branch.started_ms - rig.now.wall_ms + (
            rig.now.boottime_ms + expected
        )


def test_what_is_no_open_tx_of_the_session_does_not_become_one(rig: Rig, client: RigClient) -> None:
    key, other = begun(client), rig.client()
    other.ok(SelectDtxCommand(0))
    cases = [
        (other.do(StartCommand(0, XID, transaction=key)), ErrorCode.LOCKED),
        (
            client.do(StartCommand(0, XID, transaction=(key[0] + 100, key[1]))),  # type: ignore[arg-type]
            ErrorCode.UNKNOWN_TRANSACTION,
        ),
        (client.do(StartCommand(0, XID, is_join=True, transaction=key)), ErrorCode.COMMAND_INVALID),
    ]
    client.ok(StartCommand(0, XID, transaction=key))
    second = client.begin()
    cases += [
        (client.do(StartCommand(0, XID, transaction=second)), ErrorCode.NOT_ALLOWED),
        (
            client.do(StartCommand(0, Xid(7, b"x", b"").encode(), transaction=key)),
            ErrorCode.ILLEGAL_STATE,
        ),
    ]
    # As any operation that fails in it, this one has made it rollback-only.
    assert client.commit(second, 0).code is ErrorCode.ROLLED_BACK
    cases.append(
        (
            client.do(StartCommand(0, Xid(7, b"x", b"").encode(), transaction=second)),
            ErrorCode.ROLLED_BACK,
        )
    )
    assert [(answered.code, answered.message) for answered, _ in cases] == [
        (code, answered.message) for answered, code in cases
    ]
    rig.check_log()
