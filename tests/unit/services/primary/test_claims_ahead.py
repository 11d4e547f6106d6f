"""Names of declarations that wait behind another command: asked for together, and given back where nobody takes them."""

from lockstep.core.commands import (
    DeclareExchangeCommand,
    DeclareQueueCommand,
    DeleteQueueCommand,
    QueueOptions,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.inputs import Verdict
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import OTHER_SET, SET, Rig, RigClient


def queue(name: str, **options: object) -> DeclareQueueCommand:
    return DeclareQueueCommand(0, name, QueueOptions(**options))  # type: ignore[arg-type]


def burst(rig: Rig, *names: str) -> RigClient:
    """A client that declares queues of these names, one behind the other."""
    client = rig.client()
    for name in names:
        client.command(queue(name))
    return client


def asked(rig: Rig) -> list[str]:
    return [claim.name for claim in rig.claims]


def test_names_of_a_burst_are_asked_for_together_and_declared_in_order() -> None:
    rig = Rig(holds_claims=True)
    client = burst(rig, "a", "b", "c")
    client.command(DeclareExchangeCommand(0, "x", "topic", True))
    assert asked(rig) == ["a", "b", "c", "x"]
    rig.claims.rotate(-1)
    rig.claimed()
    assert not client.answers, "the first is not claimed yet"
    rig.claims.rotate(1)
    rig.claimed()
    assert list(client.answers) == [1, 2]
    rig.claimed()
    rig.claimed()
    assert [answer.code for answer in client.answers.values()] == [ErrorCode.NONE] * 4
    assert sorted(name for _, name in rig.directory) == ["a", "b", "c", "x"]
    rig.check_log()


def test_no_more_names_are_asked_for_ahead_than_go_together() -> None:
    rig = Rig(PrimarySettings(claims_ahead_max=2), holds_claims=True)
    client = burst(rig, "a", "b", "c", "d", "e")
    assert asked(rig) == ["a", "b", "c"]
    while rig.claims:
        rig.claimed()
    assert [answer.code for answer in client.answers.values()] == [ErrorCode.NONE] * 5


def test_a_name_that_was_claimed_ahead_stays_until_its_command_is_done() -> None:
    """A look at the directory between meets a name that no queue has."""
    rig = Rig(holds_claims=True)
    client = burst(rig, "a", "b")
    rig.claims.rotate(-1)
    rig.claimed()
    rig.pass_time(50)
    rig.pass_time(30_000)
    assert ("queue", "b") in rig.directory
    rig.claimed()
    assert [answer.code for answer in client.answers.values()] == [ErrorCode.NONE] * 2
    assert rig.directory == {("queue", "a"): SET, ("queue", "b"): SET}


def test_names_that_were_claimed_ahead_go_back_when_their_client_is_gone() -> None:
    rig = Rig(holds_claims=True)
    client = burst(rig, "a", "b", "c")
    rig.claims.rotate(-1)
    rig.claimed()
    client.lose_stream()
    assert ("queue", "b") not in rig.directory
    while rig.claims:
        rig.claimed()
    assert rig.directory == {} and not rig.state.queues.by_name


def test_a_client_that_comes_back_finds_its_declarations_still_to_be_done() -> None:
    rig = Rig(holds_claims=True)
    client = burst(rig, "a", "b")
    client.lose_stream()
    client.resume()
    client.say(client.sent[1], client.sent[2])
    while rig.claims:
        rig.claimed()
    assert [answer.code for answer in client.answers.values()] == [ErrorCode.NONE] * 2
    assert sorted(rig.directory) == [("queue", "a"), ("queue", "b")]


def test_a_name_of_another_set_is_refused_in_its_turn() -> None:
    rig = Rig(holds_claims=True)
    rig.directory["queue", "b"] = OTHER_SET
    client = burst(rig, "a", "b", "c")
    while rig.claims:
        rig.claimed()
    codes = [answer.code for answer in client.answers.values()]
    assert codes == [ErrorCode.NONE, ErrorCode.ALREADY_EXISTS, ErrorCode.NONE]
    assert rig.directory["queue", "b"] == OTHER_SET


def test_a_claim_ahead_in_doubt_is_made_again_in_its_turn() -> None:
    rig = Rig(holds_claims=True)
    client = burst(rig, "a", "b")
    rig.claims.rotate(-1)
    rig.claimed(Verdict.IN_DOUBT)
    rig.claimed()
    assert asked(rig) == ["b"]
    rig.claimed()
    assert [answer.code for answer in client.answers.values()] == [ErrorCode.NONE] * 2


def test_a_name_that_somebody_else_declared_meanwhile_is_nobodys_twice() -> None:
    rig = Rig(holds_claims=True)
    client = burst(rig, "a", "b")
    other = rig.client()
    other.command(queue("b"))
    rig.claims.rotate(-1)
    rig.claimed()
    rig.claimed()
    assert other.answers[1].code is ErrorCode.NONE
    rig.claimed()
    assert [answer.code for answer in client.answers.values()] == [ErrorCode.NONE] * 2
    rig.holds_claims = False
    other.ok(DeleteQueueCommand(0, "b"))
    assert rig.directory == {("queue", "a"): SET}


def test_what_was_claimed_for_a_declaration_that_nobody_needed_goes_back_with_the_last_message() -> None:
    """It was there when its turn came, and is deleted by the next command: the name is free."""
    rig = Rig(holds_claims=True)
    client = burst(rig, "a", "b")
    other = rig.client()
    other.command(queue("b"))
    rig.claims.rotate(1)
    rig.claimed()
    assert other.answers[1].code is ErrorCode.NONE
    client.command(DeleteQueueCommand(0, "b"))
    rig.holds_claims = False
    while rig.claims:
        rig.claimed()
    assert [answer.code for answer in client.answers.values()] == [ErrorCode.NONE] * 3
    assert rig.directory == {("queue", "a"): SET}
