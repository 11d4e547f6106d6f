"""Gathers publishes and settles into batches: what comes while a write is under way is one command for each target.

Law: a caller's messages are never split and keep their order, but what he settles is split where no set takes it in one command;
batches are submitted in the order in which they were begun, and before whatever is submitted after them. If a batch of several
callers is refused, each caller's part is tried alone: nobody is refused for what somebody else asked; unless more was sent to the
same target since, behind which it must not come. Whether anything came of that is waited for, but not where a queue is full.
Callers who do not know of each other hear then that they were refused together, and who has sent nothing since may try again.
Nobody knows to how many queues a named exchange leads: few messages are joined there, until an answer has told that it may be
more. That is known for a moment: queues are bound meanwhile. A batch that makes no command fails alone: what gathered behind it
goes on, and its transaction lacks an operation, so that it cannot commit. What one session holds is not settled in the name of
the next, which may hold it for somebody else in the same epoch.
"""

import asyncio
from bisect import insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from lockstep.client.command_window import MESSAGE_BYTES
from lockstep.client.reject_line import RejectLine
from lockstep.client.session_events import CommandAnswer, Done
from lockstep.client.set_session import SetSession
from lockstep.core import commands as c
from lockstep.core.alike_messages import joined, size_of_outgoing
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import Epoch, QueuePosition, TransactionKey

BATCH_MESSAGES_MAX = 1_000
BATCH_BYTES_MAX = 1 << 20
"""About what a primary puts into one batch of its journal."""
COMMAND_POSITIONS_MAX = 10_000
COMMAND_PLACES_MAX = 1_000_000
MESSAGE_QUEUES_MAX = 10_000
"""What sets take in one command, and of one message."""
_TOGETHER_MIN = COMMAND_PLACES_MAX // MESSAGE_QUEUES_MAX // 2
"""Messages that are joined however many queues each goes to. The last caller's may make twice as many of it."""
_GROWTH = 4
"""An exchange may lead to so many times as many queues as when it was heard of last."""
_REFUSED_PART = 8
"""What was too much together is joined in so many parts from then on: selectors of its bindings may take long."""
FAN_OUT_SECONDS = 1.0
"""What an answer has told is good for so long, from the last one on."""
REFUSED_SECONDS = 60.0
"""That much was refused together is good for longer: to learn it once more is to refuse what each would have been taken alone."""
REFUSED_KEPT_MAX = 16
"""Batches for one target that were refused together, and wait for what was sent behind them."""
REFUSED_PARTS_MAX = 1_000
"""Callers' parts in all such batches of all targets: they may have to be tried one by one in one step."""
FAN_OUTS_KEPT = 10_000
"""Exchanges and keys of which it is known to how many queues they lead."""

_SHARED_REFUSALS = {
    ErrorCode.QUEUE_FULL,
    ErrorCode.STALE_DELIVERY,
    ErrorCode.TOO_LARGE,
    ErrorCode.INVALID_ARGUMENT,
}
"""Refusals that may be due to one part of a batch only."""

Confirmation = asyncio.Future[int]
"""Done when the set has it for good; need not be awaited. Raises `Rejected` or `InDoubt`."""
LastPublish = tuple[c.PublishCommand, Callable[[CommandAnswer], None]]
"""What a commit brings, and whom to tell what has become of it."""
_Part = Sequence[Any]
"""Messages or positions: what the batch's `make` takes."""
_T = TypeVar("_T")


class RefusedTogether(Rejected):
    """It may be due to another caller's part of the batch. More was sent to the target since: whoever has sent nothing of that
    may try again what is his."""


def in_commands(settled: Sequence[_T]) -> list[Sequence[_T]]:
    """Positions, or what stands for one, in parts that are each settled by one command: taken or refused as a whole."""
    count = COMMAND_POSITIONS_MAX
    return [settled[first : first + count] for first in range(0, len(settled), count)]


@dataclass(slots=True)
class _FanOut:
    """What is known of a named exchange and key: to how many queues it leads, and what that lets join."""

    together: int = _TOGETHER_MIN
    """Messages that may be joined."""
    most: int = BATCH_MESSAGES_MAX
    """Never more: it is less where more were refused together."""
    until: float = 0.0
    """On the loop's clock."""
    refused_until: float = 0.0
    """`most` is good for so long, if not longer by what was answered since."""


