"""Secrets of callers' transactions: by what a broker knows whose a transaction is. Names, which are counted, do not say that.

Law: a secret is told once, to who began the transaction. It is made of the transaction's name and of a key of this process, so
that nothing has to be kept, nor replicated: what callers have open is open at one primary alone, and the next one rolls it back.
"""

import hmac
import secrets

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SetName, TransactionKey, transaction_id

SECRET_BYTES = 16
"""Nobody guesses so many."""


class CallerSecrets:
    """Lives as long as the process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(SECRET_BYTES)

    def secret_of(self, set_name: SetName, key: TransactionKey) -> bytes:
        """For who has begun it, and nobody else."""
        return hmac.digest(self._key, transaction_id(set_name, key).encode(), "sha256")[:SECRET_BYTES]

    def is_secret_of(self, set_name: SetName, key: TransactionKey, secret: bytes) -> bool:
        """Whether whoever says that has begun the transaction."""
        return hmac.compare_digest(self.secret_of(set_name, key), secret)

    def check(self, set_name: SetName, key: TransactionKey, secret: bytes) -> None:
        """Raises `Rejected` UNAUTHORIZED for whoever has not begun the transaction."""
        if not self.is_secret_of(set_name, key, secret):
            raise unauthorized(set_name, key)


def unauthorized(set_name: SetName, key: TransactionKey) -> Rejected:
    """What whoever is not its caller hears of a transaction that is open."""
    name = transaction_id(set_name, key)
    text = f"transaction {name} is open, and somebody else's: whoever began it has its secret, or its session"
    return Rejected(ErrorCode.UNAUTHORIZED, text, transaction=name)
