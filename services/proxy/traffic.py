"""What has gone through a proxy worker: messages in and out, logins, ends of transactions, for /metrics.

Law: counters only grow, and grow once for a batch.
"""

from enum import StrEnum

from lockstep.core.errors import InDoubt, LockstepError


class End(StrEnum):
    """What became of messages that were sent, or of a transaction that was declared, and of a batch of them alike."""

    DONE = "done"
    """Messages: the brokers have them, in their transaction if they are of one. Transactions: committed, branches prepared."""
    REFUSED = "refused"
    """It did not happen: a transaction was rolled back, whoever wanted that."""
    IN_DOUBT = "in_doubt"


def end_of(error: BaseException | None) -> End:
    """Of something that ended with this error, or without one."""
    if error is None:
        return End.DONE
    return End.IN_DOUBT if isinstance(error, InDoubt) or not isinstance(error, LockstepError) else End.REFUSED


class Traffic:
    """Lives as long as its worker."""

    def __init__(self) -> None:
        self.messages_in = dict.fromkeys(End, 0)
        self.messages_out = 0
        self.transactions = dict.fromkeys(End, 0)
        self.logins = 0
        """Connections that got past SASL."""
