"""Visitors: clients that come, take something, and leave in the middle: by ending their session, or without a word.

What they hold and have begun must come back: at once when the session ends, after its time-out when nobody hears of them again.
"""

from lockstep.client.session_events import Close
from lockstep.core.commands import (
    BeginCommand,
    Disposition,
    SettleCommand,
)
from tests.simulation.client import ClientSession
from tests.simulation.loop import MS
from tests.simulation.promises import Actor
from tests.simulation.workloads.producing import messages, publish_to
from tests.simulation.workloads.queues import WORK, name
from tests.simulation.workloads.transferring import taken_positions


def visit(session: ClientSession) -> Actor:
    """Take from a queue, begin a transaction, publish in it, leave it open."""
    random = session.world.random
    source = random.choice(WORK)
    _, inbox = session.consume(name(session.set_name, source), random.choice((1, 5)))
    yield session.with_patience(inbox.arrival(), 500 * MS)
    taken = inbox.waiting[: random.randrange(4)]
    begun = session.submit(BeginCommand(0))
    yield begun
    operation = begun.operation
    if operation is not None and operation.is_ok and operation.transaction is not None:
        key = operation.transaction
        for epoch, positions in sorted(taken_positions(taken).items()):
            queue = name(session.set_name, source)
            session.submit(SettleCommand(0, queue, epoch, positions, Disposition.ACCEPT, key))
        last = session.submit(publish_to(session, random.choice(WORK), messages(session, 2), key))
        if random.random() < 0.7:
            yield last
    if random.random() < 0.5:
        session.world.branches.reach("client left without a word")
        session.client.die()
    else:
        session.feed(Close())
