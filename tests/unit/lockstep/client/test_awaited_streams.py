"""Brokers that say nothing when a session is asked for: others are tried beside them, and whoever answers first serves it."""

from itertools import count, pairwise

from lockstep.client import session_events as e
from lockstep.client.session_core import SessionCore
from lockstep.client.session_line import State
from lockstep.client.session_settings import SessionSettings
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, SessionId, SessionKey, SetName
from tests.unit.lockstep.client.session_bench import publish

SETTINGS = SessionSettings()
ROUND_MS = SETTINGS.backoff_max_ms
"""The longest pause between two rounds."""


class Brokers:
    """A session core, and what is open to which broker; time passes in steps of a millisecond, and its timer fires."""

    def __init__(self, *addresses: str) -> None:
        self.now = 1_000
        ids = count(1)
        self.core = SessionCore(
            SetName("s"), addresses, lambda: SessionId(f"session-{next(ids)}"), lambda n: n - 1
        )
        self.open: dict[str, int] = {}
        """Address -> stream."""
        self.tried: list[tuple[int, str]] = []
        """When, and where."""
        self.heard: list[e.Effect] = []
        self.doubtful: set[str] = set()
        """Those that answer heartbeats, and nothing else yet."""
        self._beats: list[str] = []
        self._timer: int | None = None
        self.feed(e.Start())

    def feed(self, event: e.Input) -> None:
        self._perform(self.core.handle(event, self.now))

    def _perform(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            match effect:
                case e.OpenStream(stream, address):
                    assert address not in self.open, "one stream to each broker"
                    self.open[address] = stream
                    self.tried.append((self.now, address))
                case e.CloseStream(stream):
                    (closed,) = [address for address, its in self.open.items() if its == stream]
                    del self.open[closed]
                case e.Send(stream, messages):
                    (address,) = [address for address, its in self.open.items() if its == stream]
                    if address in self.doubtful and rq.Heartbeat() in messages:
                        self._beats.append(address)
                    self.core.written(stream)
                case e.ArmTimer(at):
                    self._timer = at
                case _:
                    self.heard.append(effect)

    def submit(self, ticket: str, command: c.AnyCommand) -> None:
        self._perform(self.core.submit(ticket, command))
        self.feed(e.Turn())

    def say(self, address: str, message: sm.AnyServerMessage) -> None:
        self.feed(e.Received(self.open[address], (message,)))

    def lose(self, address: str) -> None:
        self.feed(e.StreamLost(self.open.pop(address), "reset"))

    def refuse(self, address: str, code: ErrorCode = ErrorCode.NOT_PRIMARY) -> None:
        self.say(address, sm.AttachRefused(Epoch(1), LogIndex(1), code, "", ()))

    def attach(self, address: str, epoch: int = 1, next_number: int = 1) -> None:
        key = SessionKey(7)
        self.say(address, sm.SessionAttached(Epoch(epoch), LogIndex(9), key, Epoch(1), next_number, ()))

    def wait(self, milliseconds: int, *refusing: str) -> None:
        """Time passes; these brokers refuse at once whenever they are asked."""
        for _ in range(milliseconds):
            for address in refusing:
                if address in self.open:
                    self.refuse(address)
            self.now += 1
            beats, self._beats = self._beats, []
            for address in beats:
                if address in self.open:
                    self.say(address, sm.HeartbeatAnswered(Epoch(1), LogIndex(1), 0))
            while self._timer is not None and self._timer <= self.now:
                self._timer = None
                self.feed(e.Tick())

    def of(self, kind: type[e.Effect]) -> list[e.Effect]:
        return [effect for effect in self.heard if isinstance(effect, kind)]


def test_a_broker_that_hangs_hides_its_successor_for_no_longer_than_a_round_takes() -> None:
    brokers = Brokers("hung", "other", "next")
    brokers.wait(2_500, "other", "next")
    hung = [at for at, address in brokers.tried if address == "hung"]
    asked = [at for at, address in brokers.tried if address == "next" and at > hung[0] + SETTINGS.attach_ms]
    assert len(hung) == 1, "it may still answer: it is not asked again"
    assert max(after - before for before, after in pairwise(asked)) <= ROUND_MS + 2
    while "next" not in brokers.open:
        brokers.wait(1, "other")
    brokers.attach("next")
    assert brokers.core.state is State.ATTACHED
    assert list(brokers.open) == ["next"], "the others are closed"


def test_a_primary_that_takes_long_to_answer_is_not_asked_from_the_beginning_again() -> None:
    brokers = Brokers("other", "busy")
    brokers.wait(1_500, "other")
    assert not brokers.of(e.Attached)
    brokers.attach("busy")
    assert brokers.core.state is State.ATTACHED
    assert [address for _, address in brokers.tried].count("busy") == 1
    brokers.submit("a", publish("a"))
    brokers.say("busy", sm.Answers(Epoch(1), LogIndex(10), (sm.CommandAnswered(1, ErrorCode.NONE, "", 0),)))
    assert brokers.of(e.CommandDone) == [e.CommandDone("a", 0)]


def test_a_primary_in_doubt_is_known_by_its_heartbeats_and_nobody_else_is_asked() -> None:
    """Its set is below its minimum: it says that it lives, and attaches the session when it may (R3)."""
    brokers = Brokers("doubtful", "other")
    brokers.doubtful.add("doubtful")
    brokers.wait(500, "other")
    brokers.tried.clear()
    brokers.wait(10_000, "other")
    assert brokers.tried == []
    brokers.attach("doubtful")
    assert brokers.core.state is State.ATTACHED


def test_a_client_that_was_stopped_itself_hears_what_was_said_on_an_awaited_stream() -> None:
    brokers = Brokers("other", "busy")
    brokers.wait(SETTINGS.attach_ms)
    assert set(brokers.open) == {"busy", "other"}
    brokers.now += SETTINGS.attach_max_ms
    brokers.feed(e.Tick())
    assert [address for _, address in brokers.tried].count("busy") == 1
    brokers.attach("busy")
    assert brokers.core.state is State.ATTACHED


def test_whoever_was_awaited_and_refuses_may_be_asked_again() -> None:
    brokers = Brokers("other", "busy")
    brokers.wait(600, "other")
    brokers.refuse("busy")
    brokers.wait(ROUND_MS + 2, "other")
    assert [address for _, address in brokers.tried].count("busy") == 2


def test_whoever_is_asked_while_another_that_was_awaited_speaks_may_still_answer() -> None:
    brokers = Brokers("first", "second")
    brokers.wait(SETTINGS.attach_ms)
    assert set(brokers.open) == {"first", "second"}
    brokers.refuse("second")
    assert "first" in brokers.open
    brokers.attach("first")
    assert brokers.core.state is State.ATTACHED
    assert list(brokers.open) == ["first"]


def test_a_deposed_primary_that_was_awaited_does_not_get_the_session() -> None:
    brokers = Brokers("deposed", "other")
    brokers.wait(600)
    brokers.feed(e.Learn(Epoch(2)))
    brokers.attach("deposed", epoch=1)
    assert not brokers.of(e.Attached)


def test_silence_without_end_is_given_up_and_tried_anew() -> None:
    brokers = Brokers("hung", "other")
    brokers.wait(SETTINGS.attach_max_ms + SETTINGS.attach_ms + ROUND_MS, "other")
    first, second = [at for at, address in brokers.tried if address == "hung"]
    assert SETTINGS.attach_max_ms <= second - first <= SETTINGS.attach_max_ms + ROUND_MS


def test_an_awaited_stream_that_breaks_is_opened_again_with_the_next_round() -> None:
    brokers = Brokers("restarting", "other")
    brokers.wait(600, "other")
    brokers.lose("restarting")
    brokers.wait(ROUND_MS + 2, "other")
    assert [address for _, address in brokers.tried].count("restarting") == 2


def test_a_session_that_is_lost_is_not_awaited_any_more() -> None:
    brokers = Brokers("first", "second")
    brokers.attach("second")
    brokers.lose("second")
    brokers.wait(SETTINGS.attach_ms + ROUND_MS)
    assert len(brokers.open) == 2
    brokers.refuse("first", ErrorCode.UNKNOWN_SESSION)
    assert len(brokers.of(e.SessionLost)) == 1
    assert len(brokers.open) == 1, "what was asked for the old session is closed"
    (address,) = brokers.open
    brokers.attach(address)
    assert brokers.core.session_id == SessionId("session-2")


def test_the_end_closes_what_is_awaited() -> None:
    brokers = Brokers("first", "second")
    brokers.wait(2 * SETTINGS.attach_ms)
    assert len(brokers.open) == 2
    brokers.feed(e.Close())
    brokers.wait(1)
    assert brokers.core.state is State.CLOSED
    assert not brokers.open


def test_the_end_is_told_once() -> None:
    brokers = Brokers("busy")
    brokers.feed(e.Close())
    brokers.lose("busy")
    assert len(brokers.of(e.Closed)) == 1
