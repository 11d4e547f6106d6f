"""A client's real session core on the rig's primary: a test decides what arrives, and when the stream is lost."""

from itertools import count

from lockstep.client import session_events as e
from lockstep.client.session_core import SessionCore
from lockstep.client.session_line import State
from lockstep.client.void_deliveries import told_apart
from lockstep.core.commands import AnyCommand, Command
from lockstep.core.ids import Epoch, QueuePosition, SessionId
from lockstep.core.inputs import ClientSaid, ClientStreamClosed
from lockstep.core.pieces import at_once
from lockstep.core.requests import ClientMessage
from lockstep.core.server_messages import (
    AnyServerMessage,
    BranchesFound,
    SessionAttached,
    SubscriptionsAnswer,
    Told,
)
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient


class CoreClient(RigClient):
    """Attached from the beginning. `heard_events`: what its caller heard."""

    def __init__(self, rig: Rig, name: str) -> None:
        super().__init__(rig, SessionId(name))
        ids = count(1)
        self.core = SessionCore(SET, ["b1"], lambda: SessionId(f"{name}-{next(ids)}"), lambda n: n - 1)
        self.now_ms = 1000
        self.heard_events: list[e.Effect] = []
        self.epochs: dict[tuple[str, QueuePosition], Epoch] = {}
        """Of the last delivery of each message."""
        self._core_stream = 0
        self._to_primary: list[ClientMessage] = []
        self._to_client: list[AnyServerMessage] = []
        self.feed(e.Start())
        self.hear_all()

    def hear(self, message: Told) -> None:
        if isinstance(message, SessionAttached):
            self.session = message.session
        assert not isinstance(message, SubscriptionsAnswer | BranchesFound), "brokers alone ask for that"
        self._to_client.append(message)

    def feed(self, event: e.Input) -> None:
        self._perform(self.core.handle(event, self.now_ms))

    def submit(self, ticket: object, command: AnyCommand) -> None:
        self._perform(self.core.submit(ticket, command))
        self.feed(e.Turn())

    def _perform(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            match effect:
                case e.OpenStream(stream):
                    self._core_stream, self.stream = stream, self.rig.new_stream(self)
                    self.is_closed = False
                    self._to_primary.clear()
                    self._to_client.clear()
                case e.CloseStream():
                    self.stream = 0
                case e.Send(_, messages):
                    self._to_primary += messages
                    self.sent.update({said.number: said for said in messages if isinstance(said, Command)})
                case e.Delivered(_, queue, epoch, messages):
                    self.epochs.update({(queue, message.position): epoch for message in messages})
                    self.heard_events.append(effect)
                case e.AllVoided():
                    self.heard_events += at_once(told_apart(effect))
                case _:
                    self.heard_events.append(effect)

    # --- what arrives ---

    def write(self) -> bool:
        """What the client said arrives at the primary; whether that was anything."""
        if self.core.written(self._core_stream):
            self.feed(e.Turn())
        messages, self._to_primary = tuple(self._to_primary), []
        if messages and self.stream:
            self.rig.feed(ClientSaid(SET, self.stream, messages))
        return bool(messages)

    def read(self, limit: int = 1 << 30) -> bool:
        """So many messages of the primary arrive at the client; whether there was any."""
        messages, self._to_client = self._to_client[:limit], self._to_client[limit:]
        if messages:
            self.feed(e.Received(self._core_stream, tuple(messages)))
        elif self.is_closed and self.stream:
            self.lose()
        return bool(messages)

    def hear_all(self) -> None:
        """Everything arrives, until nobody has anything to say."""
        while self.write() | self.read():
            pass

    def lose(self) -> None:
        """The stream breaks, with what is on its way; the client opens the next one."""
        if self.stream:
            stream, self.stream = self.stream, 0
            self._to_primary.clear()
            self._to_client.clear()
            self.rig.feed(ClientStreamClosed(SET, stream))
            self.feed(e.StreamLost(self._core_stream, "reset"))

    def turn_to(self, rig: Rig) -> None:
        """Another reign has begun: its primary serves the next stream."""
        self.rig, self.stream = rig, 0
        self._to_client.clear()
        self.feed(e.StreamLost(self._core_stream, "gone"))

    def come_back(self) -> None:
        """The client has its session back, and everything arrives."""
        while self.core.state is not State.ATTACHED:
            self.pass_time(100)
            self.hear_all()

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.feed(e.Tick())

    # --- what each of the two thinks that the session holds ---

    def holds(self) -> set[tuple[str, QueuePosition]]:
        held = self.core.line.held.by_queue()
        return {(queue, position) for queue, positions in held.items() for position in positions}

    def is_said_to_hold(self) -> set[tuple[str, QueuePosition]]:
        queues = self.rig.state.queues.by_id
        held = self.rig.core.context.dispatch.held_by(self.core.session)
        return {(queues[queue].name, position) for queue, positions in held.items() for position in positions}
