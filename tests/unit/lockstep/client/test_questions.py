"""Questions are said in their order, so many at a time as every set takes, and only while somebody waits for the answer."""

import asyncio

import pytest

from lockstep.client import Session
from lockstep.client import session_events as e
from lockstep.client.questions import QUESTIONS_SAID_MAX
from lockstep.core import requests as rq
from services.primary.core.settings import PrimarySettings
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.session_bench import Bench

MANY = 3 * QUESTIONS_SAID_MAX


def said(bench: Bench) -> list[rq.ClientMessage]:
    return [message for message in bench.sent if isinstance(message, rq.Describe)]


def asking(count: int) -> Bench:
    """So many questions asked, of which none is answered yet."""
    bench = Bench().start()
    for ticket in range(count):
        bench.feed(e.Ask(ticket, rq.Describe(0)))
    bench.write()
    return bench


def test_sets_take_as_many_questions_of_a_stream_as_are_said() -> None:
    assert PrimarySettings().questions_waiting_max > QUESTIONS_SAID_MAX


def test_the_others_wait_until_there_is_room_and_keep_their_order() -> None:
    bench = asking(MANY)
    assert len(said(bench)) == QUESTIONS_SAID_MAX
    bench.exchange()
    answered = [effect.ticket for effect in bench.heard if isinstance(effect, e.QuestionAnswered)]
    assert answered == list(range(MANY))


def test_on_a_new_stream_no_more_are_said_at_a_time_and_the_first_come_first() -> None:
    bench = asking(MANY)
    bench.lose()
    bench.exchange()
    answered = [effect.ticket for effect in bench.heard if isinstance(effect, e.QuestionAnswered)]
    assert answered == list(range(MANY))
    assert len(said(bench)) == QUESTIONS_SAID_MAX + MANY


def test_what_nobody_waits_for_any_more_is_not_said_and_counts_where_it_was() -> None:
    bench = asking(QUESTIONS_SAID_MAX + 2)
    for ticket in (0, QUESTIONS_SAID_MAX):
        bench.core.give_up(ticket)
    bench.feed(e.Turn())
    bench.write()
    assert len(said(bench)) == QUESTIONS_SAID_MAX
    bench.exchange()
    assert len(said(bench)) == QUESTIONS_SAID_MAX + 1
    assert bench.outcomes(0) == bench.outcomes(QUESTIONS_SAID_MAX) == []
    assert len(bench.outcomes(QUESTIONS_SAID_MAX + 1)) == 1


def test_what_was_said_and_nobody_waits_for_is_not_said_again() -> None:
    bench = asking(2)
    bench.core.give_up(0)
    bench.lose()
    bench.exchange()
    assert len(said(bench)) == 2 + 1
    assert (len(bench.outcomes(0)), len(bench.outcomes(1))) == (0, 1)


@pytest.mark.parametrize("is_answered", [True, False])
def test_it_is_forgotten_with_its_answer_or_its_stream(is_answered: bool) -> None:
    bench = asking(2)
    bench.core.give_up(0)
    if is_answered:
        bench.exchange()
    for _ in range(2):
        bench.lose()
        bench.exchange()
    questions = bench.core.line.questions
    assert (len(questions), questions.given_up) == (0, set())
    assert (len(bench.outcomes(0)), len(bench.outcomes(1))) == (0, 1)


async def test_who_is_cancelled_gives_up(broker: FakeBroker, session: Session) -> None:
    await session.publish("a", b"x")
    port, _ = next(iter(session._sets.values()))
    await broker.__aexit__()
    await eventually(lambda: not port.is_attached)
    asked = port.ask(rq.Describe(0))
    assert len(port.core.line.questions) == 1
    asked.cancel()
    await asyncio.sleep(0)
    assert len(port.core.line.questions) == 0
