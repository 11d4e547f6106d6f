"""Selectors that take long: nobody else waits for them, and what takes too long is refused, or taken for no match, and told."""

import pytest

from lockstep.core.amqp.selector_row import EVALUATION_STEPS_MAX
from lockstep.core.apply_messages import MOVED_AT_ONCE
from lockstep.core.commands import (
    BindCommand,
    CommitCommand,
    DeleteQueueCommand,
    Disposition,
    OutgoingMessage,
    PublishCommand,
    SettleCommand,
)
from lockstep.core.effects import Note
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import LogIndex
from lockstep.core.inputs import Tick
from lockstep.core.requests import Heartbeat
from lockstep.core.routing import SELECTOR_ARGUMENT
from lockstep.core.server_messages import ConsumerOpened, HeartbeatAnswered
from services.primary.core.dead_letter_routes import QUESTION_AS_TARGETS
from services.primary.core.selecting import (
    DEAD_LETTER_STEPS_MAX,
    DEAD_LETTERS_COSTLY_MAX,
    PUBLISH_STEPS_MAX,
    SHARE_STEPS,
)
from services.primary.core.settings import PrimarySettings
from tests.kept_properties import kept_properties
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish, wake

BOMB = " OR ".join(["p LIKE '%" + "a_" * 60 + "b%'"] * 28)
POWDER = kept_properties(p="ab" * 120)
"""With the selector above it is a bomb."""
DEAR = " OR ".join(f"p LIKE '%{number}_x_%'" for number in range(100))
"""A selector whose evaluation takes some thousand steps."""
LONG = kept_properties(p="ab" * 120)
MANY = 200
TOGETHER = PublishCommand(0, "x", "k", tuple(OutgoingMessage(LONG, b"%d" % n) for n in range(MANY)))


@pytest.fixture
def client(rig: Rig) -> RigClient:
    client = rig.client()
    client.declare("q")
    client.declare("all")
    client.exchange("x")
    return client


def bind(queue: str, selector: str) -> BindCommand:
    return BindCommand(0, "x", queue, "k", ((SELECTOR_ARGUMENT, selector),))


def told(rig: Rig) -> list[str]:
    return [note.details for note in rig.notes if note.event == "selector too costly"]


# --- bindings ---


def test_a_publish_that_would_take_too_long_is_refused_for_good(rig: Rig, client: RigClient) -> None:
    client.ok(bind("q", BOMB))
    rig.pass_time(50)
    number = client.command(publish("k", b"1", exchange="x", properties=POWDER))
    answered = client.answers[number]
    assert answered.code is ErrorCode.TOO_LARGE and str(EVALUATION_STEPS_MAX) in answered.message
    client.resume()
    client.say(client.sent[number])
    assert client.answers[number] == answered, "a number is answered once"
    rig.pass_time(50)
    assert client.ok(publish("k", b"2", exchange="x", properties=kept_properties(p="ab"))) == 0
    rig.check_log()


def test_one_whose_transaction_publishes_too_costly_a_message_can_only_roll_back(
    rig: Rig, client: RigClient
) -> None:
    client.ok(bind("q", BOMB))
    rig.pass_time(50)
    transaction = client.begin()
    costly = publish("k", b"1", exchange="x", properties=POWDER, transaction=transaction, sequence=1)
    assert client.do(costly).code is ErrorCode.TOO_LARGE
    assert client.do(CommitCommand(0, transaction, 0)).code is ErrorCode.ROLLED_BACK


def test_a_long_publish_goes_on_in_turns_between_which_others_are_heard(rig: Rig, client: RigClient) -> None:
    client.ok(bind("q", DEAR))
    client.ok(BindCommand(0, "x", "all", "k"))
    other = rig.client()
    number = client.command(TOGETHER)
    assert rig.wakes, "it asks for its next turn by itself"
    turns = 0
    while wake(rig):
        assert number not in client.answers and rig.bodies("all") == []
        turns += 1
        client.say(Heartbeat())
        other.publish("q", b"other")
    assert turns > 10 and client.answers[number].code is ErrorCode.NONE
    assert len(client.heard_of(HeartbeatAnswered)) == turns
    assert rig.bodies("all") == [b"%d" % n for n in range(MANY)]
    assert rig.bodies("q") == [b"other"] * turns
    rig.check_log()


def test_what_was_said_behind_a_long_publish_is_done_behind_it(rig: Rig, client: RigClient) -> None:
    client.ok(bind("all", f"{DEAR} OR p LIKE 'a%'"))
    first = client.command(TOGETHER)
    second = client.command(publish("all", b"behind"))
    assert first not in client.answers and second not in client.answers
    while wake(rig):
        pass
    assert rig.bodies("all") == [*(b"%d" % n for n in range(MANY)), b"behind"]
    rig.check_log()


