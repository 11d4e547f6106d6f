"""Transactions that accept from one queue and publish to two others: the main work, and the one whose tearing would show."""

from collections.abc import Generator

from lockstep.core.commands import (
    BeginCommand,
    CommitCommand,
    Disposition,
    PublishCommand,
    RollbackCommand,
    SettleCommand,
)
from lockstep.core.ids import Epoch, QueuePosition, TransactionKey
from lockstep.core.requests import GetOutcome
from lockstep.core.server_messages import (
    DeliveredMessage,
    OutcomeAnswer,
    OutcomeState,
)
from tests.simulation.client import ClientSession
from tests.simulation.loop import MS
from tests.simulation.promises import Actor, Wait
from tests.simulation.workloads.producing import messages, publish_to
from tests.simulation.workloads.queues import WORK, name

FINAL = (
    OutcomeState.COMMITTED,
    OutcomeState.ROLLED_BACK,
    OutcomeState.EXPIRED,
    OutcomeState.HEURISTICALLY_COMMITTED,
    OutcomeState.HEURISTICALLY_ROLLED_BACK,
)


def transfer(session: ClientSession) -> Actor:
    """Take from one queue, publish to the others or some of them; end; in doubt: find out."""
    random = session.world.random
    source = random.choice(WORK)
    targets = [queue for queue in WORK if queue != source]
    consumer, inbox = session.consume(name(session.set_name, source), 4)
    begun: list[TransactionKey] = []
    while session.is_working:
        yield session.world.think_us()
        if not inbox.waiting:
            yield session.with_patience(inbox.arrival(), 500 * MS)
        taken = inbox.waiting[: random.randint(1, 3)]
        inbox.waiting = inbox.waiting[len(taken) :]
        if begun:
            key = begun.pop(0)
        else:
            beginning = session.submit(BeginCommand(0, timeout_ms=random.choice((0, 0, 0, 2_000))))
            yield beginning
            operation = beginning.operation
            assert operation is not None
            if not operation.is_ok or operation.transaction is None:
                yield from give_back(session, source, taken_positions(taken))
                continue
            key = operation.transaction
        promises = []
        for epoch, positions in sorted(taken_positions(taken).items()):
            promises.append(
                session.submit(
                    SettleCommand(
                        0, name(session.set_name, source), epoch, positions, Disposition.ACCEPT, key
                    )
                )
            )
        is_durable = random.random() < 0.9
        has_pauses = session.world.options.has_pauses
        last: PublishCommand | None = None
        wanted = targets[: random.choice((2, 2, 2, 1, 1, 0))] if taken else targets[:1]
        for target in (*wanted, *wanted) if has_pauses and taken else wanted:
            if last is not None:
                promises.append(session.submit(last))
            if has_pauses and random.random() < 0.3:
                yield session.world.think_us() // 2
            sent = messages(session, 2 * max(1, len(taken)), is_durable)
            last = publish_to(session, target, sent, key)
        if last is not None and not (session.core.line.takes_last_publish and random.random() < 0.5):
            promises.append(session.submit(last))
            last = None
        if random.random() < 0.5:
            yield from promises
        if random.random() < 0.3:
            yield session.world.think_us()
        begins = 0 if begun else random.choice((0, 0, 1, 2))
        if last is not None and not promises and not begins:
            session.world.branches.reach("commit with all of its transaction")
        begun += yield from end(session, key, random.random(), begins, last)
        session.grant(consumer, len(taken))
    for key in begun:
        yield session.submit(RollbackCommand(0, key))


def end(
    session: ClientSession,
    key: TransactionKey,
    chance: float,
    begins: int = 0,
    last_publish: PublishCommand | None = None,
) -> Generator[Wait, None, list[TransactionKey]]:
    """Commit (mostly), or roll back; a commit in doubt is asked for until the answer is final. Answers what the commit began."""
    if chance < 0.1:
        yield session.submit(RollbackCommand(0, key))
        return []
    committing = session.submit(CommitCommand(0, key, 0, begins, last_publish))
    if chance > 0.97:  # pipelined behind the commit: it must not undo it (history 2)
        yield session.submit(RollbackCommand(0, key))
    yield committing
    operation = committing.operation
    assert operation is not None
    if operation.is_in_doubt:
        yield from resolve(session, key)
    if operation.begun:
        session.world.branches.reach("transactions begun by a commit")
    return list(operation.begun)


def resolve(session: ClientSession, key: TransactionKey) -> Actor:
    """Ask for the outcome until it is final; the second time with a fence."""
    session.world.unresolved.add((session.set_name, key))
    fence = session.world.random.random() < 0.5
    while not session.is_closed:
        asking = session.ask(GetOutcome(0, key, fence))
        yield asking
        answer = asking.value
        if isinstance(answer, OutcomeAnswer) and answer.state in FINAL:
            session.world.unresolved.discard((session.set_name, key))
            return
        fence = True
        yield 50 * MS


def taken_positions(taken: list[tuple[Epoch, DeliveredMessage]]) -> dict[Epoch, tuple[QueuePosition, ...]]:
    """Positions by the epoch of their delivery."""
    found: dict[Epoch, tuple[QueuePosition, ...]] = {}
    for epoch, message in taken:
        found[epoch] = (*found.get(epoch, ()), message.position)
    return found


def give_back(session: ClientSession, queue: str, held: dict[Epoch, tuple[QueuePosition, ...]]) -> Actor:
    """Release what was taken and will not be used."""
    for epoch, positions in sorted(held.items()):
        yield session.submit(
            SettleCommand(0, name(session.set_name, queue), epoch, positions, Disposition.RELEASE)
        )
