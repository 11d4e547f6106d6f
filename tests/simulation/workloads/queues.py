"""The queues of every set, declared by every client at its start (a declaration of what is there changes nothing)."""

from lockstep.core.commands import (
    BindCommand,
    DeclareExchangeCommand,
    DeclareQueueCommand,
    QueueOptions,
)
from lockstep.core.ids import SetName
from tests.simulation.client import ClientSession
from tests.simulation.promises import Actor

WORK = ("in", "a", "b")
"""Transactions move messages between these."""


def name(set_name: SetName, queue: str) -> str:
    """Names are unique in the cluster."""
    return f"{set_name}.{queue}"


def options(set_name: SetName) -> dict[str, QueueOptions]:
    """Queue -> options."""
    dead = name(set_name, "dead")
    return {
        "in": QueueOptions(),
        "a": QueueOptions(),
        "b": QueueOptions(),
        "dead": QueueOptions(),
        "fleeting": QueueOptions(is_durable=False),
        "full": QueueOptions(length_max=6),
        "evicting": QueueOptions(length_max=6, is_evicting=True),
        "short": QueueOptions(message_ttl_ms=700, dead_letter_exchange="", dead_letter_key=dead),
        "retry": QueueOptions(delivery_count_max=2, dead_letter_exchange="", dead_letter_key=dead),
    }


def declare(session: ClientSession) -> Actor:
    """Declare everything; ends when all of it has been answered."""
    set_name = session.set_name
    promises = [
        session.submit(DeclareQueueCommand(0, name(set_name, queue), chosen))
        for queue, chosen in options(set_name).items()
    ]
    fan = name(set_name, "fan")
    promises.append(session.submit(DeclareExchangeCommand(0, fan, "fanout", True)))
    yield promises[-1]
    promises = [session.submit(BindCommand(0, fan, name(set_name, queue), "")) for queue in ("a", "b")]
    yield promises[-1]
