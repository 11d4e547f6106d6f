"""A command that primaries die over: it is found, refused, and said; what is harmless beside it is done, and once."""

import logging

import pytest

from lockstep.client import Session
from lockstep.client import session_events as e
from lockstep.client.session_settings import SessionSettings
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex
from tests.unit.lockstep.client.session_bench import Bench, begun, bodies, publish

PAUSE_MS = SessionSettings().suspected_ms
STEP_MS = 50
POISON = "poison"


def said(bench: Bench) -> list[str]:
    """Bodies of the publishes that are on their way to the primary."""
    return bodies([message for message in bench.to_primary if isinstance(message, c.Command)])


def fall(bench: Bench) -> None:
    """The primary dies with all that it did not commit; the next one attaches the session."""
    bench.world.fail_over(keep=0)
    bench.lose()
    attach(bench)


def attach(bench: Bench) -> None:
    while not any(isinstance(message, rq.AttachSession) for message in bench.to_primary):
        bench.wait(50)
    bench.read()
    bench.write()


def reigns_until_quiet(bench: Bench, deadly: str = POISON) -> int:
    """Primaries die when they have read what is deadly, until none does; answers how many did."""
    reigns = 0
    for _ in range(1000):
        bench.write()
        if deadly in said(bench):
            reigns += 1
            for message in bench.to_primary[: said(bench).index(deadly)]:
                if bench.primary is not None:
                    bench.primary.hear(message)
            fall(bench)
        elif not bench.read():
            if not len(bench.core.window):
                break
            bench.wait(STEP_MS)
    return reigns


