"""A resource set as one client sees it: a log, sessions in it, and a primary that can be lost at any point.

It says what a real primary says (the dataclasses of `lockstep.core.commands`), and executes nothing: what is in the log is done.
"""

from dataclasses import dataclass, field

from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, SessionId, SessionKey

_VERBS = (c.PrepareBranchCommand, c.CommitBranchCommand, c.RollbackBranchCommand, c.ForgetBranchCommand)


@dataclass(slots=True)
class Entry:
    """One record of the log: what opened a session, or a command of it (with the code of its answer), or an epoch's first."""

    epoch: Epoch
    session_id: SessionId | None = None
    session: SessionKey = SessionKey(0)
    command: c.AnyCommand | None = None
    code: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class FakeSet:
    """The log with a commit index; `epoch` of whoever is primary now."""

    epoch: Epoch = Epoch(1)
    commit_index: int = 1
    log: list[Entry] = field(default_factory=lambda: [Entry(Epoch(1))])
    kept_from: Epoch = Epoch(1)
    """Transactions of epochs from here on are still open."""
    ended: set[SessionKey] = field(default_factory=set)
    queues: list[sm.QueueDescription] = field(default_factory=list)
    """That are described."""
    gone: set[str] = field(default_factory=set)
    """Queues that were deleted, as far as descriptions say."""
    loses_begins: bool = False
    """Answers to begins do not arrive."""
    takes_last_publish: bool = True
    """Older primaries do not."""
    value_of_verbs: int = 0
    """What is answered to those that end branches."""
    code_of_verbs: ErrorCode = ErrorCode.NONE
    settled_max: int = 1 << 30
    """Messages that a settle does which may be partial."""

    def fail_over(self, keep: int) -> None:
        """A new epoch, whose log keeps `keep` of the records beyond the commit index."""
        del self.log[self.commit_index + keep :]
        self._begin_epoch()
        self.kept_from = self.epoch

    def hand_over(self) -> None:
        """A new epoch behind the whole log; everything stays open and in hand."""
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.epoch = Epoch(self.epoch + 1)
        self.log.append(Entry(self.epoch))
        self.commit_index = len(self.log)

    def restart(self) -> None:
        """All brokers: a new epoch in which no session is known."""
        self.fail_over(0)
        self.ended.update(SessionKey(index + 1) for index, entry in enumerate(self.log) if entry.session_id)

    def executed(self) -> list[c.AnyCommand]:
        """Commands in the log that were not rejected, and before a commit what it brought."""
        executed: list[c.AnyCommand] = []
        for entry in self.log:
            if entry.command is None or entry.code is not ErrorCode.NONE:
                continue
            if isinstance(entry.command, c.CommitCommand) and entry.command.last_publish is not None:
                executed.append(entry.command.last_publish)
            executed.append(entry.command)
        return executed

    def next_number(self, session: SessionKey) -> int:
        return 1 + sum(entry.session == session and entry.command is not None for entry in self.log)

    def opening(self, session_id: SessionId) -> SessionKey:
        """The live session of that id, 0 if there is none."""
        for index, entry in enumerate(self.log, 1):
            if entry.session_id == session_id and index not in self.ended:
                return SessionKey(index)
        return SessionKey(0)


