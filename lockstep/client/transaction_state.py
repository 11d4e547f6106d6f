"""How far a transaction is, as its caller holds it."""

from enum import Enum


class TransactionState(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    IN_DOUBT = "in doubt"
