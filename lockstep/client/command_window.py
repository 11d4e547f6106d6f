"""The commands of one session in one resource set: numbered from 1 without gaps, sent in order, kept until they stand.

Law: a number names one command for ever once the set has taken it; a command is sent again only where the set says that it did
not take it (a resumption's next number, or push-back), so it takes effect at most once (DESIGN 6).

A begin is answered before its record is committed. It stays in the window until something answered behind it proves that it
stands; if its epoch ended first, its number is consumed by the rollback of the transaction that is no more: sent again as it
was, it would open a transaction that nobody knows.

`kept_from`: the epoch from which on open transactions are still open, as the set last said: earlier ones have ended.

A command that a primary dies over would end the next one, too, and so on, for it is sent again. So reigns that ended without a
word are counted for each command that they had, and the set has not. Behind two in a row it is suspected: it is sent alone, and
nothing behind it until the primary has shown that it goes on. If that one falls as well, the command is refused: the set does not
have it, so it did not happen. (Other sessions lost the same primary, and what they had is harmless: so not at once, and alone.)

Two reigns are too few to refuse it, even where it was all that its session had: one primary after the other may be killed, or die
over what another session sends. If what one reign ended over were sent alone, behind its pause by chance, each failover would
take longer (simulated, with 200 commands in hand: 6 s in place of 3), and a second kill meanwhile would have an innocent command
refused (so did 3 of 30 pairs of kills, and 6 of 30 with a third; as it is, none). A third primary that ends costs less.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from msgspec.structs import replace

from lockstep.client.session_events import (
    CommandDone,
    CommandInDoubt,
    CommandRejected,
    Effect,
    Ticket,
    TransactionAborted,
)
from lockstep.core.alike_messages import AlikeMessages, size_of_outgoing
from lockstep.core.commands import (
    ANSWERS_KEPT,
    AnyCommand,
    BeginCommand,
    CommitCommand,
    EndCommand,
    OutgoingMessage,
    PublishCommand,
    RollbackCommand,
    SettleCommand,
    StartCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, TransactionKey
from lockstep.core.requests import ClientMessage
from lockstep.core.server_messages import CommandAnswered

MESSAGE_BYTES = 100
"""What a message costs in memory beside its content, roughly: with empty bodies a backlog would never be full."""
SUSPECTED_FALLS = 2
"""Reigns in a row behind which commands are sent one by one. Fewer would slow every failover down."""
_NEVER = Epoch(0)
_NO_TRANSACTION: TransactionKey = (LogIndex(1), Epoch(1))
"""Every log begins with the record of its epoch, so this is none: a rollback of it is refused, and changes nothing."""


@dataclass(slots=True)
class InFlight:
    """One command, from its submission until it is known to stand."""

    ticket: Ticket
    command: AnyCommand
    size: int
    """Bytes, roughly."""
    epoch_sent: Epoch = _NEVER
    """Epoch of the stream on which it was sent last; 0: the set cannot have it."""
    is_answered: bool = False
    """The caller has heard of it."""
    transaction: TransactionKey | None = None
    """What a begin opened, once it is answered."""
    falls: int = 0
    """Reigns in a row that had it and ended without a word."""


class CommandWindow:
    """Lives as long as one session in the set; driven by the session core."""

    def __init__(self) -> None:
        self.heard = 0
        """Every command up to this one is answered and stands."""
        self.sent = 0
        """Every command up to this one was sent on this stream, or is in the set's log. heard <= sent <= last."""
        self.last = 0
        """Number of the last command submitted."""
        self.bytes = 0
        """Of all commands in the window."""
        self.operations: dict[TransactionKey, int] = {}
        """Operations of each open transaction that was not told to end."""
        self.branches: dict[bytes, TransactionKey] = {}
        """Branches that the session works in or has suspended, by xid."""
        self.survived = 0
        """The present reign goes on behind every command up to this one."""
        self._suspected_to = 0
        """Commands up to this one are sent alone; 0: none are."""
        self._window: deque[InFlight] = deque()
        """Commands heard + 1 .. last."""

    def __len__(self) -> int:
        return len(self._window)

    def submit(self, ticket: Ticket, command: AnyCommand, kept_from: Epoch) -> list[Effect]:
        """Takes a command in, or refuses it where its answer is known: a transaction of an epoch before that is no more."""
        number = self.last + 1
        match command:
            case CommitCommand(transaction=key):
                if key[1] < kept_from:
                    return [_rolled_back(ticket, key)]
                command = _complete(command, number, self.operations.pop(key, None))
            case PublishCommand(transaction=key) | SettleCommand(transaction=key) if key is not None:
                if key[1] < kept_from:
                    return [_rolled_back(ticket, key)]
                if key in self.operations:
                    self.operations[key] += 1
                    command = replace(command, number=number, sequence=self.operations[key])
                else:
                    command = replace(command, number=number)
            case RollbackCommand(transaction=key):
                if key[1] < kept_from:
                    return [_rolled_back(ticket, key)]
                self.operations.pop(key, None)
                command = replace(command, number=number)
            case StartCommand(xid=xid, transaction=key) if key is not None:
                if key[1] < kept_from:
                    return [_rolled_back(ticket, key)]
                # What is done in it, and its end, may follow before the set has answered.
                self.branches.setdefault(xid, key)
                command = replace(command, number=number)
            case EndCommand(xid=xid):
                key = self.branches.get(xid)
                operations = self.operations.get(key, 0) if key is not None else 0
                command = replace(command, number=number, operations=operations)
            case _:
                command = replace(command, number=number)
        self.last = number
        entry = InFlight(ticket, command, _size(command))
        self.bytes += entry.size
        self._window.append(entry)
        return []

    def leave_out(self, transaction: TransactionKey) -> None:
        """One of its operations makes no command. Its commit, or the end of its branch, counts it all the same: the set, which
        never gets it, rolls the transaction back (DESIGN T1)."""
        if transaction in self.operations:
            self.operations[transaction] += 1

    def take(self, epoch: Epoch, count_max: int, bytes_max: int) -> list[AnyCommand]:
        """The next commands to send in `epoch`, at least one if there is any that the window allows."""
        taken: list[AnyCommand] = []
        size = 0
        if self._suspected_to:
            if self.is_held_up:
                return taken
            if self.is_suspicious:
                count_max = 1
            else:
                self._suspected_to = 0
        end = min(self.last, self.heard + ANSWERS_KEPT, self.sent + count_max)
        while self.sent < end:
            entry = self._window[self.sent - self.heard]
            size += entry.size
            if taken and size > bytes_max:
                break
            entry.epoch_sent = epoch
            taken.append(entry.command)
            self.sent += 1
        return taken

    @property
    def has_unsent(self) -> bool:
        """Whether `take` would give something."""
        sent = self.sent
        if sent >= self.last or sent >= self.heard + ANSWERS_KEPT:
            return False
        return not (self._suspected_to and self.is_held_up)

    @property
    def is_suspicious(self) -> bool:
        """Whether the next command is one that is sent alone."""
        return self.sent < self._suspected_to

    @property
    def is_held_up(self) -> bool:
        """Whether the last command was sent alone, and may yet end the reign."""
        if not self.survived < self.sent <= self._suspected_to or self.sent <= self.heard:
            return False
        return not self._window[self.sent - self.heard - 1].is_answered

    def answer(
        self, answers: tuple[CommandAnswered, ...], kept_from: Epoch
    ) -> tuple[list[Effect], list[InFlight]]:
        """Takes answers in. Returns what callers hear, and the commands that these answers were for."""
        effects: list[Effect] = []
        answered: list[InFlight] = []
        stands = 0
        for answer in answers:
            if not self.heard < answer.number <= self.sent:
                continue
            entry = self._window[answer.number - self.heard - 1]
            is_early = type(entry.command) is BeginCommand and answer.code is ErrorCode.NONE
            if not is_early:
                stands = max(stands, answer.number)
            if entry.is_answered:
                continue
            entry.is_answered = True
            answered.append(entry)
            effects.append(self._effect(entry, answer, kept_from))
        self._forget_through(stands)
        return effects, answered

    def _effect(self, entry: InFlight, answer: CommandAnswered, kept_from: Epoch) -> Effect:
        command = entry.command
        if answer.code is not ErrorCode.NONE:
            if type(command) is StartCommand:
                self._not_started(command)
            return CommandRejected(entry.ticket, answer.code, answer.message, answer.value)
        if type(command) is BeginCommand:
            key = LogIndex(answer.value), entry.epoch_sent
            entry.transaction = key
            if key[1] < kept_from:
                return _rolled_back(entry.ticket, key)
            self.operations[key] = 0
            return CommandDone(entry.ticket, answer.value, key)
        if type(command) is CommitCommand and answer.value > command.transaction[0]:
            return self._begun(entry, command.begins, answer, kept_from)
        if type(command) is StartCommand:
            return self._started(entry, command, answer, kept_from)
        if type(command) is EndCommand and not command.is_suspended:
            self._left(command.xid)
        return CommandDone(entry.ticket, answer.value)

    def _begun(self, entry: InFlight, count: int, answer: CommandAnswered, kept_from: Epoch) -> Effect:
        """A commit has opened transactions, which have ended meanwhile if their epoch has."""
        if entry.epoch_sent < kept_from:
            return CommandDone(entry.ticket, answer.value)
        # As they are: to name their type here would be a call more for each.
        indices: Sequence[LogIndex] = range(answer.value - count, answer.value)  # type: ignore[assignment]
        begun = tuple(zip(indices, repeat(entry.epoch_sent), strict=False))
        self.operations.update(dict.fromkeys(begun, 0))
        return CommandDone(entry.ticket, answer.value, None, begun)

    def _started(
        self, entry: InFlight, command: StartCommand, answer: CommandAnswered, kept_from: Epoch
    ) -> Effect:
        key = LogIndex(answer.value), Epoch(int(answer.message)) if answer.message else entry.epoch_sent
        if key[1] < kept_from:
            return _rolled_back(entry.ticket, key)
        self.branches[command.xid] = key
        if not command.is_resume and command.transaction is None:
            self.operations[key] = 0
        return CommandDone(entry.ticket, answer.value, key)

    def _not_started(self, command: StartCommand) -> None:
        """The transaction that was to become a branch stays what it was."""
        if command.transaction is not None and self.branches.get(command.xid) == command.transaction:
            del self.branches[command.xid]

    def _left(self, xid: bytes) -> None:
        key = self.branches.pop(xid, None)
        if key is not None:
            self.operations.pop(key, None)

    def committed(self, commit_index: LogIndex, epoch: Epoch) -> None:
        """The log is committed up to here in `epoch`: begins at or below it stand."""
        window = self._window
        while window and (key := window[0].transaction) is not None:
            if key[1] > epoch or key[0] > commit_index:
                return
            self._forget_through(self.heard + 1)

    def _forget_through(self, number: int) -> None:
        """Answers come in order: with this one all before it stand."""
        while self.heard < number and self._window[0].is_answered:
            self.bytes -= self._window.popleft().size
            self.heard += 1

    def command(self, number: int) -> AnyCommand:
        """One that is in the window."""
        return self._window[number - self.heard - 1].command

    def falls(self, number: int) -> int:
        """How many reigns in a row had one that is in the window, and ended without a word."""
        return self._window[number - self.heard - 1].falls

    def survive(self, number: int) -> None:
        """The reign that this stream is of goes on behind every command up to this one."""
        self.survived = max(self.survived, number)

    def fallen(self, next_number: int, epoch: Epoch) -> int:
        """The reign before `epoch` ended without a word, and the set has nothing from `next_number` on.

        Returns the number of the command that it died over, 0: nobody knows.
        """
        had: list[int] = []
        for number in range(max(next_number, self.heard + 1), self.sent + 1):
            entry = self._window[number - self.heard - 1]
            if number <= self.survived:
                entry.falls = 0
            elif 0 < entry.epoch_sent < epoch and not entry.is_answered:
                entry.falls += 1
                had.append(number)
        falls = [self._window[number - self.heard - 1].falls for number in had]
        if len(had) == 1 and had[0] <= self._suspected_to and falls[0] >= SUSPECTED_FALLS:
            return had[0]
        if max(falls, default=0) >= SUSPECTED_FALLS:
            self._suspected_to = max(self._suspected_to, had[-1])
        return 0

    def resume(self, next_number: int, kept_from: Epoch) -> list[Effect]:
        """The set has everything before `next_number` and nothing from it on. Open transactions of earlier epochs are no more.

        Raises `ValueError` when that contradicts what was heard or sent.
        """
        if not self.heard < next_number <= self.last + 1:
            raise ValueError(
                f"the set expects command {next_number}, and {self.heard + 1}..{self.last} are in flight"
            )
        self._rewind(next_number)
        self.survived = 0
        dropped = set()
        for entry in self._window:
            if entry.transaction is not None and entry.epoch_sent == 0:
                dropped.add(entry.transaction)
                entry.command = RollbackCommand(entry.command.number, entry.transaction)
                entry.transaction = None
        aborted = [key for key in self.operations if key[1] < kept_from or key in dropped]
        for key in aborted:
            del self.operations[key]
        self.branches = {xid: key for xid, key in self.branches.items() if key not in aborted}
        return [TransactionAborted(key) for key in aborted]

    def push_back(self, number: int) -> bool:
        """The set took nothing from `number` on. Returns whether that concerns commands of the window."""
        if not self.heard < number <= self.sent:
            return False
        self._rewind(number)
        return True

    def _rewind(self, next_number: int) -> None:
        for offset in range(next_number - self.heard - 1, len(self._window)):
            self._window[offset].epoch_sent = Epoch(0)
        self.sent = next_number - 1

    def refuse(self, number: int, code: ErrorCode, message: str) -> tuple[list[ClientMessage], list[Effect]]:
        """A command cannot be said. What goes in its place, and what its caller hears."""
        entry = self._window[number - self.heard - 1]
        effects: list[Effect] = []
        if not entry.is_answered:
            effects.append(CommandRejected(entry.ticket, code, message))
        if isinstance(entry.command, StartCommand):
            self._not_started(entry.command)
        entry.is_answered = True
        entry.command = RollbackCommand(number, _NO_TRANSACTION)
        size = _size(entry.command)
        self.bytes -= entry.size - size
        entry.size = size
        return [entry.command], effects

    def lose(self, code: ErrorCode, message: str) -> list[Effect]:
        """The session is gone: what the set may have is in doubt, what it cannot have did not happen."""
        effects: list[Effect] = [TransactionAborted(key) for key in self.operations]
        for entry in self._window:
            if entry.is_answered:
                continue
            if entry.epoch_sent == 0:
                effects.append(CommandRejected(entry.ticket, code, message))
                continue
            commit = entry.command.transaction if isinstance(entry.command, CommitCommand) else None
            effects.append(CommandInDoubt(entry.ticket, code, message, commit))
        return effects

    def unsettled(self, kept_from: Epoch) -> list[SettleCommand]:
        """Settles of deliveries, of that epoch or a later one, that are not answered."""
        commands = [entry.command for entry in self._window if not entry.is_answered]
        return [c for c in commands if isinstance(c, SettleCommand) and c.delivery_epoch >= kept_from]


