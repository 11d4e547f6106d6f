"""Clients that work off transactions, each with a session of its own, all in one process.

Law: every transaction takes one round, as with a client that works steadily: its commit brings its last publish and begins
the next one.
"""

from collections import deque
from collections.abc import Callable, Sequence

from bench.cases import Case
from bench.chain.hop import SET, Hop
from bench.chain.primary import PrimaryHop
from lockstep.client import session_events as e
from lockstep.client.session_core import SessionCore
from lockstep.core import commands as c
from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.ids import Epoch, QueuePosition, SessionId, TransactionKey
from lockstep.runtime.session_codec import decode_response, encode_request

_CONSUMER = 1
_Done = Callable[[e.CommandDone], None]


class Client:
    """One session; `done` of a submitted command is called with its answer."""

    def __init__(self, number: int, hop: "ClientsHop", primary: PrimaryHop, case: Case) -> None:
        self._primary, self._hop, self._case = primary, hop, case
        self._core = SessionCore(SET, ["primary"], lambda: SessionId(f"client-{number}"), lambda count: 0)
        self._take = primary.add_client(number, hop, self._heard)
        self._stream = 0
        self._publishes_to = f"out-{number}"
        self._takes_from = f"in-{number}"
        self._body = b"x" * case.body_bytes
        self._key: TransactionKey | None = None
        self._held: deque[QueuePosition] = deque()
        self._epoch = Epoch(0)
        self.due = 0
        """Transactions that are still to be done."""

    def begin(self) -> None:
        """Attaches, and makes what it works with; then it has a transaction to begin with."""
        self._perform(self._core.handle(e.Start(), 0))
        options = (
            c.QueueOptions(length_max=self._case.ring, is_evicting=True)
            if self._case.ring
            else c.QueueOptions()
        )
        self.submit(c.DeclareQueueCommand(0, self._publishes_to, options))
        if self._case.operation == "move":
            self.submit(c.DeclareQueueCommand(0, self._takes_from, c.QueueOptions()))
        self.submit(c.BeginCommand(0, 0), self._begun)
        self.write()

    def fill(self, transactions: int) -> None:
        """What so many transactions take from their queue."""
        if self._case.operation != "move":
            return
        for _ in range(transactions):
            self.submit(
                c.PublishCommand(0, "", self._takes_from, AlikeMessages([self._body] * self._case.size))
            )
        if not self._core.line.held.consumers:
            credit = 10 * self._case.size
            self._perform(self._core.handle(e.StartConsuming(_CONSUMER, self._takes_from, credit), 0))
        self.write()

    def start(self, transactions: int) -> None:
        """Begins with the first of so many; the others follow."""
        self.due = transactions
        self.work()
        self.write()

    def work(self) -> None:
        """The next transaction, where one is due and all that it needs is there."""
        key, size = self._key, self._case.size
        is_moving = self._case.operation == "move"
        if not self.due or key is None or (is_moving and len(self._held) < size):
            return
        self._key = None
        if is_moving:
            positions = tuple(self._held.popleft() for _ in range(size))
            self.submit(
                c.SettleCommand(0, self._takes_from, self._epoch, positions, c.Disposition.ACCEPT, key)
            )
            self._core.grant(_CONSUMER, size)
        messages = AlikeMessages([self._body] * size)
        publish = c.PublishCommand(0, "", self._publishes_to, messages, key)
        self.submit(c.CommitCommand(0, key, 0, 1, publish), self._committed)

    def submit(self, command: c.AnyCommand, done: _Done = lambda _: None) -> None:
        refused = self._core.submit(done, command)
        assert not refused, refused

    def write(self) -> None:
        if self._core.has_unsaid:
            self._perform(self._core.handle(e.Turn(), 0))

    # --- answers ---

    def _begun(self, done: e.CommandDone) -> None:
        self._key = done.transaction

    def _committed(self, done: e.CommandDone) -> None:
        (self._key,) = done.begun
        self.due -= 1
        self.work()

    def _heard(self, data: bytes) -> None:
        _, messages = decode_response(data)
        self._perform(self._core.handle(e.Received(self._stream, messages), 0))
        self._hop.gathers(self)

    def _perform(self, effects: Sequence[e.Effect]) -> None:
        for effect in effects:
            match effect:
                case e.CommandDone(ticket=done):
                    done(effect)  # type: ignore[operator]
                case e.Send(stream, messages):
                    self._primary.post(self._take, encode_request(SET, messages))
                    self._core.written(stream)
                case e.Delivered(epoch=epoch, messages=delivered):
                    self._epoch = epoch
                    self._held += [one.position for one in delivered]
                    self.work()
                case e.OpenStream(stream):
                    self._stream = stream
                case e.CommandRejected() | e.CommandInDoubt() | e.ConsumerStopped() | e.SessionLost():
                    raise AssertionError(effect)


class ClientsHop(Hop):
    """All clients: what they say is written when all that came for them was heard."""

    def __init__(self, primary: PrimaryHop, case: Case) -> None:
        super().__init__("client")
        self._heard: dict[Client, None] = {}
        self.clients = [Client(number, self, primary, case) for number in range(1, case.connections + 1)]

    def gathers(self, client: Client) -> None:
        """It may have something to say at the end of the turn."""
        self._heard[client] = None

    def end_turn(self) -> None:
        heard, self._heard = self._heard, {}
        for client in heard:
            client.write()
