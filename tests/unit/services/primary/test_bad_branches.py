"""Bad input to the resource manager: unknown and malformed xids, verbs in wrong states, time-outs over the maximum. Each is a
typed error that names the verb, the branch and its state, and changes nothing.
"""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from lockstep.core.commands import (
    AnyCommand,
    CommitBranchCommand,
    EndCommand,
    EndHeuristicallyCommand,
    ForgetBranchCommand,
    PrepareBranchCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
    SetTimeoutCommand,
    StartCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.requests import GetTimeout, Recover
from lockstep.core.server_messages import Recovered, TimeoutAnswer
from lockstep.core.xid import Xid
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import Rig, RigClient

XID = Xid(7, b"global", b"branch")
NAME = XID.encode()
OTHER = Xid(7, b"global", b"other").encode()
N, S, I, C = (  # noqa: E741
    ErrorCode.NOT_FOUND,
    ErrorCode.ILLEGAL_STATE,
    ErrorCode.INVALID_ARGUMENT,
    ErrorCode.COMMAND_INVALID,
)
VERBS: dict[str, Callable[[bytes], AnyCommand]] = {
    "start": lambda name: StartCommand(0, name),
    "join": lambda name: StartCommand(0, name, True),
    "resume": lambda name: StartCommand(0, name, False, True),
    "end": lambda name: EndCommand(0, name, 0),
    "suspend": lambda name: EndCommand(0, name, 0, False, True),
    "prepare": lambda name: PrepareBranchCommand(0, name),
    "commit": lambda name: CommitBranchCommand(0, name),
    "commit-one-phase": lambda name: CommitBranchCommand(0, name, True),
    "rollback": lambda name: RollbackBranchCommand(0, name),
    "forget": lambda name: ForgetBranchCommand(0, name),
    "set-timeout": lambda name: SetTimeoutCommand(0, name, 1_000),
    "end-heuristically": lambda name: EndHeuristicallyCommand(0, name, True),
}
MALFORMED = {
    "empty": b"",
    "too short": bytes(4),
    "no global id": bytes(5),
    "half a global id": b"\0\0\0\0\x05g",
    "global id of 65": bytes(4) + b"\x41" + b"g" * 65,
    "branch id of 65": b"\0\0\0\0\x01g" + b"b" * 65,
    "negative format id": b"\x80\0\0\0\x01g",
    "long": b"\xff" * 300,
}
UNKNOWN = {"join": N, "resume": C, "end": S, "suspend": S}
"""All but start; the others: 404."""
ACTIVE = {
    "start": C,
    "join": C,
    "resume": C,
    "prepare": S,
    "commit": S,
    "commit-one-phase": S,
    "rollback": S,
    "forget": S,
    "end-heuristically": S,
}
PREPARED = {
    "start": ErrorCode.NOT_ALLOWED,
    "join": C,
    "resume": C,
    "end": S,
    "suspend": S,
    "commit-one-phase": S,
    "forget": S,
}
HEURISTIC = {
    "start": ErrorCode.NOT_ALLOWED,
    "join": C,
    "resume": C,
    "end": S,
    "suspend": S,
    "prepare": S,
    "set-timeout": S,
    "end-heuristically": S,
}


def select(rig: Rig) -> RigClient:
    client = rig.client()
    client.ok(SelectDtxCommand(0))
    return client


def bring(client: RigClient, state: str) -> None:
    """The branch into a state."""
    client.ok(VERBS["start"](NAME))
    if state == "active":
        return
    client.ok(VERBS["end"](NAME))
    client.ok(VERBS["prepare"](NAME))
    if state == "heuristically_committed":
        client.ok(VERBS["end-heuristically"](NAME))


@pytest.mark.parametrize("name", list(MALFORMED.values()), ids=list(MALFORMED))
@pytest.mark.parametrize("verb", VERBS)
def test_a_malformed_xid_is_refused_by_every_verb(verb: str, name: bytes) -> None:
    rig = Rig()
    client = select(rig)
    answered = client.do(VERBS[verb](name))
    assert answered.code is I and len(answered.message) < 500, answered
    client.say(GetTimeout(1, name), Recover(2, name, 10))
    assert [answer.code for answer in client.heard_of(TimeoutAnswer)] == [I]
    assert client.heard_of(Recovered)[0].branches == ()
    rig.check_log()


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "start"])
def test_an_unknown_xid_is_refused_by_name(verb: str) -> None:
    rig = Rig()
    answered = select(rig).do(VERBS[verb](NAME))
    assert answered.code is UNKNOWN.get(verb, N), answered
    assert str(XID) in answered.message and "unknown" in answered.message
    rig.check_log()