def _rolled_back(ticket: Ticket, key: TransactionKey) -> CommandRejected:
    return CommandRejected(
        ticket,
        ErrorCode.ROLLED_BACK,
        f"transaction {key[0]}.{key[1]} was rolled back: epoch {key[1]} is over",
    )


def _complete(command: CommitCommand, number: int, operations: int | None) -> CommitCommand:
    """A commit behind so many operations, and the one that it brings. None: nobody knows of its transaction."""
    if operations is None:
        return replace(command, number=number)
    if (last := command.last_publish) is None:
        return replace(command, number=number, operations=operations)
    last = replace(last, number=number, sequence=operations + 1)
    return replace(command, number=number, operations=operations + 1, last_publish=last)


def _size(command: AnyCommand) -> int:
    if type(command) is CommitCommand and command.last_publish is not None:
        command = command.last_publish
    if type(command) is PublishCommand:
        messages = command.messages
        return 64 + size_of_outgoing(messages) + MESSAGE_BYTES * _parts_of(messages)
    if type(command) is SettleCommand:
        return 64 + 8 * len(command.positions)
    return 64


def _parts_of(messages: Sequence[OutgoingMessage]) -> int:
    """How many there are, and headers; each takes room as a message does."""
    if isinstance(messages, AlikeMessages):
        return len(messages.bodies) + len(messages.headers)
    return len(messages) + sum([len(message.headers) for message in messages])
