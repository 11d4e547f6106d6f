"""Queues that are deleted and declared again under other people's feet, an open transaction included."""

from lockstep.core.commands import (
    BeginCommand,
    DeclareQueueCommand,
    DeleteQueueCommand,
    PurgeQueueCommand,
    QueueOptions,
)
from tests.simulation.client import ClientSession
from tests.simulation.promises import Actor
from tests.simulation.workloads.producing import messages, publish_to
from tests.simulation.workloads.queues import name
from tests.simulation.workloads.transferring import end


def redeclare(session: ClientSession) -> Actor:
    """Declare a scratch queue, publish to it in a transaction, perhaps delete it before the commit."""
    random = session.world.random
    while session.is_working:
        yield session.world.think_us() * 2
        scratch = f"scratch{random.randrange(3)}"
        queue = name(session.set_name, scratch)
        chosen = QueueOptions(is_durable=random.random() < 0.7, is_exclusive=False)
        yield session.submit(DeclareQueueCommand(0, queue, chosen))
        begun = session.submit(BeginCommand(0))
        yield begun
        operation = begun.operation
        if operation is None or not operation.is_ok or operation.transaction is None:
            continue
        key = operation.transaction
        session.submit(publish_to(session, scratch, messages(session, 2), key))
        yield session.submit(publish_to(session, "a", messages(session, 1), key))
        if random.random() < 0.5:
            yield session.submit(DeleteQueueCommand(0, queue))
            if random.random() < 0.5:
                yield session.submit(DeclareQueueCommand(0, queue, chosen))
        elif random.random() < 0.2:
            yield session.submit(PurgeQueueCommand(0, queue))
        yield from end(session, key, random.random())


def exclusive(session: ClientSession) -> Actor:
    """Exclusive and auto-delete queues, which end with their session or their last consumer."""
    random = session.world.random
    count = 0
    while session.is_working:
        yield session.world.think_us() * 3
        count += 1
        own = f"own.{session.client.name}.{count}"
        is_exclusive = random.random() < 0.5
        options = QueueOptions(is_durable=False, is_exclusive=is_exclusive, is_auto_delete=not is_exclusive)
        declared = session.submit(DeclareQueueCommand(0, name(session.set_name, own), options))
        yield declared
        if declared.operation is None or not declared.operation.is_ok:
            continue
        yield session.submit(publish_to(session, own, messages(session, 2, is_durable=False)))
        _, inbox = session.consume(name(session.set_name, own), 2)
        yield session.with_patience(inbox.arrival(), 200_000)
        yield session.submit(DeleteQueueCommand(0, name(session.set_name, own)))