@pytest.mark.parametrize(
    ("state", "verb", "code"),
    [
        (state, verb, code)
        for state, codes in (
            ("active", ACTIVE),
            ("prepared", PREPARED),
            ("heuristically_committed", HEURISTIC),
        )
        for verb, code in codes.items()
    ],
)
def test_a_verb_in_a_wrong_state_is_refused_and_changes_nothing(
    state: str, verb: str, code: ErrorCode
) -> None:
    rig = Rig()
    client = select(rig)
    bring(client, state)
    answered = client.do(VERBS[verb](NAME))
    assert answered.code is code, answered
    assert str(XID) in answered.message and state in answered.message
    found = rig.state.transactions.find_branch(NAME)
    if state == "heuristically_committed":
        assert found is None and client.ok(VERBS["forget"](NAME)) == 0
    else:
        assert found is not None and found.branch_state.name.lower() == state
    rig.check_log()


@pytest.mark.parametrize("timeout_ms", [-1, 3_600_001, 1 << 63, 1 << 70])
def test_a_time_out_out_of_range_is_refused_and_the_old_one_stays(timeout_ms: int) -> None:
    rig = Rig(PrimarySettings(branch_timeout_ms=5_000))
    client = select(rig)
    bring(client, "active")
    answered = client.do(SetTimeoutCommand(0, NAME, timeout_ms))
    assert answered.code is I and str(XID) in answered.message and "3600000" in answered.message
    client.say(GetTimeout(1, NAME), GetTimeout(2, OTHER))
    first, second = client.heard_of(TimeoutAnswer)
    assert (first.code, first.timeout_ms, second.code) == (ErrorCode.NONE, 5_000, N)
    assert client.do(SetTimeoutCommand(0, NAME, 3_600_000)).code is ErrorCode.NONE
    rig.check_log()


@pytest.mark.parametrize("limit", [-1, 0, 1, 1 << 70])
def test_recover_takes_any_limit(limit: int) -> None:
    rig = Rig()
    client = select(rig)
    bring(client, "prepared")
    client.say(Recover(1, b"", limit))
    (recovered,) = client.heard_of(Recovered)
    assert [branch.xid for branch in recovered.branches] == [NAME]


@pytest.mark.parametrize(
    "end", [("prepare", "commit"), ("prepare", "rollback"), ("commit-one-phase",), ("rollback",)]
)
def test_a_branch_that_has_ended_is_unknown_to_who_would_join_it(end: tuple[str, ...]) -> None:
    rig = Rig()
    client = select(rig)
    for verb in ("start", "end", *end):
        client.ok(VERBS[verb](NAME))
    assert client.do(VERBS["join"](NAME)).code is N
    rig.check_log()


def test_the_same_verb_twice_at_once_is_done_once() -> None:
    rig = Rig(holds_store=True)
    client = rig.client()
    rig.acknowledge()
    for command in (SelectDtxCommand(0), VERBS["start"](NAME), VERBS["end"](NAME), VERBS["prepare"](NAME)):
        client.command(command)
    first, second = client.command(VERBS["commit"](NAME)), client.command(VERBS["commit"](NAME))
    rig.acknowledge()
    assert (client.answers[first].code, client.answers[second].code) == (ErrorCode.NONE, N)
    client.say(replace(VERBS["commit"](NAME), number=first))
    assert client.answers[first].code is ErrorCode.NONE
    rig.check_log()