def pause(bench: Bench) -> None:
    """The time passes for which something suspected may have to wait; the primary lives, and says so."""
    for _ in range(PAUSE_MS // STEP_MS):
        bench.write()
        if said(bench):
            return
        bench.read()
        bench.wait(STEP_MS)


def refused(bench: Bench) -> list[object]:
    return [
        effect.ticket
        for effect in bench.of(e.CommandRejected)
        if isinstance(effect, e.CommandRejected) and effect.code is ErrorCode.POISON
    ]


def test_a_command_that_primaries_die_over_is_refused_and_the_others_are_done_once() -> None:
    bench = Bench().start()
    for text in ("a", "b", POISON, "c", "d"):
        bench.submit(text, publish(text))
    assert reigns_until_quiet(bench) == 3
    assert refused(bench) == [POISON]
    assert bodies(bench.world.executed()) == ["a", "b", "c", "d"]
    assert [bench.outcomes(text) for text in "abcd"] == [[e.CommandDone(text, 0)] for text in "abcd"]
    [found] = bench.of(e.PoisonFound)
    assert (
        isinstance(found, e.PoisonFound)
        and found.kind == "PublishCommand"
        and "3 primaries of s" in found.text
    )
    bench.submit("next", publish("next"))
    bench.exchange()
    assert bench.outcomes("next") == [e.CommandDone("next", 0)]


def test_the_second_time_it_waits_by_chance_and_is_sent_alone_and_a_heartbeat_behind_it() -> None:
    bench = Bench().start()
    for text in ("a", POISON, "b"):
        bench.submit(text, publish(text))
    fall(bench)
    assert said(bench) == ["a", POISON, "b"], "after one fall all is sent as ever"
    fall(bench)
    assert said(bench) == []
    pause(bench)
    assert said(bench) == ["a"] and not isinstance(bench.to_primary[-1], rq.Heartbeat)
    bench.read(commit=False)
    bench.write()
    assert said(bench) == [], "what the primary says in the same turn proves nothing"
    bench.wait(SessionSettings().suspected_heartbeat_ms)
    bench.read(commit=False)
    bench.write()
    assert said(bench) == [POISON], "the primary goes on behind the first, committed or not"


def test_a_primary_that_says_that_it_ends_died_of_nothing() -> None:
    bench = Bench().start()
    bench.submit("a", publish("a"))
    for _ in range(5):
        bench.world.fail_over(keep=0)
        bench.write()
        bench.to_primary.clear()
        bench.say(sm.SessionEnded(bench.core.epoch, LogIndex(1), ErrorCode.NOT_PRIMARY, "handed over"))
        attach(bench)
    assert said(bench) == ["a"]
    bench.exchange()
    assert refused(bench) == [] and bench.outcomes("a") == [e.CommandDone("a", 0)]


def test_a_primary_that_answered_a_heartbeat_behind_a_command_did_not_die_over_it() -> None:
    """It waits for its backups, say, and others are killed one after the other."""
    bench = Bench().start()
    bench.submit("a", publish("a"))
    for _ in range(5):
        bench.write()
        bench.read(commit=False)
        bench.wait(SessionSettings().heartbeat_ms)
        bench.read(commit=False)
        fall(bench)
        assert said(bench) == ["a"], "it is sent as ever"
    bench.exchange()
    assert refused(bench) == [] and bench.outcomes("a") == [e.CommandDone("a", 0)]


def test_a_stream_that_breaks_within_a_reign_is_no_fall() -> None:
    bench = Bench().start()
    bench.submit("a", publish("a"))
    for _ in range(5):
        bench.to_primary.clear()
        bench.lose()
        attach(bench)
    assert said(bench) == ["a"]
    bench.exchange()
    assert refused(bench) == [] and bench.outcomes("a") == [e.CommandDone("a", 0)]


def test_two_primaries_that_end_prove_nothing_even_of_a_command_that_each_had_alone() -> None:
    """They are killed one after the other, or die over what another session sends."""
    bench = Bench().start()
    bench.submit("a", publish("a"))
    bench.write()
    for _ in range(2):
        pause(bench)
        assert said(bench) == ["a"]
        fall(bench)
    pause(bench)
    bench.exchange()
    assert refused(bench) == [] and bench.outcomes("a") == [e.CommandDone("a", 0)]
    assert bodies(bench.world.executed()) == ["a"]


def test_what_a_fallen_primary_had_committed_is_not_counted() -> None:
    bench = Bench().start()
    for text in "abcdef":
        bench.submit(text, publish(text))
        bench.write()
        bench.read(commit=False)
        bench.world.fail_over(keep=1)
        bench.lose()
        attach(bench)
    bench.exchange()
    assert refused(bench) == [] and bodies(bench.world.executed()) == list("abcdef")


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_transaction_that_has_the_poison_does_not_commit(place: int) -> None:
    bench = Bench().start()
    key = begun(bench)
    texts = ["a", "b", "c"]
    texts.insert(place, POISON)
    for text in texts:
        bench.submit(text, publish(text, transaction=key))
    bench.submit("commit", c.CommitCommand(0, key, 0))
    reigns_until_quiet(bench)
    [ended] = bench.outcomes("commit")
    assert isinstance(ended, e.CommandRejected) and ended.code is ErrorCode.ROLLED_BACK


def test_two_poisons_are_both_found() -> None:
    bench = Bench().start()
    for number, text in enumerate(("a", POISON, "b", POISON, "c")):
        bench.submit(number, publish(text))
    assert reigns_until_quiet(bench) == 4
    assert refused(bench) == [1, 3] and bodies(bench.world.executed()) == ["a", "b", "c"]


def test_an_answered_heartbeat_of_another_stream_proves_nothing() -> None:
    bench = Bench().start()
    bench.wait(SessionSettings().heartbeat_ms)
    bench.submit("a", publish("a"))
    bench.world.fail_over(keep=0)
    bench.lose()
    attach(bench)
    assert bench.core.window.survived == 0
    bench.say(sm.HeartbeatAnswered(Epoch(2), LogIndex(2)))
    assert bench.core.window.survived == 0


async def test_it_is_said_in_the_log_once_as_what_an_operator_is_to_see(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    await session.publish("a", b"1")
    port = next(iter(session._sets.values()))[0]
    port._perform_all([e.PoisonFound(7, "PublishCommand", "3 primaries in a row ended")])
    [said] = [record for record in caplog.records if "event=poison_refused" in record.getMessage()]
    assert said.levelno == logging.ERROR
    assert "set=one command 7 (PublishCommand)" in said.getMessage()
