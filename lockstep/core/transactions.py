"""Transactions: all that are open or prepared in one resource set's state.

Law: a transaction is here from the first record that names it to the record that ends it, then among the outcomes; before that
its primary alone may know it, by its name. An open one ends with its epoch (DESIGN R12) unless that is handed over (T8), so an
unknown key of an epoch before those never opens anything.
"""

from collections.abc import Iterator
from typing import NamedTuple

from lockstep.core.ids import LogIndex, QueueId, SessionKey, TransactionKey
from lockstep.core.records import RollbackReason
from lockstep.core.taking_apart import emptied, length_of
from lockstep.core.tx_buffer import DtxBuffer, TxBuffer, cost_of
from lockstep.core.xa import BranchState


class Undone(NamedTuple):
    """An open branch that was rolled back by nobody who knows its xid: by its time-out, a refusal, a failover."""

    key: TransactionKey
    reason: int
    """A `RollbackReason`."""
    ended_at: LogIndex
    """Of the record that did it."""

    @property
    def state(self) -> BranchState:
        """What a verb finds."""
        return BranchState.TIMED_OUT if self.reason == RollbackReason.TIMED_OUT else BranchState.ROLLED_BACK


class Transactions:
    """Open and prepared transactions by key and by xid; the state that owns it alone changes it."""

    __slots__ = ("_by_session", "_by_xid", "_open", "_prepared", "_touching", "live", "undone")

    def __init__(self) -> None:
        self.live: dict[TransactionKey, TxBuffer] = {}
        self._by_xid: dict[bytes, TransactionKey] = {}
        self._by_session: dict[SessionKey, set[TransactionKey]] = {}
        """Open branches that a session is associated with."""
        self._open: dict[TransactionKey, TxBuffer] = {}
        self._prepared: dict[TransactionKey, TxBuffer] = {}
        self._touching: dict[QueueId, dict[TransactionKey, None]] = {}
        """Prepared transactions that touch a queue: there may be very many, and few of them touch the same."""
        self.undone: dict[bytes, Undone] = {}
        """By xid, until somebody hears it or outcomes of that age are forgotten. Transient, as open branches are."""

    def get(self, key: TransactionKey) -> TxBuffer | None:
        return self.live.get(key)

    def find_xid(self, xid: bytes) -> TxBuffer | None:
        """The open or prepared branch of this name."""
        key = self._by_xid.get(xid)
        return self.live[key] if key is not None else None

    def find_branch(self, xid: bytes) -> DtxBuffer | None:
        """The same, as a branch."""
        buffer = self.find_xid(xid)
        assert buffer is None or isinstance(buffer, DtxBuffer), buffer
        return buffer

    def forget_undone(self, floor: LogIndex) -> None:
        """Forget the branches that were undone at or below `floor`."""
        self.undone = {xid: undone for xid, undone in self.undone.items() if undone.ended_at > floor}

    def add(self, buffer: TxBuffer) -> None:
        """Add a transaction, or replace it by what is now known of it."""
        self.live[buffer.key] = buffer
        if buffer.xid:
            self._by_xid[buffer.xid] = buffer.key
        if buffer.is_prepared:
            self.note_prepared(buffer)
        else:
            self._open[buffer.key] = buffer

    def note_prepared(self, buffer: TxBuffer) -> None:
        """A transaction is prepared now, or touches more than was known."""
        self._open.pop(buffer.key, None)
        self._prepared[buffer.key] = buffer
        for queue in buffer.touched:
            self._touching.setdefault(queue, {})[buffer.key] = None

    def retouch(self, buffer: TxBuffer, touched: set[QueueId]) -> None:
        """A prepared transaction touches these queues, and no others any more."""
        self._touches_no_more(buffer)
        buffer.touched = touched
        self.note_prepared(buffer)

    def _touches_no_more(self, buffer: TxBuffer) -> None:
        for queue in buffer.touched:
            touching = self._touching[queue]
            del touching[buffer.key]
            if not touching:
                del self._touching[queue]

    def associate(self, branch: DtxBuffer, session: SessionKey, is_suspended: bool) -> None:
        """A session works in an open branch, or has suspended that."""
        branch.associations[session] = is_suspended
        self._by_session.setdefault(session, set()).add(branch.key)

    def dissociate(self, branch: DtxBuffer, session: SessionKey) -> None:
        """A session does not work in a branch any more."""
        if branch.associations.pop(session, None) is None:
            return
        keys = self._by_session[session]
        keys.discard(branch.key)
        if not keys:
            del self._by_session[session]

    def dissociate_all(self, branch: DtxBuffer) -> None:
        """Nobody works in a branch any more."""
        for session in list(branch.associations):
            self.dissociate(branch, session)

    def take_apart(self) -> Iterator[int]:
        """Nobody has this state any more: leave none, in steps that say what they cost (`taking_apart`)."""
        for others in (self._by_xid, self._open, self._prepared, self.undone):
            yield from emptied(others)
        for by_part in (self._by_session, self._touching):
            yield from emptied(by_part, length_of)
        while self.live:
            _, buffer = self.live.popitem()
            yield from emptied(buffer.operations, cost_of)
            yield from emptied(buffer.shares, length_of)
            yield 1

    def remove(self, buffer: TxBuffer) -> None:
        if isinstance(buffer, DtxBuffer):
            self.dissociate_all(buffer)
        if self._open.pop(buffer.key, None) is None:
            del self._prepared[buffer.key]
            self._touches_no_more(buffer)
        del self.live[buffer.key]
        if self._by_xid.get(buffer.xid) == buffer.key:
            del self._by_xid[buffer.xid]

    def identify(self, buffer: TxBuffer, xid: bytes) -> DtxBuffer:
        """The buffer as the branch `xid`: itself if that was known."""
        if isinstance(buffer, DtxBuffer) and buffer.xid == xid:
            return buffer
        self.remove(buffer)
        branch = DtxBuffer.of(buffer, xid)
        self.add(branch)
        return branch

    def open(self) -> list[TxBuffer]:
        """All that are not prepared, by key."""
        return [self._open[key] for key in sorted(self._open)]

    def open_keys(self) -> list[TransactionKey]:
        """Of all that are not prepared, ascending."""
        return sorted(self._open)

    def open_touching(self, queue: QueueId) -> list[TxBuffer]:
        """Those that are not prepared and name this queue, in no order."""
        return [buffer for buffer in self._open.values() if queue in buffer.touched]

    def prepared(self) -> list[TxBuffer]:
        """All that are prepared, by key."""
        return [self._prepared[key] for key in sorted(self._prepared)]

    def prepared_keys(self) -> list[TransactionKey]:
        """Of all that are prepared, ascending."""
        return sorted(self._prepared)

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def prepared_count(self) -> int:
        return len(self._prepared)

    def is_touched(self, queue: QueueId) -> bool:
        """Whether operations of a prepared transaction name this queue."""
        return queue in self._touching

    def prepared_touching(self, queue: QueueId) -> list[TransactionKey]:
        """Prepared transactions whose operations name this queue, ascending."""
        return sorted(self._touching.get(queue, ()))

    def branches_of(self, session: SessionKey) -> list[DtxBuffer]:
        """Open branches that this session is associated with, by key."""
        branches = [self.live[key] for key in sorted(self._by_session.get(session, ()))]
        return [branch for branch in branches if isinstance(branch, DtxBuffer)]