@dataclass(slots=True)
class _Batch:
    make: Callable[[list[_Part]], c.AnyCommand]
    target: tuple[str, str] | None
    """The exchange and routing key of a publish."""
    transaction: TransactionKey | None
    parts: list[_Part] = field(default_factory=list)
    waiting: list[Confirmation] = field(default_factory=list)
    together: int = BATCH_MESSAGES_MAX
    """Messages with which it is complete."""
    count: int = 0
    size: int = 0
    number: int = 0
    """In the order in which publishes are submitted."""

    @property
    def bytes(self) -> int:
        """What its messages or positions take in memory."""
        return self.size + MESSAGE_BYTES * self.count

    @property
    def line(self) -> tuple[str, str] | None:
        """What keeps the order of a publish: a queue, or a named exchange, through which two keys may reach one queue."""
        return self.target if self.target is None or not self.target[0] else (self.target[0], "")

    @property
    def is_settle(self) -> bool:
        """Outside of transactions."""
        return self.target is None and self.transaction is None


class CommandBatches:
    """Lives as long as the session in its set; used from one event loop."""

    def __init__(
        self,
        session: SetSession,
        in_order: bool = True,
        not_found: Callable[[str, str], None] = lambda _exchange, _key: None,
    ) -> None:
        """`in_order` False: several callers share it who do not know of each other. Then only what goes to one exchange or is in
        one transaction keeps its order; publishes go before settles, so that a message is never taken before what was made of
        it is there, and rejects wait in a line of their own (`RejectLine`). `not_found` hears which exchange or queue a set does
        not know."""
        self._session = session
        self._in_order = in_order
        self._rejects = RejectLine(session, BATCH_MESSAGES_MAX, _SHARED_REFUSALS)
        """Where not all is in order."""
        self._batches: list[_Batch] = []
        self._open: dict[Hashable, _Batch] = {}
        self._kind: Hashable = None
        self.not_found = not_found
        self._under_way: dict[tuple[str, str], int] = {}
        """How many publishes to each queue or named exchange, whatever their keys there, are not answered. Answers come in their
        order, but for refusals without the set: of what cannot be said, or was of an epoch that is over."""
        self._submitted = 0
        """Publishes."""
        self._refused_together: dict[tuple[str, str], list[tuple[_Batch, Rejected]]] = {}
        """Refused together, by lines and in their order: to be tried apart if nothing happens of what was sent behind them."""
        self._refused_parts = 0
        """Of all of these."""
        self._refused_bytes = 0
        self._fan_outs: dict[tuple[str, str], _FanOut] = {}
        """Of named exchanges and keys, by what was answered last."""
        self._last_keys: dict[str, Hashable] = {}
        """Where not all is in order: the key that each exchange got last."""
        session.before_write = self.flush
        session.rejects_over = self._rejects.over

    def publish(
        self,
        exchange: str,
        routing_key: str,
        messages: Sequence[c.OutgoingMessage],
        transaction: TransactionKey | None,
    ) -> Confirmation:
        """Adds one caller's messages; the value is the number of enqueues of the batch that they went with."""
        size = size_of_outgoing(messages)
        key = ("publish", exchange, routing_key, transaction)
        # Through a named exchange two keys may reach one queue: there, only what follows directly may join.
        if self._in_order:
            self._enter(
                ("publish", transaction, key if exchange else None)
                if transaction is None or exchange
                else transaction
            )
        elif exchange and (last := self._last_keys.get(exchange)) != key:
            self._open.pop(last, None)
            self._last_keys[exchange] = key
        batch = self._open.get(key)
        if batch is None:
            batch = self._begin(
                key,
                self._make_publish(exchange, routing_key, transaction),
                (exchange, routing_key),
                transaction,
            )
        return self._add(key, batch, messages, size)

    @staticmethod
    def _make_publish(
        exchange: str, routing_key: str, transaction: TransactionKey | None
    ) -> Callable[[list[_Part]], c.AnyCommand]:
        return lambda parts: c.PublishCommand(0, exchange, routing_key, joined(parts), transaction)

    def together(self, exchange: str, routing_key: str) -> int:
        """So many messages to this target are taken together if each is taken alone, as far as anybody knows."""
        if not exchange:
            return BATCH_MESSAGES_MAX
        fan_out = self._fan_outs.get((exchange, routing_key))
        if fan_out is None or fan_out.until <= self._session.loop.time():
            return _TOGETHER_MIN
        return fan_out.together

    def settle(
        self,
        queue: str,
        epoch: Epoch,
        positions: Sequence[QueuePosition],
        disposition: int,
        transaction: TransactionKey | None,
        excluded_consumer: int = 0,
        annotations: bytes = b"",
    ) -> Confirmation:
        """Adds one caller's dispositions: taken or refused as a whole, if they are not more than one command takes."""
        if len(positions) > COMMAND_POSITIONS_MAX:
            return _all_of(
                [
                    self.settle(queue, epoch, part, disposition, transaction, excluded_consumer, annotations)
                    for part in in_commands(positions)
                ]
            )
        if not self._in_order and transaction is None and disposition == c.Disposition.REJECT:
            return self._rejects.add(queue, epoch, positions)
        lost_sessions = self._session.losses_told
        key = "settle", queue, epoch, disposition, transaction, excluded_consumer, annotations, lost_sessions
        if self._in_order:
            self._enter("settle" if transaction is None else transaction)
        batch = self._open.get(key)
        if batch is None:
            settle = c.SettleCommand(
                0, queue, epoch, (), disposition, transaction, 0, excluded_consumer, annotations
            )
            batch = self._begin(key, partial(self._make_settle, settle, lost_sessions), None, transaction)
        return self._add(key, batch, positions, 8 * len(positions))

    def _make_settle(
        self, settle: c.SettleCommand, lost_sessions: int, parts: list[_Part]
    ) -> c.SettleCommand:
        """`settle`: the command without its positions. `lost_sessions`: before the one in which they came."""
        if settle.transaction is None and self._session.lost_sessions != lost_sessions:
            text = f"deliveries of queue {settle.queue!r} from epoch {settle.delivery_epoch} are void: their session is lost"
            raise Rejected(ErrorCode.STALE_DELIVERY, text, queue=settle.queue)
        return replace(settle, positions=tuple(chain.from_iterable(parts)))

    def _enter(self, kind: Hashable) -> None:
        """What is of another kind must not overtake: the batches so far are complete."""
        if kind != self._kind:
            self._kind = kind
            self._open.clear()

    def _begin(
        self,
        key: Hashable,
        make: Callable[[list[_Part]], c.AnyCommand],
        target: tuple[str, str] | None,
        transaction: TransactionKey | None,
    ) -> _Batch:
        batch = _Batch(make, target, transaction)
        # A transaction may have no more places than one command.
        if target is not None and target[0] and transaction is None:
            batch.together = self.together(*target)
        self._batches.append(batch)
        self._open[key] = batch
        return batch

    def _add(self, key: Hashable, batch: _Batch, part: _Part, size: int) -> Confirmation:
        if batch.parts and (len(part) >= batch.together or size >= BATCH_BYTES_MAX):
            # Alone it may be just what sets take in one command.
            batch = self._begin(key, batch.make, batch.target, batch.transaction)
        confirmation: Confirmation = self._session.loop.create_future()
        batch.parts.append(part)
        batch.waiting.append(confirmation)
        batch.count += len(part)
        batch.size += size
        self._session.gathered_bytes += size + MESSAGE_BYTES * len(part)
        if batch.count >= batch.together or batch.size >= BATCH_BYTES_MAX:
            del self._open[key]
            self._session.has_complete = True
        self._session.write_soon()
        return confirmation

    def flush(self) -> None:
        """Submits all that has gathered, and of rejects that are in line what is next."""
        if self._batches:
            self._flush_batches()
        if self._rejects.waiting:
            self._rejects.flush()

    def _flush_batches(self) -> None:
        batches, self._batches = self._batches, []
        self._session.gathered_bytes = self._refused_bytes
        self._open.clear()
        self._kind = None
        if not self._in_order:
            self._last_keys.clear()
            batches.sort(key=attrgetter("is_settle"))
        for batch in batches:
            self._submit(batch)

    def publish_alone(
        self, exchange: str, routing_key: str, messages: Sequence[c.OutgoingMessage]
    ) -> Confirmation:
        """Tries one caller's messages again that were refused in a batch: in a command of their own, whose answer is the last
        word, and before all that gathers. In no transaction."""
        confirmation: Confirmation = self._session.loop.create_future()
        make = self._make_publish(exchange, routing_key, None)
        self._submit(_Batch(make, (exchange, routing_key), None, [messages], [confirmation]))
        return confirmation

    def leave_out(self, transaction: TransactionKey) -> None:
        """An operation of it was refused before it was handed in: it does not commit without."""
        self._session.leave_out(transaction)

    def flush_but_last_publish(self, transaction: TransactionKey) -> LastPublish | None:
        """As `flush`, but for what is to go with the commit of a transaction: its publish to a queue that is the last of all."""
        batch = self._batches[-1] if self._batches else None
        if batch is None or batch.transaction != transaction or batch.target is None or batch.target[0]:
            self.flush()
            return None
        self._batches.pop()
        self._session.gathered_bytes -= batch.bytes
        self._open.clear()
        self.flush()
        command = self._made(batch)
        if not isinstance(command, c.PublishCommand):
            return None
        self._enter_under_way(batch)
        return command, partial(self._answered_with_commit, batch)

    def _answered_with_commit(self, batch: _Batch, answer: CommandAnswer) -> None:
        """Each message went to the one queue."""
        self._answered(batch, Done(batch.count) if isinstance(answer, Done) else answer)

    def _submit(self, batch: _Batch) -> None:
        if (command := self._made(batch)) is not None:
            self._enter_under_way(batch)
            self._session.submit_for(command, partial(self._answered, batch))

    def _made(self, batch: _Batch) -> c.AnyCommand | None:
        """Its command; None where it makes none, and whoever waits for it has heard so."""
        try:
            return batch.make(batch.parts)
        except Exception as error:  # Arguments of any kind raise anything.
            if batch.transaction is not None:
                self.leave_out(batch.transaction)
            if not isinstance(error, Rejected):
                error = Rejected(ErrorCode.INVALID_ARGUMENT, f"it cannot be said: {error}")
            _fail(batch, error, Rejected)
            return None

    def _enter_under_way(self, batch: _Batch) -> None:
        if (line := batch.line) is not None:
            self._submitted += 1
            batch.number = self._submitted
            self._under_way[line] = self._under_way.get(line, 0) + 1

    def _answered(self, batch: _Batch, answer: CommandAnswer) -> None:
        line = batch.line
        is_last = True  # Nothing of its line is under way any more.
        if line is not None:
            left = self._under_way[line] - 1
            if left:
                self._under_way[line], is_last = left, False
            else:
                del self._under_way[line]
        if batch.target is not None and batch.target[0]:
            self._learn(batch.target, batch.count, answer)
        if self._refused_together and line in self._refused_together:
            self._end_refused(line, batch, answer, is_last)
        if isinstance(answer, Done):
            for confirmation in batch.waiting:
                if not confirmation.done():
                    confirmation.set_result(answer.value)
            return
        if not isinstance(answer, Rejected):
            _fail(batch, answer, type(answer))
            return
        if answer.code is ErrorCode.NOT_FOUND and batch.target is not None:
            self.not_found(*batch.target)
        # In a transaction the refusal has made it rollback-only: nothing is gained. Nor may it come behind what was sent since.
        is_shared = answer.code in _SHARED_REFUSALS and len(batch.parts) > 1 and batch.transaction is None
        if not is_shared:
            _fail(batch, answer, type(answer))
        elif line is None or is_last:
            self._submit_parts(batch)
        elif answer.code is ErrorCode.QUEUE_FULL:
            self._fail_together(batch, answer)
        else:
            self._keep_refused(line, batch, answer)

    def _keep_refused(self, line: tuple[str, str], batch: _Batch, refusal: Rejected) -> None:
        refused = self._refused_together.setdefault(line, [])
        insort(refused, (batch, refusal), key=_number_of)
        self._count_refused(batch, 1)
        while len(refused) > REFUSED_KEPT_MAX or (refused and self._refused_parts > REFUSED_PARTS_MAX):
            oldest, its_refusal = refused.pop(0)
            self._count_refused(oldest, -1)
            self._fail_together(oldest, its_refusal)
        if not refused:
            del self._refused_together[line]

    def _count_refused(self, batch: _Batch, sign: int) -> None:
        """It waits, or does not any more. Whoever asks for room waits for it as for what gathers."""
        self._refused_parts += sign * len(batch.parts)
        self._refused_bytes += sign * batch.bytes
        self._session.gathered_bytes += sign * batch.bytes

    def _end_refused(
        self, line: tuple[str, str], behind: _Batch, answer: CommandAnswer, is_last: bool
    ) -> None:
        """What was sent beside batches that were refused together is answered: the last of it, or something behind them that may
        have happened.
        """
        is_refused = isinstance(answer, Rejected) and behind.transaction is None
        if is_refused and not is_last:
            return
        refused = self._refused_together.pop(line)
        # What is later was refused before what is in front of it was answered.
        later = [each for each in refused if _number_of(each) > behind.number]
        if later and not is_last:
            self._refused_together[line] = later
            del refused[len(refused) - len(later) :]
        for batch, refusal in refused:
            self._count_refused(batch, -1)
            if is_refused or batch.number > behind.number:
                self._submit_parts(batch)
            else:
                self._fail_together(batch, refusal)

    def _submit_parts(self, batch: _Batch) -> None:
        for part, confirmation in zip(batch.parts, batch.waiting, strict=True):
            self._submit(_Batch(batch.make, batch.target, None, [part], [confirmation]))

    def _fail_together(self, batch: _Batch, refusal: Rejected) -> None:
        _fail(batch, refusal, Rejected if self._in_order else RefusedTogether)

    def _learn(self, target: tuple[str, str], count: int, answer: CommandAnswer) -> None:
        """A named exchange has led so many messages to as many queues as the answer says."""
        if isinstance(answer, Done) and count:
            now = self._session.loop.time()
            fan_out = self._fan_outs.get(target)
            if fan_out is None or max(fan_out.until, fan_out.refused_until) <= now:
                fan_out = self._begin_fan_out(target)
            most = COMMAND_PLACES_MAX * count // (2 * _GROWTH * max(answer.value, count))
            fan_out.together = min(max(most, _TOGETHER_MIN), fan_out.most)
            fan_out.until = now + FAN_OUT_SECONDS
        elif isinstance(answer, Rejected) and answer.code is ErrorCode.TOO_LARGE and count > 1:
            fan_out = self._begin_fan_out(target)
            fan_out.most = max(count // _REFUSED_PART, _TOGETHER_MIN)
            now = self._session.loop.time()
            fan_out.until, fan_out.refused_until = now + FAN_OUT_SECONDS, now + REFUSED_SECONDS

    def _begin_fan_out(self, target: tuple[str, str]) -> _FanOut:
        """Nothing is known of it; more is learned at once."""
        if len(self._fan_outs) >= FAN_OUTS_KEPT:
            self._fan_outs.clear()
        fan_out = self._fan_outs[target] = _FanOut()
        return fan_out


def _number_of(refused: tuple[_Batch, Rejected]) -> int:
    return refused[0].number


def _fail(batch: _Batch, error: Rejected | InDoubt, kind: type[Rejected | InDoubt]) -> None:
    for confirmation in batch.waiting:
        if not confirmation.done():
            confirmation.set_exception(kind(error.code, error.message, **error.details))
            confirmation.exception()  # Marked as seen: a confirmation need not be awaited.


def _all_of(parts: Sequence[Confirmation]) -> Confirmation:
    """Done when all parts are answered, with the sum of what they say. If some are refused and others not, that is in doubt."""
    whole: Confirmation = parts[0].get_loop().create_future()

    def answered(gathered: "asyncio.Future[list[int | BaseException]]") -> None:
        if whole.done():
            return  # Whoever waited for it was cancelled.
        answers = gathered.result()
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if not errors:
            whole.set_result(sum(answer for answer in answers if isinstance(answer, int)))
            return
        error = next((error for error in errors if isinstance(error, InDoubt)), errors[0])
        if isinstance(error, Rejected) and len(errors) < len(answers):
            error = InDoubt(error.code, f"a part of it was refused: {error.message}", **error.details)
        whole.set_exception(error)
        whole.exception()  # Marked as seen: a confirmation need not be awaited.

    asyncio.gather(*parts, return_exceptions=True).add_done_callback(answered)
    return whole
