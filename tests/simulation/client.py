"""A client process: the real session cores, one per resource set that it uses, and the actors that work through them.

Law: what a session core tells its caller is written into the history at that moment, with the epoch and commit index of the
message that brought it. The edge does nothing by itself: streams, one timer, and the core's own choices.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, assert_never

from lockstep.client import session_events as e
from lockstep.client.session_core import SessionCore
from lockstep.client.session_settings import SessionSettings
from lockstep.client.void_deliveries import told_apart
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import LogIndex, QueuePosition, SessionId, SetName, TransactionKey
from lockstep.core.pieces import at_once
from tests.simulation.hellos import ClientHello
from tests.simulation.history import Browsed, Delivered, Operation, OutcomeHeard, PromiseBroken, Seen
from tests.simulation.loop import MS
from tests.simulation.network import Side
from tests.simulation.process import Process
from tests.simulation.promises import Actor, Inbox, Promise

if TYPE_CHECKING:
    from tests.simulation.world import World


class ClientSession:
    """One client's session in one set; made again by the core when the set has lost it."""

    def __init__(self, client: "Client", set_name: SetName, addresses: Iterable[str]) -> None:
        self.client = client
        self.world = client.world
        self.set_name = set_name
        self.core = SessionCore(
            set_name,
            addresses,
            client.new_session_id,
            client.world.random.randrange,
            client.settings,
        )
        self.commit_index = LogIndex(0)
        self.is_closed = False
        self.actors = 0
        self.losses = 0
        """How often the set has lost the session."""
        self._excluded: dict[tuple[int, int, str], set[QueuePosition]] = {}
        """(stream, consumer, queue) -> what it must not be given again."""
        self.asleep_until_us = 0
        """When the last of its actors that pause will go on."""
        self._sides: dict[int, Side] = {}
        self._last_stream = 0
        self._inboxes: dict[int, Inbox] = {}
        self._consumers = 0
        self._timer = 0
        self._is_turn_due = False
        self.aborted: set[TransactionKey] = set()

    @property
    def is_working(self) -> bool:
        """Whether actors should begin another piece of work."""
        return self.world.is_working and not self.is_closed

    # --- for actors -----------------------------------------------------------------------------------------------

    def submit(self, command: c.AnyCommand) -> Promise:
        """Submit a command; the promise has its `Operation`, which says how it ended."""
        operation, brought = _operation(command, self), None
        if isinstance(command, c.CommitCommand) and command.last_publish is not None:
            brought = _operation(command.last_publish, self)
            self.world.history.operations.append(brought)
        self.world.history.operations.append(operation)
        promise = Promise(operation, brought=brought)
        self.client.post(self._submit, promise, command)
        return promise

    def ask(self, question: rq.Question) -> Promise:
        """Ask; the promise's value is the answer, or None when it was refused."""
        promise = Promise(asked_us=self.world.loop.now_us)
        promise.question = question
        self.feed(e.Ask(promise, question))
        return promise

    def consume(
        self, queue: str, credit: int, selector: str = "", is_browser: bool = False
    ) -> tuple[int, Inbox]:
        self._consumers += 1
        inbox = self._inboxes[self._consumers] = Inbox(selector, is_browser)
        self.feed(e.StartConsuming(self._consumers, queue, credit, selector=selector, is_browser=is_browser))
        return self._consumers, inbox

    def grant(self, consumer: int, credit: int) -> None:
        self.client.post(self._grant, consumer, credit)

    def drain(self, consumer: int) -> Promise:
        """Drain a consumer; the promise's value is the bodies that wait in its inbox then, None when it has ended."""
        promise = Promise()
        inbox = self._inboxes.get(consumer)
        if inbox is None or self.is_closed:
            promise.resolve()
        else:
            inbox.drains.append(promise)
            self.feed(e.Drain(consumer))
        return promise

    def with_patience(self, promise: Promise, patience_us: int) -> Promise:
        """The same promise, done at the latest in `patience_us`."""
        if not promise.is_done:
            self.world.loop.after(patience_us, self.client.post, promise.give_up)
        return promise

    def spawn(self, actor: Actor) -> None:
        """Run an actor until it ends."""
        self.actors += 1
        self.client.post(self._step, actor)

    def _step(self, actor: Actor) -> None:
        for wait in actor:
            if isinstance(wait, Promise):
                if wait.is_done:
                    continue
                wait.when_done(lambda: self.client.post(self._step, actor))
            else:
                self.asleep_until_us = max(self.asleep_until_us, self.world.loop.now_us + wait)
                self.world.loop.after(wait, self.client.post, self._step, actor)
            return
        self.actors -= 1

    # --- the core's edge ------------------------------------------------------------------------------------------

    def feed(self, given: e.Input) -> None:
        self.client.post(self._handle, given)

    def _submit(self, promise: Promise, command: c.AnyCommand) -> None:
        """What actors submit in one step is one write, up to a commit, which waits for nobody."""
        for effect in self.core.submit(promise, command):
            self._perform(effect)
        if isinstance(command, c.CommitCommand):
            self._handle(e.Turn())
        else:
            self._write_soon()

    def _grant(self, consumer: int, credit: int) -> None:
        self.core.grant(consumer, credit)
        self._write_soon()

    def _write_soon(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self.client.post(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        self._handle(e.Turn())

    def _written(self, stream: int) -> None:
        if self.core.written(stream):
            self._handle(e.Turn())

    def _handle(self, given: e.Input) -> None:
        for effect in self.core.handle(given, self.client.now_ms()):
            self._perform(effect)

    def receive(self, stream: int, messages: tuple[sm.AnyServerMessage, ...]) -> None:
        for message in messages:
            if stream in self._sides and message.epoch >= self.core.epoch:
                self.commit_index = message.commit_index
            self._handle(e.Received(stream, (message,)))

    def _note_whole(self, messages: tuple[rq.ClientMessage, ...]) -> None:
        for accept, commit in pairwise(messages):
            if (
                isinstance(accept, c.SettleCommand)
                and isinstance(commit, c.CommitCommand)
                and accept.transaction == commit.transaction
                and commit.operations == accept.sequence + (commit.last_publish is not None)
            ):
                brings = " that brings a publish" if commit.last_publish is not None else ""
                self.world.branches.reach(f"accepts said with their commit{brings}")

    def _perform(self, effect: e.Effect) -> None:
        match effect:
            case e.OpenStream():
                self._open(effect)
            case e.CloseStream():
                side = self._sides.pop(effect.stream, None)
                if side is not None:
                    side.close()
            case e.Send():
                side = self._sides.get(effect.stream)
                if side is not None:
                    side.send(effect.messages)
                    self._note_whole(effect.messages)
                self.world.loop.after(20, self.client.post, self._written, effect.stream)
            case e.ArmTimer():
                self._timer = effect.at
                self.world.loop.after((effect.at - self.client.now_ms()) * MS, self._fire, effect.at)
            case e.CommandDone():
                self._end(effect.ticket, ErrorCode.NONE, effect.value, effect.transaction, effect.begun)
            case e.CommandRejected():
                self._end(effect.ticket, effect.code, effect.value, None)
            case e.CommandInDoubt():
                self._end(effect.ticket, None, 0, None)
            case e.QuestionAnswered():
                self._answered(effect)
            case e.TransactionAborted():
                self.aborted.add(effect.transaction)
                self.world.branches.reach("transaction aborted")
            case e.Delivered():
                self._delivered(effect)
            case e.AllVoided():
                for told in at_once(told_apart(effect)):
                    self._perform(told)
            case e.DeliveriesVoided():
                inbox = self._inboxes.get(effect.consumer)
                if inbox is not None:
                    inbox.void(effect.epoch, effect.positions)
            case e.ConsumerStopped():
                inbox = self._inboxes.pop(effect.consumer, None)
                if inbox is not None:
                    inbox.close()
            case e.Attached():
                self.world.branches.reach("session opened" if effect.is_new else "session resumed")
                if self.core.line.stream != self._last_stream:
                    self.world.branches.reach("session attached where it was awaited")
            case e.PoisonFound():
                self.world.branches.reach("poison found")
            case e.SessionLost():
                self.losses += 1
                self.world.branches.reach("session lost")
            case e.Closed():
                self.is_closed = True
                for inbox in self._inboxes.values():
                    inbox.end_drains()
            case e.ConsumerDrained():
                self.world.branches.reach("consumer drained")
                self._inboxes[effect.consumer].drained()
            case e.ConsumerStarted():
                pass
            case _:
                assert_never(effect)

    def _open(self, effect: e.OpenStream) -> None:
        stream = self._last_stream = effect.stream
        side = self.world.network.connect(self.client.host, effect.address)
        self._sides[stream] = side
        side.on_message = lambda messages: self.client.post(self.receive, stream, messages)
        side.on_close = lambda: self.client.post(self._lost, stream)
        side.send(ClientHello(self.set_name))

    def _lost(self, stream: int) -> None:
        self._sides.pop(stream, None)
        self._handle(e.StreamLost(stream, "closed"))

    def _fire(self, at: int) -> None:
        if self._timer == at:
            self.client.post(self._tick, at)

    def _tick(self, at: int) -> None:
        if self._timer == at and not self.is_closed:
            self._handle(e.Tick())

    def break_off(self) -> None:
        for side in self._sides.values():
            side.break_off()

    # --- history --------------------------------------------------------------------------------------------------

    def _end(
        self,
        ticket: e.Ticket,
        code: ErrorCode | None,
        value: int,
        transaction: TransactionKey | None,
        begun: tuple[TransactionKey, ...] = (),
    ) -> None:
        assert isinstance(ticket, Promise)
        operation = ticket.operation
        if operation is None:  # a question
            ticket.resolve(None)
            return
        operation.ended_us = self.world.loop.now_us
        operation.code, operation.is_in_doubt, operation.value = code, code is None, value
        operation.epoch, operation.commit_index = self.core.epoch, self.commit_index
        operation.begun = begun
        if (brought := ticket.brought) is not None:
            brought.ended_us, brought.code, brought.is_in_doubt = operation.ended_us, code, code is None
            brought.epoch, brought.commit_index = operation.epoch, operation.commit_index
            self.world.branches.reach(f"commit with a publish: {'done' if operation.is_ok else 'not done'}")
        if transaction is not None:
            operation.transaction = transaction
        word = "in doubt" if code is None else "done" if code is ErrorCode.NONE else code.name
        self.world.branches.reach(f"{operation.kind}: {word}")
        if operation.is_ok and operation.excluded_consumer and operation.stream == self.core.line.stream:
            self.world.branches.reach("settle with exclusion: done")
            excluded = operation.stream, operation.excluded_consumer, operation.queue
            self._excluded.setdefault(excluded, set()).update(operation.positions)
        ticket.resolve(operation)

    def _answered(self, effect: e.QuestionAnswered) -> None:
        promise, answer, now_us = effect.ticket, effect.answer, self.world.loop.now_us
        assert isinstance(promise, Promise)
        question, history = promise.question, self.world.history
        if isinstance(answer, sm.BrowseAnswer) and isinstance(question, rq.Browse):
            if answer.code is ErrorCode.NONE:
                history.browses.append(
                    Browsed(
                        now_us,
                        self.client.name,
                        self.set_name,
                        question.queue,
                        answer.epoch,
                        answer.commit_index,
                        promise.asked_us,
                        question.after,
                        question.limit,
                        _seen(answer.messages),
                        answer.is_end,
                    )
                )
        elif isinstance(answer, sm.OutcomeAnswer) and isinstance(question, rq.GetOutcome):
            history.outcomes.append(
                OutcomeHeard(
                    now_us,
                    self.client.name,
                    self.set_name,
                    answer.epoch,
                    answer.commit_index,
                    answer.transaction,
                    answer.state,
                    question.fence,
                )
            )
        promise.resolve(answer)

    def _delivered(self, effect: e.Delivered) -> None:
        inbox = self._inboxes.get(effect.consumer)
        assert inbox is not None, "the core delivers to consumers that it has"
        if inbox.is_browser:
            self._shown(effect, inbox)
            return
        again = self._excluded.get((self.core.line.stream, effect.consumer, effect.queue), set())
        if again & {message.position for message in effect.messages}:
            raise PromiseBroken(
                "AMQP 1.0, 3.4.5", f"{self.client.name} was given again what it was excluded from"
            )
        if inbox.selector:
            self.world.branches.reach("selected messages delivered")
        self.world.history.deliveries.append(
            Delivered(
                self.world.loop.now_us,
                self.client.name,
                self.set_name,
                effect.queue,
                effect.epoch,
                self.commit_index,
                _seen(effect.messages),
                inbox.selector,
            )
        )
        inbox.put(effect.epoch, effect.messages)

    def _shown(self, effect: e.Delivered, inbox: Inbox) -> None:
        self.world.branches.reach("copies shown")
        now_us = self.world.loop.now_us
        self.world.history.browses.append(
            Browsed(
                now_us,
                self.client.name,
                self.set_name,
                effect.queue,
                effect.epoch,
                self.commit_index,
                now_us,
                inbox.after,
                len(effect.messages),
                _seen(effect.messages),
                False,
                inbox.selector,
            )
        )
        inbox.after = effect.messages[-1].position
        inbox.put(effect.epoch, effect.messages)


class Client(Process):
    """One client process, on a host of its own."""

    def __init__(
        self,
        world: "World",
        name: str,
        sets: Iterable[SetName],
        settings: SessionSettings | None = None,
        host: str = "",
    ) -> None:
        """`host`: where it runs; "": a host of its own, named like it."""
        super().__init__(world, name, host or name)
        self.settings = settings or world.session_settings
        self._bodies = 0
        self._clock_offset_ms = world.random.randrange(1_000_000)
        self.sessions = {
            set_name: ClientSession(self, set_name, world.addresses_of(set_name)) for set_name in sets
        }
        for session in self.sessions.values():
            session.feed(e.Start())

    def now_ms(self) -> int:
        return self.world.loop.now_us // MS + self._clock_offset_ms

    def new_session_id(self) -> SessionId:
        return SessionId(f"{self.name}-{self.world.random.getrandbits(48):012x}")

    def body(self, size_max: int) -> bytes:
        """A body that no other message has."""
        self._bodies += 1
        head = f"{self.name}/{self._bodies}".encode()
        return head + b"." * self.world.random.randrange(max(1, size_max - len(head)))

    def die(self) -> None:
        super().die()
        for session in self.sessions.values():
            session.break_off()


def _seen(messages: Iterable[sm.DeliveredMessage]) -> tuple[Seen, ...]:
    return tuple(Seen(m.position, m.body, m.delivery_count, m.is_durable, m.priority) for m in messages)


_KINDS: dict[type, str] = {
    c.DeclareExchangeCommand: "declare exchange",
    c.DeleteExchangeCommand: "delete exchange",
    c.DeclareQueueCommand: "declare queue",
    c.DeleteQueueCommand: "delete queue",
    c.PurgeQueueCommand: "purge queue",
    c.BindCommand: "bind",
    c.PublishCommand: "publish",
    c.SettleCommand: "settle",
    c.BeginCommand: "begin",
    c.CommitCommand: "commit",
    c.RollbackCommand: "rollback",
    c.SelectDtxCommand: "select dtx",
    c.StartCommand: "start branch",
    c.EndCommand: "end branch",
    c.PrepareBranchCommand: "prepare branch",
    c.CommitBranchCommand: "commit branch",
    c.RollbackBranchCommand: "rollback branch",
    c.ForgetBranchCommand: "forget branch",
    c.SetTimeoutCommand: "set time-out",
    c.EndHeuristicallyCommand: "end heuristically",
}


def _operation(command: c.AnyCommand, session: ClientSession) -> Operation:
    operation = Operation(
        session.client.name, session.set_name, _KINDS[type(command)], session.world.loop.now_us
    )
    match command:
        case c.PublishCommand():
            operation.bodies = tuple(message.body for message in command.messages)
            operation.queue = command.routing_key if command.exchange == "" else ""
            operation.is_durable = all(message.is_durable for message in command.messages)
            operation.transaction = command.transaction
        case c.SettleCommand():
            operation.queue, operation.positions = command.queue, command.positions
            operation.disposition, operation.transaction = command.disposition, command.transaction
            operation.excluded_consumer, operation.stream = (
                command.excluded_consumer,
                session.core.line.stream,
            )
        case c.DeclareQueueCommand():
            operation.queue, operation.is_durable = command.name, command.options.is_durable
        case c.DeleteQueueCommand() | c.PurgeQueueCommand():
            operation.queue = command.name
        case c.CommitCommand() | c.RollbackCommand():
            operation.transaction = command.transaction
        case _:
            pass
    return operation
