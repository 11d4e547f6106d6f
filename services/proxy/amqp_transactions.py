"""The transactions of one connection, by the names that it gave them.

Law: a name is used once; a transaction that was discharged, or whose coordinator link is gone, is known no longer.
"""

from lockstep.client.session import Session
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.xid import Xid
from services.proxy.amqp_transaction import AmqpTransaction, Work
from services.proxy.branch_work import BranchWork
from services.proxy.settings import ProxyLimits


class AmqpTransactions:
    """Lives as long as its connection."""

    def __init__(self, session: Session, limits: ProxyLimits) -> None:
        self._session = session
        self._limits = limits
        self._open: dict[bytes, AmqpTransaction] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def declare(self, global_id: bytes | None) -> AmqpTransaction:
        """Begins a transaction, or the branch that `global_id` names. Raises `Rejected`: UNAVAILABLE (too many),
        INVALID_ARGUMENT (no xid)."""
        if len(self._open) >= self._limits.transactions_max:
            text = f"{len(self._open)} transactions are open"
            raise LimitReached("transactions_max", ErrorCode.UNAVAILABLE, text)
        seconds = self._limits.transaction_seconds
        work: Work
        if global_id is None:
            # Its time-out is kept here: with one at the set it could not be taken from those that are begun beforehand. Over
            # several sets coordinators and sets keep one, too, from when it is: over later, unless they take none so long.
            longest = self._limits.wide_seconds_max
            wide_seconds = min(seconds or longest, longest)
            work = self._session.transaction(wide_timeout_ms=int(wide_seconds * 1000))
        else:
            branch_seconds = min(seconds, self._limits.branch_seconds_max)
            work = BranchWork(self._session, _xid(global_id), int(branch_seconds * 1000))
        self._last += 1
        transaction = AmqpTransaction(self._last.to_bytes(8, "big"), work, seconds)
        self._open[transaction.name] = transaction
        return transaction

    def get(self, name: bytes) -> AmqpTransaction | None:
        """The open transaction of that name."""
        return self._open.get(name)

    def forget(self, transaction: AmqpTransaction) -> None:
        """It is being ended."""
        self._open.pop(transaction.name, None)


def _xid(encoded: bytes) -> Xid:
    try:
        return Xid.decode(encoded)
    except ValueError as error:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"global-id: {error}") from error