def test_what_is_unbound_or_deleted_meanwhile_gets_nothing(rig: Rig, client: RigClient) -> None:
    client.ok(bind("q", f"{DEAR} OR p LIKE 'a%'"))
    client.ok(bind("all", f"p LIKE 'a%' OR {DEAR}"))
    number = client.command(TOGETHER)
    wake(rig)
    other = rig.client()
    other.ok(DeleteQueueCommand(0, "q"))
    while wake(rig):
        pass
    assert client.answers[number].value == MANY and len(rig.bodies("all")) == MANY
    rig.check_log()


def test_one_whose_client_comes_back_is_done_once(rig: Rig, client: RigClient) -> None:
    client.ok(bind("all", f"{DEAR} OR p LIKE 'a%'"))
    number = client.command(TOGETHER)
    wake(rig)
    client.resume()
    assert not wake(rig), "nobody waits for it any more"
    client.say(client.sent[number])
    while wake(rig):
        pass
    assert client.answers[number].value == MANY and len(rig.bodies("all")) == MANY
    rig.check_log()


def test_a_commit_that_brings_a_long_publish_waits_with_it(rig: Rig, client: RigClient) -> None:
    client.ok(bind("all", f"{DEAR} OR p LIKE 'a%'"))
    transaction = client.begin()
    last = PublishCommand(0, "x", "k", TOGETHER.messages, transaction, 1)
    number = client.command(CommitCommand(0, transaction, 1, last_publish=last))
    turns = 0
    while wake(rig):
        assert number not in client.answers
        turns += 1
    assert turns > 10 and client.answers[number].code is ErrorCode.NONE
    assert len(rig.bodies("all")) == MANY
    rig.check_log()


def test_many_that_take_long_share_what_selectors_may_take(rig: Rig, client: RigClient) -> None:
    client.ok(bind("q", DEAR))
    others = [rig.client() for _ in range(5)]
    numbers = [other.command(publish("k", *[b"m"] * 40, exchange="x", properties=LONG)) for other in others]
    before = rig.core.context.selectors.spent
    turns = 0
    while wake(rig):
        spent = rig.core.context.selectors.spent
        assert spent - before <= SHARE_STEPS + EVALUATION_STEPS_MAX
        before = spent
        turns += 1
    assert turns > 1
    assert all(
        other.answers[number].code is ErrorCode.NONE for other, number in zip(others, numbers, strict=True)
    )


def test_a_publish_that_costs_too_much_in_all_is_refused(rig: Rig, client: RigClient) -> None:
    client.ok(bind("q", DEAR))
    client.ok(bind("q", f"{DEAR} OR a = 1"))
    messages = tuple(OutgoingMessage(LONG, b"") for _ in range(10_000))
    number = client.command(PublishCommand(0, "x", "k", messages))
    while wake(rig):
        rig.boottime_ms += 9
    spent = rig.core.context.selectors.spent
    assert PUBLISH_STEPS_MAX < spent < PUBLISH_STEPS_MAX + 2 * SHARE_STEPS
    assert client.answers[number].code is ErrorCode.TOO_LARGE
    assert client.ok(publish("q", b"next")) == 1


# --- consumers ---


def test_what_a_consumers_selector_would_take_too_long_for_stays_and_is_told_once_a_minute(
    rig: Rig, client: RigClient
) -> None:
    client.consume("q", selector=BOMB)
    client.publish("q", b"1", properties=POWDER)
    client.publish("q", b"2", properties=POWDER)
    rig.pass_time(50)
    assert not client.in_hand and rig.bodies("q") == [b"1", b"2"]
    assert told(rig) == ["taken for no match: 2 times at queue 'q'"]
    client.publish("q", b"3", properties=POWDER)
    for _ in range(3):
        rig.pass_time(1000)
    assert len(told(rig)) == 1
    rig.pass_time(60_000)
    assert told(rig)[1:] == ["taken for no match: 1 times at queue 'q'"]
    other = rig.client()
    other.consume("q")
    assert other.bodies("q") == [b"1", b"2", b"3"]


