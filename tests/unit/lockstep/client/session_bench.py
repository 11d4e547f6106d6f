"""A session core between its caller and a fake set: performs effects by hand, so that a test decides what arrives and when."""

from itertools import count

from lockstep.client import session_events as e
from lockstep.client.session_core import SessionCore
from lockstep.client.session_settings import SessionSettings
from lockstep.client.void_deliveries import told_apart
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.ids import Epoch, LogIndex, SessionId, SetName
from lockstep.core.pieces import at_once
from tests.unit.lockstep.client.fake_primary import FakePrimary, FakeSet


class Bench:
    """`heard` is what the caller heard; `primary` serves the open stream, if there is one."""

    def __init__(
        self, world: FakeSet | None = None, settings: SessionSettings | None = None, brokers: int = 3
    ) -> None:
        self.world = world or FakeSet()
        self.now = 1_000
        ids = count(1)
        self.core = SessionCore(
            SetName("s"),
            [f"b{number}" for number in range(1, brokers + 1)],
            lambda: SessionId(f"session-{next(ids)}"),
            lambda n: n - 1,
            settings,
        )
        self.primary: FakePrimary | None = None
        self.stream = 0
        self.address = ""
        self.timer: int | None = None
        self.heard: list[e.Effect] = []
        self.to_primary: list[rq.ClientMessage] = []
        self.sent: list[rq.ClientMessage] = []

    def submit(self, ticket: e.Ticket, command: c.AnyCommand) -> None:
        """Submits a command, and has it written."""
        self._perform(self.core.submit(ticket, command))
        self.feed(e.Turn())

    def feed(self, event: e.Input) -> None:
        self._perform(self.core.handle(event, self.now))

    def _perform(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            match effect:
                case e.OpenStream(stream, address):
                    self.stream, self.address = stream, address
                    self.primary = FakePrimary(self.world)
                    self.to_primary.clear()
                case e.CloseStream():
                    self.primary = None
                case e.Send(stream, messages):
                    assert stream == self.stream
                    self.to_primary += messages
                    self.sent += messages
                case e.ArmTimer(at):
                    self.timer = at
                case e.AllVoided():
                    self.heard += at_once(told_apart(effect))
                case _:
                    self.heard.append(effect)

    def start(self) -> "Bench":
        self.feed(e.Start())
        self.exchange()
        return self

    def write(self) -> None:
        """The stream takes what was written; the primary has not read it yet."""
        if self.core.written(self.stream):
            self.feed(e.Turn())

    def exchange(self, commit: bool = True) -> None:
        """Everything on its way arrives, until nobody has anything to say."""
        while True:
            self.write()
            if not self.read(commit):
                return

    def read(self, commit: bool = True) -> bool:
        """The primary reads what is on its way, and its answers arrive; whether there was anything."""
        messages, self.to_primary = self.to_primary, []
        said: list[sm.AnyServerMessage] = []
        if self.primary is not None:
            for message in messages:
                said += self.primary.hear(message)
            if commit:
                said += self.primary.commit(len(self.world.log))
        if said:
            self.say(*said)
        return bool(messages or said)

    def say(self, *messages: sm.AnyServerMessage) -> None:
        self.feed(e.Received(self.stream, messages))

    def lose(self) -> None:
        """The stream breaks; what is on its way is lost."""
        self.primary = None
        self.feed(e.StreamLost(self.stream, "reset"))

    def wait(self, milliseconds: int = 0) -> None:
        """Time passes; the timer fires as it was armed."""
        end = self.now + milliseconds
        while self.timer is not None and self.timer <= end:
            self.now, self.timer = max(self.now, self.timer), None
            self.feed(e.Tick())
        self.now = end

    def outcomes(self, ticket: object) -> list[e.Effect]:
        """What the caller heard of one ticket."""
        kinds = e.CommandDone | e.CommandRejected | e.CommandInDoubt | e.QuestionAnswered
        return [effect for effect in self.heard if isinstance(effect, kinds) and effect.ticket == ticket]

    def of(self, kind: type[e.Effect]) -> list[e.Effect]:
        return [effect for effect in self.heard if isinstance(effect, kind)]


def publish(text: str, **fields: object) -> c.PublishCommand:
    message = c.OutgoingMessage(b"", text.encode())
    return c.PublishCommand(0, "", "q", (message,), **fields)  # type: ignore[arg-type]


def begun(bench: Bench, ticket: str = "begin") -> tuple[LogIndex, Epoch]:
    """A transaction that the primary has begun."""
    bench.submit(ticket, c.BeginCommand(0))
    bench.exchange()
    return transaction_of(bench, ticket)


def transaction_of(bench: Bench, ticket: str) -> tuple[LogIndex, Epoch]:
    """What the caller heard of a begin."""
    (done,) = bench.outcomes(ticket)
    assert isinstance(done, e.CommandDone)
    assert done.transaction is not None
    return done.transaction


def bodies(commands: list[c.AnyCommand]) -> list[str]:
    """Of all publishes among them."""
    published = [command for command in commands if isinstance(command, c.PublishCommand)]
    return [message.body.decode() for command in published for message in command.messages]