class FakePrimary:
    """One stream, served by the primary of one epoch."""

    def __init__(self, world: FakeSet, addresses: tuple[str, ...] = ()) -> None:
        self.world = world
        self.epoch = world.epoch
        self.addresses = addresses
        self.session = SessionKey(0)
        self.answered = 0
        self.pushes_back = False
        self.requests: list[rq.ClientMessage] = []
        self.heard: list[rq.ClientMessage] = []
        """Commands and requests, in order."""

    def _head(self) -> tuple[Epoch, LogIndex]:
        return self.epoch, LogIndex(self.world.commit_index)

    def hear(self, message: rq.ClientMessage) -> list[sm.AnyServerMessage]:
        """What is said at once; what waits for the commit index comes from `commit`."""
        self.heard.append(message)
        match message:
            case rq.AttachSession():
                return [self._attach(message)]
            case rq.Heartbeat():
                return [sm.HeartbeatAnswered(*self._head())]
            case rq.DetachSession():
                self.world.ended.add(self.session)
                return [sm.SessionEnded(*self._head(), ErrorCode.NONE, "")]
            case c.Command():
                return self._command(message)
            case rq.Describe(request, _, size, token):
                left = [queue for queue in self.world.queues if queue.queue_id > token]
                page, rest = tuple(left[: size or None]), left[size:] if size else []
                next_token = page[-1].queue_id if rest else 0
                return [
                    sm.Description(*self._head(), request, LogIndex(0), "", page, (), 0, 0, 0, 0, next_token)
                ]
            case rq.DescribeQueue(request, queue):
                code = ErrorCode.NOT_FOUND if queue in self.world.gone else ErrorCode.NONE
                return [sm.QueueDetails(*self._head(), request, code, is_durable=code is ErrorCode.NONE)]
            case _:
                self.requests.append(message)
                return []

    def _attach(self, attach: rq.AttachSession) -> sm.AnyServerMessage:
        world = self.world
        self.requests.append(attach)
        session = attach.session or world.opening(attach.session_id)
        if not session:
            world.log.append(Entry(self.epoch, attach.session_id))
            session = SessionKey(len(world.log))
            world.commit_index = len(world.log)
        opened = world.log[session - 1] if session <= len(world.log) else None
        if session in world.ended or opened is None or opened.session_id != attach.session_id:
            return sm.AttachRefused(*self._head(), ErrorCode.UNKNOWN_SESSION, "no such session", ())
        self.session, self.answered = session, attach.heard
        return sm.SessionAttached(
            *self._head(),
            session,
            opened.epoch,
            world.next_number(session),
            self.addresses,
            world.kept_from,
            world.takes_last_publish,
        )

    def _command(self, command: c.AnyCommand) -> list[sm.AnyServerMessage]:
        expected = self.world.next_number(self.session)
        if self.pushes_back and command.number == expected:
            return [sm.PushedBack(*self._head(), command.number, ErrorCode.UNAVAILABLE, "busy")]
        if command.number != expected:
            return []
        key = getattr(command, "transaction", None)
        code = ErrorCode.ROLLED_BACK if key is not None and key[1] < self.world.kept_from else ErrorCode.NONE
        if isinstance(command, c.CommitCommand) and code is ErrorCode.NONE:
            self.world.log += [Entry(self.epoch)] * command.begins
        if isinstance(command, _VERBS):
            code = self.world.code_of_verbs
        self.world.log.append(Entry(self.epoch, None, self.session, command, code))
        if isinstance(command, c.BeginCommand) and not self.world.loses_begins:
            return [self._answers([sm.CommandAnswered(command.number, code, "", len(self.world.log))])]
        return []

    def commit(self, count: int) -> list[sm.AnyServerMessage]:
        """`count` more records are committed; the answers that were waiting for that."""
        world = self.world
        world.commit_index = min(len(world.log), world.commit_index + count)
        answers = []
        for index, entry in enumerate(world.log[: world.commit_index], 1):
            if (
                entry.session != self.session
                or entry.command is None
                or entry.command.number <= self.answered
            ):
                continue
            # What is refused has begun nothing.
            value = (
                self._value(index, entry.command)
                if not entry.code or isinstance(entry.command, _VERBS)
                else 0
            )
            text = entry.code.name if entry.code else ""
            if (
                not isinstance(entry.command, (*_VERBS, c.SettleCommand))
                and value
                and self.world.log[value - 1].epoch != entry.epoch
            ):
                text = str(self.world.log[value - 1].epoch)
            answers.append(sm.CommandAnswered(entry.command.number, entry.code, text, value))
            self.answered = entry.command.number
        return [self._answers(answers)] if answers else []

    def _value(self, index: int, command: c.AnyCommand) -> int:
        """Of the answer: the index of the transaction that was begun, or that goes on."""
        match command:
            case c.BeginCommand():
                return index
            case c.CommitCommand(begins=begins) if begins:
                return index
            case c.StartCommand(transaction=key) if key is not None:
                return key[0]
            case c.StartCommand(xid=xid):
                commands = enumerate((entry.command for entry in self.world.log), 1)
                return next(at for at, one in commands if isinstance(one, c.StartCommand) and one.xid == xid)
            case c.SettleCommand(positions=positions, may_be_partial=may_be_partial):
                return min(len(positions), self.world.settled_max) if may_be_partial else len(positions)
            case _:
                return self.world.value_of_verbs if isinstance(command, _VERBS) else 0

    def _answers(self, answers: list[sm.CommandAnswered]) -> sm.Answers:
        return sm.Answers(*self._head(), tuple(answers))

    def deliver(self, consumer: int, queue: str, *positions: int, are_copies: bool = False) -> sm.Deliveries:
        messages = tuple(sm.DeliveredMessage(p, b"", b"body", 0, 0, True) for p in positions)  # type: ignore[arg-type]
        return sm.Deliveries(*self._head(), consumer, queue, messages, are_copies)

    def drained(self, consumer: int, credit: int) -> sm.ConsumerDrained:
        return sm.ConsumerDrained(*self._head(), consumer, credit)