def test_a_turn_of_deliveries_ends_with_what_selectors_cost() -> None:
    rig = Rig(PrimarySettings(delivery_turn_max=EVALUATION_STEPS_MAX // 10))
    client = rig.client()
    client.declare("q")
    for _ in range(4):
        client.publish("q", b"", properties=POWDER)
    client.consume("q", selector=BOMB)
    assert rig.core.context.dispatch.too_costly == {"q": 1}
    rig.feed(Tick(SET))
    rig.feed(Tick(SET))
    assert told(rig) == ["taken for no match: 1 times at queue 'q'"]
    assert rig.core.context.dispatch.too_costly == {"q": 3}


def test_many_consumers_with_long_selectors_open_one_behind_the_other(rig: Rig, client: RigClient) -> None:
    texts = [f"a{number} = 1 OR " + "b = 2 OR " * 900 + "c = 3" for number in range(5)]
    for text in texts:
        client.consume("q", selector=text)
    opened = len(client.heard_of(ConsumerOpened))
    assert opened < len(texts)
    is_more = True
    while is_more:
        is_more = wake(rig)
        assert len(client.heard_of(ConsumerOpened)) <= opened + 1
        opened = len(client.heard_of(ConsumerOpened))
    assert opened == len(texts)


def test_accepts_that_come_with_their_commit_wait_behind_a_consumer_that_is_not_open_yet(
    rig: Rig, client: RigClient
) -> None:
    client.publish("q", b"1")
    client.consume("q", credit=1)
    epoch = rig.core.epoch
    name = LogIndex(client.ok(CommitCommand(0, client.begin(), 0, begins=1)) - 1), epoch
    for number in range(5):
        client.consume("all", selector=f"a{number} = 1 OR " + "b = 2 OR " * 900 + "c = 3")
    first = client.number + 1
    client.number += 2
    positions = client.positions("q")
    accept = SettleCommand(first, "q", epoch, positions, Disposition.ACCEPT, name, 1)
    client.say(accept, CommitCommand(first + 1, name, 1))
    assert len(client.heard_of(ConsumerOpened)) < 6 and first + 1 not in client.answers
    while wake(rig):
        pass
    assert len(client.heard_of(ConsumerOpened)) == 6 and client.answers[first + 1].code is ErrorCode.NONE
    assert rig.bodies("q") == []
    rig.check_log()


def test_a_warning_is_one_that_operators_see(rig: Rig, client: RigClient) -> None:
    client.browse("q", selector=BOMB)
    client.publish("q", b"1", properties=POWDER)
    rig.pass_time(50)
    [note] = [note for note in rig.notes if isinstance(note, Note) and note.event == "selector too costly"]
    assert note.is_warning


# --- dead letters ---


def test_dead_letters_that_are_too_costly_for_a_binding_hold_nobody_up_and_the_others_go_where_they_belong() -> (
    None
):
    rig = Rig()
    client = rig.client()
    client.declare("dead")
    client.exchange("x")
    client.ok(bind("dead", f"{BOMB} OR colour = 'red'"))
    client.declare("q", dead_letter_exchange="x", dead_letter_key="k")
    count = 60
    client.publish("q", *[b"costly"] * count, properties=POWDER)
    client.publish("q", b"red", properties=kept_properties(colour="red"))
    client.consume("q")
    rig.pass_time(50)
    before = rig.core.context.selectors.spent
    client.command(SettleCommand(0, "q", rig.core.epoch, client.positions("q"), Disposition.REJECT))
    while rig.wakes:
        wake(rig)
    rig.pass_time(50)
    assert rig.bodies("q") == [] and rig.bodies("dead") == [b"red"]
    spent = rig.core.context.selectors.spent - before
    assert spent <= DEAD_LETTERS_COSTLY_MAX * EVALUATION_STEPS_MAX + count * DEAD_LETTER_STEPS_MAX
    assert told(rig) == [f"taken for no match: for {count} dead letters"]
    rig.check_log()


def test_a_dead_letter_goes_to_those_queues_alone_that_are_found_in_as_many_steps_as_a_publish_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.primary.core.dead_letter_targets.PUBLISH_STEPS_MAX", 10_000)
    rig = Rig()
    client = rig.client()
    client.exchange("x")
    for number in range(20):
        client.declare(f"dead{number}")
        client.command(bind(f"dead{number}", f"{DEAR} OR {number} = {number}"))
        rig.pass_time(50)
    client.declare("q", dead_letter_exchange="x", dead_letter_key="k")
    client.publish("q", b"1", properties=LONG)
    client.consume("q")
    rig.pass_time(50)
    before = rig.core.context.selectors.spent
    client.command(SettleCommand(0, "q", rig.core.epoch, client.positions("q"), Disposition.REJECT))
    while rig.wakes:
        wake(rig)
    lengths = [rig.state.queues.by_name[f"dead{number}"].length for number in range(20)]
    found = sum(lengths)
    assert 0 < found < 20 and lengths == [1] * found + [0] * (20 - found) and rig.bodies("q") == []
    assert rig.core.context.selectors.spent - before < 20_000
    figures = rig.core.context.figures
    assert (figures.dead_letters_limited, figures.dead_letters_lost) == (1, 0)
    assert [note.limit for note in rig.notes if note.event == "limit_reached"] == ["publish_steps_max"]
    rig.check_log()


def test_what_expires_is_asked_about_in_turns_that_selectors_have_their_share_of() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("dead")
    client.exchange("x")
    for number in range(20):
        client.command(bind("dead", f"{DEAR} OR q{number} = 'no'"))
        rig.pass_time(50)
    client.declare("q", dead_letter_exchange="x", dead_letter_key="k")
    count = 100
    client.publish("q", *[b"x"] * count, properties=LONG, ttl_ms=100)
    rig.boottime_ms += 200
    rig.wall_ms += 200
    rig.feed(Tick(SET))
    turns, most = 1, 0
    while rig.state.queues.by_name["q"].length:
        before = rig.core.context.selectors.spent
        wake(rig)
        most = max(most, rig.core.context.selectors.spent - before)
        turns += 1
    assert turns > 5
    assert most <= SHARE_STEPS + MOVED_AT_ONCE // QUESTION_AS_TARGETS * EVALUATION_STEPS_MAX // 20
    rig.check_log()
