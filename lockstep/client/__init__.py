"""The client: asyncio sessions that survive failover, with a blocking façade (`lockstep.client.blocking`)."""

from lockstep.client.client import Client, connect
from lockstep.client.consumer import Consumer, Message
from lockstep.client.distributed_transaction import DistributedTransaction
from lockstep.client.heuristics import HeuristicallyRolledBack, HeuristicHazard
from lockstep.client.outcome import Hazard, Outcome, OutcomeState
from lockstep.client.session import Session
from lockstep.client.session_settings import SessionSettings
from lockstep.client.transaction import Transaction
from lockstep.client.transaction_state import TransactionState
from lockstep.core.commands import (
    OutgoingMessage,
    QueueOptions,
)
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected

__all__ = [
    "Client",
    "Consumer",
    "DistributedTransaction",
    "ErrorCode",
    "Hazard",
    "HeuristicHazard",
    "HeuristicallyRolledBack",
    "InDoubt",
    "LockstepError",
    "Message",
    "Outcome",
    "OutcomeState",
    "OutgoingMessage",
    "QueueOptions",
    "Rejected",
    "Session",
    "SessionSettings",
    "Transaction",
    "TransactionState",
    "connect",
]
