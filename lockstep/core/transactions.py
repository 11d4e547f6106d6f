"""Transactions: all that are open or prepared in one resource set's state.

Law: a transaction is here from the first record that names it to the record that ends it, then among the outcomes. An open
one ends with its epoch (DESIGN R12), so an unknown key of another epoch than the present one never opens anything.
"""

from lockstep.core.ids import SessionKey, TransactionKey
from lockstep.core.transaction_states import TransactionState
from lockstep.core.tx_buffer import DtxBuffer, TxBuffer


class Transactions:
    """Open and prepared transactions by key and by xid; the state that owns it alone changes it."""

    __slots__ = ("_by_xid", "live")

    def __init__(self) -> None:
        self.live: dict[TransactionKey, TxBuffer] = {}
        self._by_xid: dict[bytes, TransactionKey] = {}

    def get(self, key: TransactionKey) -> TxBuffer | None:
        return self.live.get(key)

    def find_xid(self, xid: bytes) -> TxBuffer | None:
        """The open or prepared branch of this name."""
        key = self._by_xid.get(xid)
        return self.live[key] if key is not None else None

    def add(self, buffer: TxBuffer) -> None:
        """Add a transaction, or replace it by what is now known of it."""
        self.live[buffer.key] = buffer
        if buffer.xid:
            self._by_xid[buffer.xid] = buffer.key

    def remove(self, buffer: TxBuffer) -> None:
        del self.live[buffer.key]
        if self._by_xid.get(buffer.xid) == buffer.key:
            del self._by_xid[buffer.xid]

    def identify(self, buffer: TxBuffer, xid: bytes) -> TxBuffer:
        """The buffer as the branch `xid`: itself if that was known."""
        if isinstance(buffer, DtxBuffer) and buffer.xid == xid:
            return buffer
        self.remove(buffer)
        branch = DtxBuffer.of(buffer, xid)
        self.add(branch)
        return branch

    def open(self) -> list[TxBuffer]:
        """All that are not prepared, by key."""
        return self._in(TransactionState.OPEN)

    def prepared(self) -> list[TxBuffer]:
        """All that are prepared, by key."""
        return self._in(TransactionState.PREPARED)

    def of_session(self, session: SessionKey) -> list[TxBuffer]:
        """All that this session began and that are open or prepared, by key."""
        return [buffer for _, buffer in sorted(self.live.items()) if buffer.session == session]

    def _in(self, state: TransactionState) -> list[TxBuffer]:
        return [buffer for _, buffer in sorted(self.live.items()) if buffer.state is state]
