"""The deliveries that a client has of one link, and what becomes of them (AMQP 1.0, 3.4 and 4.4.2).

Law: each delivery's outcome is told to the broker once, and to the client only when it stands; nothing is accepted that the
client has not. A delivery that is settled is forgotten at once: the engine uses its memory for the next one. A delivery is void
when its epoch is over or its session lost, until its message comes again: the broker hears nothing of it, because the session
that followed in the same epoch may hold the message, by the same name, for another client.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from lockstep.client.command_batches import CommandBatches, Confirmation, in_commands
from lockstep.client.set_session import SetSession
from lockstep.core.amqp.annotations import pairs_of
from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, QueuePosition
from services.proxy.amqp_transaction import AmqpTransaction
from services.proxy.delivery_room import DeliveryRoom
from services.proxy.engine_path import path
from services.proxy.engine_words import Handle, StateCode, Transactional, transactional
from services.proxy.reclaiming import VOIDED_AT_ONCE, Reclaims, voided_cost
from services.proxy.returning import Returning
from services.proxy.settings import MESSAGE_BYTES
from services.proxy.steps import Work

_DISPOSITIONS: dict[int, int] = {
    StateCode.ACCEPTED: Disposition.ACCEPT,
    StateCode.REJECTED: Disposition.REJECT,
    StateCode.RELEASED: Disposition.RELEASE,
    StateCode.MODIFIED: Disposition.FAIL,
}
_UNSAYABLE = ErrorCode.INVALID_ARGUMENT, ErrorCode.TOO_LARGE
_RETURNS = Disposition.RELEASE, Disposition.FAIL
_NOT_TERMINAL = 0, StateCode.RECEIVED
"""No state, or one that is no outcome (3.4.1): it says nothing of what becomes of a delivery until that is settled."""
WAITING_OUTCOME_BYTES = 2_400
"""What an outcome counts that waits for the end of its transaction, beside its annotations. Measured: 2,100
of one that its client has settled, and 2,800 in all of one that it has not."""
COPIES = 3
"""Of its annotations: the engine has them, as they came and as they were read, and so has what is done at the end."""
DeliveryName = tuple[Epoch, QueuePosition]
"""Of one queue's."""
Settling = Callable[[bool], Work]
"""Settles what a link that has ended has left, one by one, behind what goes back of it. It is told whether the engine has a
transport."""


class Owner(Protocol):
    """What they need of the connection."""

    unsettled: DeliveryRoom

    def transaction(self, name: bytes) -> AmqpTransaction | None: ...
    @property
    def reclaims(self) -> Reclaims: ...
    @property
    def returning(self) -> Returning: ...
    def wrote(self) -> None: ...


class Source(NamedTuple):
    """What a link receives of."""

    queue: str
    session: SetSession
    batches: CommandBatches
    selector: str = ""
    is_browser: bool = False
    is_exclusive: bool = False


class _Owed:
    """A delivery whose client waits for our settling it; the client may settle it before, or its transaction's end may."""

    __slots__ = ("handle", "said")

    def __init__(self, handle: Handle, said: Transactional | None) -> None:
        self.handle: Handle | None = handle
        """None: it is settled. The engine uses a settled delivery's memory for the next one, so its handle must not be used."""
        self.said = said
        """In which transaction, and what; None: in none."""


class _Retired:
    """A delivery of which the client has said in a transaction what becomes of it; until the broker knows."""

    __slots__ = ("is_void", "name", "waiting")

    def __init__(self, epoch: Epoch, position: QueuePosition, waiting: _Owed | None) -> None:
        self.name = epoch, position
        self.waiting = waiting
        """What waits for the transaction's end to be settled."""
        self.is_void = False


