"""Plain consumers: accept, release, fail or reject what is delivered, outside of any transaction (QPID-5966 and its reverse)."""

from lockstep.client.session_events import StopConsuming
from lockstep.core.commands import (
    Disposition,
    SettleCommand,
)
from tests.simulation.client import ClientSession
from tests.simulation.loop import SECOND
from tests.simulation.promises import Actor
from tests.simulation.workloads.queues import name
from tests.simulation.workloads.transferring import taken_positions

_DISPOSITIONS = (Disposition.ACCEPT,) * 6 + (
    Disposition.RELEASE,
    Disposition.FAIL,
    Disposition.FAIL,
    Disposition.REJECT,
)


def consume(session: ClientSession) -> Actor:
    """Consume from one queue after the other, some time each."""
    random = session.world.random
    while session.is_working:
        queue = random.choice(
            ("a", "b", "in", "short", "retry", "retry", "full", "evicting", "dead", "fleeting")
        )
        consumer, inbox = session.consume(name(session.set_name, queue), random.choice((1, 3, 10)))
        until_us = session.world.loop.now_us + random.randrange(1 * SECOND, 10 * SECOND)
        while session.is_working and inbox.is_open and session.world.loop.now_us < until_us:
            yield session.with_patience(inbox.arrival(), 1 * SECOND)
            yield session.world.think_us() // 2
            taken, inbox.waiting = inbox.waiting, []
            promises = []
            for epoch, positions in sorted(taken_positions(taken).items()):
                disposition = random.choice(_DISPOSITIONS)
                command = SettleCommand(0, name(session.set_name, queue), epoch, positions, disposition)
                promises.append(session.submit(command))
            yield from promises
            session.grant(consumer, len(taken))
        session.feed(StopConsuming(consumer))
        taken, inbox.waiting = inbox.waiting, []
        for epoch, positions in sorted(taken_positions(taken).items()):
            command = SettleCommand(0, name(session.set_name, queue), epoch, positions, Disposition.RELEASE)
            yield session.submit(command)
