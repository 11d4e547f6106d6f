"""Plain publishes: batches for one queue or, through a fanout exchange, for two; durable and not."""

from lockstep.core.commands import (
    OutgoingMessage,
    PublishCommand,
)
from lockstep.core.ids import TransactionKey
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from tests.simulation.client import ClientSession
from tests.simulation.colours import COLOURS, PROPERTIES
from tests.simulation.promises import Actor
from tests.simulation.workloads.queues import name


def messages(
    session: ClientSession, count: int, is_durable: bool = True, ttl_ms: int = 0
) -> tuple[OutgoingMessage, ...]:
    """New messages with bodies that nobody else has."""
    size = session.world.options.body_bytes_max
    return tuple(
        OutgoingMessage(
            _properties(session), session.client.body(size), is_durable, ttl_ms, (), _priority(session)
        )
        for _ in range(count)
    )


def _properties(session: ClientSession) -> bytes:
    """A colour, where somebody looks at it."""
    if not session.world.options.has_choosers:
        return b""
    return PROPERTIES[session.world.random.choice(COLOURS)]


def _priority(session: ClientSession) -> int:
    if not session.world.options.has_priorities:
        return PRIORITY_DEFAULT
    return session.world.random.choice((PRIORITY_DEFAULT, PRIORITY_DEFAULT, 0, 9))


def publish_to(
    session: ClientSession,
    queue: str,
    sent: tuple[OutgoingMessage, ...],
    transaction: TransactionKey | None = None,
) -> PublishCommand:
    return PublishCommand(0, "", name(session.set_name, queue), sent, transaction)


def produce(session: ClientSession) -> Actor:
    """Publish now and then, sometimes several commands at once, and wait for the answers."""
    random = session.world.random
    while session.is_working:
        yield session.world.think_us() * 2
        promises = []
        for _ in range(random.choice((1, 1, 2, 4))):
            queue = random.choice(
                ("in", "in", "in", "in", "a", "b", "full", "evicting", "short", "retry", "fleeting")
            )
            sent = messages(session, random.choice((1, 1, 2, 4)), random.random() < 0.85)
            if random.random() < 0.15:
                command = PublishCommand(0, name(session.set_name, "fan"), "", sent)
            else:
                command = publish_to(session, queue, sent)
            promises.append(session.submit(command))
        yield from promises
