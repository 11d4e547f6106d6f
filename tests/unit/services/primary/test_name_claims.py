"""Names of queues and exchanges in the cluster's directory: claimed before they are declared, given back when they are gone."""

from lockstep.core.commands import (
    DeclareExchangeCommand,
    DeclareQueueCommand,
    DeleteExchangeCommand,
    DeleteQueueCommand,
    QueueOptions,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.inputs import NameClaimed, Verdict
from lockstep.core.requests import (
    Describe,
    DetachSession,
)
from lockstep.core.server_messages import (
    PushedBack,
    SessionEnded,
)
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import OTHER_SET, SET, Rig, publish

QUEUE = DeclareQueueCommand(0, "q", QueueOptions())
NAME = ("queue", "q")


def test_a_name_of_another_set_is_refused_by_that_sets_name() -> None:
    rig = Rig()
    rig.directory[NAME] = OTHER_SET
    answered = rig.client().do(QUEUE)
    assert answered.code is ErrorCode.ALREADY_EXISTS
    assert "'q'" in answered.message and OTHER_SET in answered.message
    assert rig.directory[NAME] == OTHER_SET


def test_names_of_queues_and_exchanges_are_given_back_with_their_deletion() -> None:
    rig = Rig()
    client = rig.client()
    client.ok(QUEUE)
    client.ok(DeclareExchangeCommand(0, "x", "topic", True))
    assert rig.directory == {NAME: SET, ("exchange", "x"): SET}
    client.ok(DeleteQueueCommand(0, "q"))
    client.ok(DeleteExchangeCommand(0, "x"))
    assert rig.directory == {}


def test_a_name_is_given_back_only_when_the_deletion_is_committed() -> None:
    rig = Rig()
    client = rig.client()
    client.ok(QUEUE)
    rig.holds_store = True
    client.command(DeleteQueueCommand(0, "q"))
    assert NAME in rig.directory
    rig.acknowledge()
    assert NAME not in rig.directory


def test_names_of_a_sessions_own_queues_are_given_back_with_it() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("reply", is_exclusive=True)
    client.declare("auto", is_auto_delete=True)
    client.consume("auto")
    client.say(DetachSession())
    assert rig.directory == {}


def test_names_that_a_restart_dropped_are_given_back() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q", is_durable=False)
    client.declare("durable")
    client.ok(DeclareExchangeCommand(0, "x", "topic", False))
    rig = Rig(predecessor=rig, is_restarted=True)
    assert list(rig.directory) == [("queue", "durable")]


def test_a_name_that_was_declared_again_meanwhile_stays() -> None:
    rig = Rig()
    client = rig.client()
    client.ok(QUEUE)
    rig.holds_store = rig.holds_claims = True
    client.command(DeleteQueueCommand(0, "q"))
    client.command(QUEUE)
    rig.acknowledge()
    assert NAME in rig.directory, "it is being claimed"
    rig.claimed()
    rig.acknowledge()
    assert NAME in rig.directory and "q" in rig.state.queues.by_name


def test_a_claim_whose_client_is_gone_is_given_back() -> None:
    rig = Rig(holds_claims=True)
    client = rig.client()
    client.command(QUEUE)
    client.lose_stream()
    rig.claimed()
    assert rig.directory == {} and not rig.state.queues.by_name


def test_two_claims_of_one_name_make_one_queue() -> None:
    rig = Rig(holds_claims=True)
    first, second = rig.client(), rig.client()
    first.command(QUEUE)
    second.command(QUEUE)
    first.lose_stream()
    rig.claimed()
    assert NAME in rig.directory
    rig.claimed()
    assert second.answers[1].code is ErrorCode.NONE
    assert NAME in rig.directory


def test_what_cannot_be_declared_claims_nothing() -> None:
    rig = Rig(holds_claims=True)
    client = rig.client()
    client.do(DeclareQueueCommand(0, "q", QueueOptions(length_max=-1)))
    client.do(DeclareExchangeCommand(0, "x", "no kind", True))
    assert not rig.claims


def test_a_claim_in_doubt_is_made_again() -> None:
    rig = Rig(holds_claims=True)
    client = rig.client()
    client.command(QUEUE)
    rig.claimed(Verdict.IN_DOUBT)
    assert len(rig.claims) == 1
    rig.claimed()
    assert client.answers[1].code is ErrorCode.NONE


def test_what_comes_behind_a_claim_waits_for_it_in_order() -> None:
    rig = Rig(holds_claims=True)
    client = rig.client()
    client.command(QUEUE)
    client.command(publish("q", b"1"))
    client.consume("q")
    client.command(publish("q", b"2"))
    assert not client.answers
    rig.claimed()
    assert list(client.answers) == [1, 2, 3]
    assert client.bodies("q") == [b"1", b"2"]


def test_what_waits_for_a_claim_is_limited() -> None:
    rig = Rig(PrimarySettings(command_bytes_max=1000), holds_claims=True)
    client = rig.client()
    client.command(QUEUE)
    for body in (bytes(800), bytes(900), b"small"):
        client.command(publish("q", body))
    (pushed,) = client.heard_of(PushedBack)
    assert (pushed.number, pushed.code) == (3, ErrorCode.UNAVAILABLE)
    rig.claimed()
    assert list(client.answers) == [1, 2]
    client.say(client.sent[3], client.sent[4])
    assert rig.bodies("q") == [bytes(800), bytes(900), b"small"]
    rig.check_log()


def test_a_flood_of_requests_behind_a_claim_ends_its_stream() -> None:
    rig = Rig(PrimarySettings(backlog_messages_max=3), holds_claims=True)
    client = rig.client()
    client.command(QUEUE)
    client.say(*[Describe(number) for number in range(4)])
    assert client.heard_of(SessionEnded)[0].code is ErrorCode.UNAVAILABLE
    assert client.is_closed
    assert [note.limit for note in rig.notes if note.limit] == ["backlog_messages_max"]


def test_a_name_that_a_dead_primary_left_in_the_directory_is_given_back() -> None:
    rig = Rig()
    rig.client().ok(QUEUE)
    rig.directory["queue", "deleted"] = SET
    rig.directory["exchange", "claimed"] = SET
    rig.directory["queue", "elsewhere"] = OTHER_SET
    rig = Rig(predecessor=rig)
    rig.pass_time(50)
    assert len(rig.directory) == 4, "one look may have met a release or a declaration on its way"
    rig.pass_time(30_000)
    assert rig.directory == {NAME: SET, ("queue", "elsewhere"): OTHER_SET}


def test_a_name_that_is_being_claimed_stays_in_the_directory() -> None:
    rig = Rig(holds_claims=True)
    client = rig.client()
    client.command(QUEUE)
    rig.directory[NAME] = SET
    rig.pass_time(50)
    rig.pass_time(30_000)
    assert NAME in rig.directory
    rig.claimed()
    assert client.answers[1].code is ErrorCode.NONE


def test_a_name_that_the_directory_lacks_is_claimed_again() -> None:
    rig = Rig()
    client = rig.client()
    client.ok(QUEUE)
    client.ok(DeclareExchangeCommand(0, "x", "topic", True))
    rig.directory.clear()
    rig.directory["exchange", "x"] = OTHER_SET
    rig.pass_time(50)
    rig.pass_time(30_000)
    assert rig.directory == {NAME: SET, ("exchange", "x"): OTHER_SET}
    (note,) = [note for note in rig.notes if note.event == "name in two sets"]
    assert "'x'" in note.details and OTHER_SET in note.details


def test_what_one_comparison_puts_right_is_limited() -> None:
    rig = Rig(PrimarySettings(names_batch_max=2))
    rig.client().ok(QUEUE)
    rig.directory.update({("queue", f"leaked-{number}"): SET for number in range(3)})
    rig.pass_time(50)
    rig.pass_time(30_000)
    assert len(rig.directory) == 2
    rig.pass_time(30_000)
    assert rig.directory == {NAME: SET}


def test_an_answer_to_an_earlier_reign_is_nobodys() -> None:
    """Its number could otherwise be that of another name's claim."""
    rig = Rig(holds_claims=True)
    rig.client().command(QUEUE)
    late = rig.claims.popleft()
    rig = Rig(predecessor=rig, holds_claims=True)
    rig.client().command(DeclareQueueCommand(0, "other", QueueOptions()))
    rig.feed(NameClaimed(SET, late.request, Verdict.DONE, SET))
    assert not rig.state.queues.by_name
    assert rig.claims[0].request != late.request