class ClientDeliveries:
    """Lives as long as its link, which drives it."""

    def __init__(self, owner: Owner, source: Source) -> None:
        self.source = source
        self.consumer = 0
        """The link's number in the session, from its opening on."""
        self._owner = owner
        self.sent: dict[Handle, DeliveryName] = {}
        """Deliveries that the client has and that are not settled."""
        self._stale: dict[QueuePosition, Handle] = {}
        """Those of them that are void."""
        self._reclaimed: set[QueuePosition] = set()
        """What was void and came again, whichever link it came to; until the broker knows what becomes of it."""
        self._owed: dict[Handle, _Owed] = {}
        """Deliveries of which the client has said what becomes of them, and that wait for our settling them."""
        self._settles: dict[tuple[Epoch, int], list[tuple[QueuePosition, _Owed | None]]] = {}
        """Outcomes of this turn: (epoch, disposition) -> positions, each with the delivery that waits for its confirmation."""
        self._said: dict[tuple[Epoch, int, int, bytes], list[QueuePosition]] = {}
        """What goes back with more than that: (epoch, disposition, excluded consumer, annotations) -> positions."""
        self._retired: dict[tuple[bytes, Epoch], list[_Retired]] = {}
        """Acceptances of this turn inside transactions."""
        self._untold: dict[tuple[Epoch, QueuePosition], _Retired] = {}
        """All of transactions that the broker does not know of yet, and that are not void."""
        self._rejected: dict[bytes, list[_Retired]] = {}
        """Rejections inside transactions that are open: they are looked at together before the commit."""
        self.begun: Handle | None = None
        """A delivery of which the engine has not all: settled before, it would pass for the whole."""
        self._settles_begun = False
        """It is to be settled when the engine has all of it."""
        self.left: list[DeliveryName] = []
        """What the client had not settled when the link ended, the last first; void ones are among it. Taken by `take_left`."""
        self._handles_left: list[Handle] = []
        """Their deliveries, if any is void."""
        self._stale_left: dict[QueuePosition, Handle] = {}
        """Those that were void."""
        self._reclaimed_left: set[QueuePosition] = set()
        """What had come again."""
        self._unsettled_left: dict[Handle, DeliveryName] = {}
        """What the client had not settled when the link ended, and the engine has: to be settled one by one."""
        self._unsettled_bytes = 0
        """Of the room for what is not settled, those that are the link's."""
        self._annotated_failures = 0
        """So many were told, and are not answered: one that is refused for its annotations is told once more, without."""
        self._failures_told: asyncio.Future[None] | None = None
        """Whoever waits until there are none."""
        self._is_over = False

    def end(self) -> None:
        """The link is gone. What is begun is aborted.

        This is one step, and there may be some hundred thousand deliveries: `take_left`, `forget_void` and `settle_left` do
        the rest.
        """
        self._is_over = True
        self.left = list(self.sent.values())
        self.left.reverse()
        self._stale_left = self._stale
        if self._stale:
            self._handles_left = list(self.sent)
            self._handles_left.reverse()
        self._reclaimed_left = self._reclaimed
        self._stale, self._reclaimed = {}, set()
        if self.begun is not None:
            self.abort()
        self._unsettled_left, self.sent = self.sent, {}

    def take_left(self, count: int) -> list[DeliveryName]:
        """Behind `end`: the first of those that are `left`, but for what is void."""
        names = self.left[: -count - 1 : -1]
        del self.left[-count:]
        if not self._stale_left:
            return names
        handles = self._handles_left[: -count - 1 : -1]
        del self._handles_left[-count:]
        stale = self._stale_left
        return [name for handle, name in zip(handles, names, strict=True) if stale.get(name[1]) != handle]

    def forget_void(self) -> Iterator[None]:
        """Behind `end`: nobody expects any more that it has what comes again."""
        for left in self._stale_left, self._reclaimed_left:
            for part in in_commands(list(left)):
                self._owner.reclaims.forget(self.source.queue, part, self)
                yield

    def settle_left(self, has_transport: bool) -> Iterator[None]:
        """Behind `end`: settles one by one what the engine would else settle at once, when it frees the link. What it has of them
        and has not sent it lets go of, while it `has_transport`: else it keeps that until the session ends.
        """
        settle = path.abort if has_transport else path.settle
        for left in self._unsettled_left, self._owed:
            while left:
                delivery, _ = left.popitem()
                settle(delivery)
                yield
        self.count_unsettled()

    @property
    def unsettled(self) -> int:
        """How many deliveries of the link the engine has that are not settled."""
        return len(self.sent) + len(self._owed) + len(self._unsettled_left) + self._settles_begun

    def count_unsettled(self) -> None:
        """Those have room of their own: it is free when they are settled, whoever has done that."""
        held = MESSAGE_BYTES * self.unsettled
        if held != self._unsettled_bytes:
            self._owner.unsettled.take(held - self._unsettled_bytes)
            self._unsettled_bytes = held

    # --- one that is begun ---

    def finish(self) -> None:
        """The engine has all of it."""
        begun, self.begun = self.begun, None
        if self._settles_begun:
            self._settles_begun = False
            path.settle(begun)
            self.count_unsettled()

    def finish_settled(self) -> tuple[Epoch, QueuePosition]:
        """The same of one that is settled with that; answers which it was."""
        begun, self.begun = self.begun, None
        epoch, position = self.sent[begun]
        self._forget(begun, position)
        self._told(position)
        path.settle(begun)
        return epoch, position

    def abort(self) -> None:
        """It has no end, and its client is not to take what it has for the whole. That settles it: nothing is told of it."""
        begun, self.begun = self.begun, None
        self._settles_begun = False
        self.sent.pop(begun, None)
        self._owed.pop(begun, None)
        path.abort(begun)

    def _settle(self, delivery: Handle) -> None:
        if delivery == self.begun:
            self._settles_begun = True
        else:
            path.settle(delivery)

    # --- failover ---

    def void(self, epoch: Epoch, positions: Collection[QueuePosition]) -> Iterator[int]:
        """The epoch is over in which these were delivered, or their session is lost. In pieces: what the client says of others
        meanwhile the broker refuses, or hears nothing of (`_check`), for the epoch is over.
        """
        handles = list(self.sent)
        for first in range(0, len(handles), VOIDED_AT_ONCE):
            sent, stale, some = self.sent, {}, handles[first : first + VOIDED_AT_ONCE]
            for handle in some:
                name = sent.get(handle)
                if name is not None and name[0] == epoch and name[1] in positions:
                    stale[name[1]] = handle
            self._stale.update(stale)
            self._reclaimed.difference_update(stale)
            self._owner.reclaims.expect(self.source.queue, stale, self)
            yield voided_cost(len(some))
        # Behind them: what the client has said of one of them since is among these.
        untold = list(self._untold)
        for first in range(0, len(untold), VOIDED_AT_ONCE):
            names = untold[first : first + VOIDED_AT_ONCE]
            for name in names:
                if name[0] == epoch and name[1] in positions and (retired := self._untold.pop(name, None)):
                    retired.is_void = True
                    self._reclaimed.discard(name[1])
            yield voided_cost(len(names))

    def reclaim(self, epoch: Epoch, position: QueuePosition) -> bool:
        """A message is delivered again that its client may still have; False: it has not."""
        handle = self._stale.pop(position, None)
        if handle is None or self.sent.get(handle, (epoch, 0))[1] != position:
            return False
        self.sent[handle] = epoch, position
        self._reclaimed.add(position)
        return True

    def _forget(self, delivery: Handle, position: QueuePosition) -> bool:
        """The client has said what becomes of it; answers whether it is void. If its message comes again, it is not this one."""
        del self.sent[delivery]
        if self._stale.get(position) != delivery:
            return False
        del self._stale[position]
        self._owner.reclaims.forget(self.source.queue, (position,), self)
        return True

    def _told(self, position: QueuePosition) -> None:
        """The broker knows what becomes of it."""
        if position in self._reclaimed:
            self._reclaimed.remove(position)
            self._owner.reclaims.forget(self.source.queue, (position,), self)

    # --- outcomes ---

    def disposition(self, delivery: Handle) -> bool:
        """The client said something of a delivery; answers whether the link is to be flushed at the end of the turn."""
        held = self.sent.get(delivery)
        state, is_settled = path.remote_state(delivery), path.is_settled(delivery)
        if held is None:
            owed = self._owed.get(delivery)
            if owed is not None and state not in _NOT_TERMINAL:
                self._said_again(delivery, owed, state)
            if is_settled:
                if owed is not None:
                    del self._owed[delivery]
                    owed.handle = None
                self._settle(delivery)
            return is_settled
        if not is_settled and state in _NOT_TERMINAL:
            return False
        epoch, position = held
        if state == StateCode.TRANSACTIONAL and not self.source.is_browser:
            return self._retire(delivery, epoch, position, is_settled)
        disposition = _DISPOSITIONS.get(state, Disposition.RELEASE)
        # A browser has copies: whatever is said of them, in a transaction or not, the message is somebody else's (3.5.7).
        if self._forget(delivery, position) or self.source.is_browser:
            self._settle(delivery)
            self._owner.wrote()
            return True
        self._told(position)
        if state == StateCode.MODIFIED:
            has_failed, is_excluded = path.remote_modified(delivery)
            disposition = Disposition.FAIL if has_failed else Disposition.RELEASE
            annotations = path.remote_annotations(delivery)
            if is_excluded or annotations:
                name = epoch, disposition, self.consumer if is_excluded else 0, annotations
                self._said.setdefault(name, []).append(position)
                self._settle(delivery)
                return True
        waiting = self._settle_or_owe(delivery, is_settled)
        self._settles.setdefault((epoch, disposition), []).append((position, waiting))
        return True

    def _retire(self, delivery: Handle, epoch: Epoch, position: QueuePosition, is_settled: bool) -> bool:
        """An outcome inside a transaction (4.4.2); answers as `disposition` does."""
        said = _transactional_of(delivery)
        if said is not None and said.outcome in _NOT_TERMINAL and not is_settled:
            return False
        found = self._owner.transaction(said.transaction) if said is not None else None
        is_void = self._forget(delivery, position)
        if said is None or found is None:
            # Of no transaction that is open: it did not happen, and the message is free again.
            self._settle(delivery)
            if is_void:
                return True
            self._told(position)
            self._settles.setdefault((epoch, Disposition.RELEASE), []).append((position, None))
            return True
        retired = _Retired(epoch, position, self._settle_or_owe(delivery, is_settled, said))
        if is_void:
            retired.is_void = True
        else:
            self._untold[retired.name] = retired
        if said.outcome == StateCode.ACCEPTED:
            self._retired.setdefault((said.transaction, epoch), []).append(retired)
            return True
        disposition = _DISPOSITIONS.get(said.outcome, Disposition.RELEASE)
        if said.outcome == StateCode.MODIFIED and not said.has_failed:
            disposition = Disposition.RELEASE
        lost_sessions = self.source.session.losses_told
        if said.outcome == StateCode.REJECTED:
            # What is void goes out again: as whoever releases it wants, but not for whoever says that nobody is to get it.
            rejected = self._rejected.setdefault(said.transaction, [])
            if not rejected:
                found.before_commit(lambda: self._check(rejected, lost_sessions))
            rejected.append(retired)

        excluded_consumer = self.consumer if said.is_undeliverable else 0
        size = WAITING_OUTCOME_BYTES + COPIES * len(said.annotations)
        room = self._owner.unsettled
        room.take(size)

        def end(is_committed: bool) -> None:
            room.give_back(size)
            self._rejected.pop(said.transaction, None)
            known = self._tell([retired])
            # Once the session is lost the next one may hold it for another client; a link that is over does not hear of that.
            if known and self.source.session.lost_sessions == lost_sessions:
                if is_committed:
                    self._give_back(epoch, known, disposition, excluded_consumer, said.annotations)
                else:
                    self.give(epoch, known, Disposition.RELEASE)
            if retired.waiting is not None:
                self._settle_owed([retired.waiting])

        found.at_end(end)
        return True

    def _said_again(self, delivery: Handle, owed: _Owed, state: int) -> None:
        """An outcome of a delivery that has one already, which stands: the transaction in which the other one was said cannot
        commit (4.4.2), nor can one in which it had been said and that is still open when its client says something else.
        """
        said = _transactional_of(delivery) if state == StateCode.TRANSACTIONAL else None
        if said == owed.said or (said is not None and said.outcome in _NOT_TERMINAL):
            return
        first, second = owed.said, said
        if second is not None and (first is None or first.transaction != second.transaction):
            failed = second
        elif first is not None:
            failed = first
        else:
            return
        if (found := self._owner.transaction(failed.transaction)) is not None:
            text = (
                f"a delivery of queue {self.source.queue!r} has an outcome already, and was given another one"
            )
            found.fail(Rejected(ErrorCode.ILLEGAL_STATE, text, queue=self.source.queue))

    def flush(self) -> None:
        """Tells the broker the outcomes since the last time; what the client has settled is room for others."""
        if self._settles:
            settles, self._settles = self._settles, {}
            for (epoch, disposition), all_settled in settles.items():
                for settled in in_commands(all_settled):
                    confirmation = self.give(epoch, [position for position, _ in settled], disposition)
                    waiting = [owed for _, owed in settled if owed is not None]
                    if waiting:
                        self._answer_when_done(confirmation, waiting, disposition)
        if self._said:
            all_said, self._said = self._said, {}
            for (epoch, disposition, excluded_consumer, annotations), positions in all_said.items():
                self._give_back(epoch, positions, disposition, excluded_consumer, annotations)
        if self._retired:
            retired, self._retired = self._retired, {}
            for (name, epoch), entries in retired.items():
                for part in in_commands(entries):
                    self._retire_batch(name, epoch, part)
        self.count_unsettled()

    def _tell(self, entries: Sequence[_Retired]) -> list[QueuePosition]:
        """Those that are not void: the broker knows of them from now on."""
        told = [retired for retired in entries if not retired.is_void]
        for retired in told:
            if self._untold.get(retired.name) is retired:
                del self._untold[retired.name]
                self._told(retired.name[1])
        return [retired.name[1] for retired in told]

    def _check(self, entries: Sequence[_Retired], lost_sessions: int) -> None:
        """Raises `Rejected` if one of them is void, told so or not yet, or the session that held them when `lost_sessions` were
        lost is lost, too: a link that is over hears nothing of that."""
        session = self.source.session
        is_lost = session.lost_sessions != lost_sessions
        for retired in entries:
            epoch, _ = retired.name
            if retired.is_void or is_lost or session.is_over(epoch):
                queue = self.source.queue
                text = f"deliveries of queue {queue!r} from epoch {epoch} are void"
                raise Rejected(ErrorCode.STALE_DELIVERY, text, queue=queue, delivery_epoch=epoch)

    def _retire_batch(self, name: bytes, epoch: Epoch, entries: Sequence[_Retired]) -> None:
        """Acceptances inside a transaction, no more than are taken or refused together."""
        waiting = [retired.waiting for retired in entries if retired.waiting is not None]
        found = self._owner.transaction(name)
        if found is None:
            if free := self._tell(entries):
                self.give(epoch, free, Disposition.RELEASE)
            self._settle_owed(waiting)
            return

        def taken(error: BaseException | None) -> None:
            known = self._tell(entries)
            if error is not None:
                # Still in the session's hands, unless that is lost: of what was under way then nobody says that it is void.
                if known and self.source.session.lost_sessions == lost_sessions:
                    self.give(epoch, known, Disposition.RELEASE)
            elif waiting and not self._is_over:
                state = transactional(name, StateCode.ACCEPTED)
                for owed in waiting:
                    if owed.handle is not None:
                        path.update(owed.handle, state)
                self._owner.wrote()

        lost_sessions = self.source.session.losses_told
        place = self.source.session, self.source.batches
        positions = [retired.name[1] for retired in entries]

        def check() -> None:
            self._check(entries, lost_sessions)

        found.accept(place, self.source.queue, epoch, positions, check, taken)
        if waiting:
            found.at_end(lambda _: self._settle_owed(waiting))

    def _answer_when_done(self, confirmation: Confirmation, waiting: list[_Owed], disposition: int) -> None:
        """The client waits for our settlement: it follows the broker's word."""

        is_accept = disposition == Disposition.ACCEPT

        def answer(done: Confirmation) -> None:
            if self._is_over:
                return
            self._settle_owed(waiting, is_accepted=done.exception() is None and is_accept)

        confirmation.add_done_callback(answer)

    def _settle_or_owe(
        self, delivery: Handle, is_settled: bool, said: Transactional | None = None
    ) -> _Owed | None:
        """Settles what its client has settled; of the rest the client waits for that."""
        if is_settled:
            self._settle(delivery)
            return None
        owed = self._owed[delivery] = _Owed(delivery, said)
        return owed

    def _settle_owed(self, waiting: Sequence[_Owed], *, is_accepted: bool = False) -> None:
        if self._is_over:
            return
        for owed in waiting:
            handle, owed.handle = owed.handle, None
            if handle is None:
                continue
            del self._owed[handle]
            if is_accepted:
                path.accept(handle)
            else:
                self._settle(handle)
        self.count_unsettled()
        self._owner.wrote()

    def _give_back(
        self,
        epoch: Epoch,
        positions: Sequence[QueuePosition],
        disposition: int,
        excluded_consumer: int,
        annotations: bytes,
    ) -> None:
        """Tells the broker what goes back, and what its client says of it: without that, if it is more than a broker keeps."""
        lost_sessions = self.source.session.losses_told

        def without(done: Confirmation) -> None:
            error = done.exception()
            is_refused = isinstance(error, Rejected) and error.code in _UNSAYABLE
            if is_refused and self.source.session.lost_sessions == lost_sessions:
                self.give(epoch, positions, disposition, excluded_consumer)

        try:
            pairs = pairs_of(annotations) if annotations else b""
        except Rejected:
            pairs = b""
        confirmation = self.give(epoch, positions, disposition, excluded_consumer, pairs)
        if pairs:
            confirmation.add_done_callback(without)
            if disposition == Disposition.FAIL:
                self._annotated_failures += 1
                confirmation.add_done_callback(self._failure_told)

    def _failure_told(self, _: Confirmation) -> None:
        self._annotated_failures -= 1
        if not self._annotated_failures and self._failures_told is not None:
            told, self._failures_told = self._failures_told, None
            told.set_result(None)

    def failures_told(self) -> "asyncio.Future[None] | None":
        """Done when none has to be told once more of those that the broker was told of until now; None: there are none. To be
        asked once.
        """
        if self._annotated_failures:
            self._failures_told = asyncio.get_running_loop().create_future()
        return self._failures_told

    def give(
        self,
        epoch: Epoch,
        positions: Sequence[QueuePosition],
        disposition: int,
        excluded_consumer: int = 0,
        annotations: bytes = b"",
    ) -> Confirmation:
        """Tells the broker what becomes of messages; the excluded consumer does not get them again, whoever gets them is told
        the annotations.
        """
        queue = self.source.queue
        confirmation = self.source.batches.settle(
            queue, epoch, positions, disposition, None, excluded_consumer, annotations
        )
        if disposition in _RETURNS:
            self._owner.returning.note(queue, confirmation)
        return confirmation


def _transactional_of(delivery: Handle) -> Transactional | None:
    """What its client says in a transaction; None: nobody can read that."""
    try:
        return path.remote_transaction(delivery)
    except ValueError:
        return None
