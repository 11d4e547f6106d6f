"""Consumers that choose: by selectors, by settling with exclusion, with drains; browsers; and a queue to which nothing else
happens, so that everything that a selector matches must come before a drain is answered.
"""

from lockstep.client.session_events import StopConsuming
from lockstep.core.commands import (
    DeclareQueueCommand,
    Disposition,
    PurgeQueueCommand,
    QueueOptions,
    SettleCommand,
)
from tests.simulation.client import ClientSession
from tests.simulation.colours import COLOURS, SELECTED, selector_of
from tests.simulation.history import PromiseBroken
from tests.simulation.loop import SECOND
from tests.simulation.promises import Actor
from tests.simulation.workloads.producing import messages, publish_to
from tests.simulation.workloads.queues import name
from tests.simulation.workloads.transferring import give_back, taken_positions

_DISPOSITIONS = (
    Disposition.ACCEPT,
    Disposition.ACCEPT,
    Disposition.RELEASE,
    Disposition.FAIL,
    Disposition.REJECT,
)
_GOING_BACK = (Disposition.RELEASE, Disposition.FAIL)
_CREDITS = (1, 3, 10)


def select(session: ClientSession) -> Actor:
    """Consume from one queue after the other, mostly with a selector; drain now and then; exclude oneself from what goes back."""
    random = session.world.random
    while session.is_working:
        queue = random.choice(("in", "a", "b", "retry", "dead", "fleeting", "full"))
        selector = random.choice(("", *SELECTED, *SELECTED))
        consumer, inbox = session.consume(
            name(session.set_name, queue), random.choice(_CREDITS), selector=selector
        )
        until_us = session.world.loop.now_us + random.randrange(1 * SECOND, 8 * SECOND)
        while session.is_working and inbox.is_open and session.world.loop.now_us < until_us:
            yield session.with_patience(inbox.arrival(), 1 * SECOND)
            yield session.world.think_us() // 2
            taken, inbox.waiting = inbox.waiting, []
            promises = []
            for epoch, positions in sorted(taken_positions(taken).items()):
                disposition = random.choice(_DISPOSITIONS)
                is_excluded = disposition in _GOING_BACK and random.random() < 0.7
                excluded = consumer if is_excluded else 0
                queue_name = name(session.set_name, queue)
                command = SettleCommand(0, queue_name, epoch, positions, disposition, None, 0, excluded)
                promises.append(session.submit(command))
            yield from promises
            credit = len(taken)
            if random.random() < 0.3:
                yield session.drain(consumer)
                credit = random.choice(_CREDITS)
            session.grant(consumer, credit)
        session.feed(StopConsuming(consumer))
        taken, inbox.waiting = inbox.waiting, []
        yield from give_back(session, queue, taken_positions(taken))


def peek(session: ClientSession) -> Actor:
    """Browse one queue after the other, with credit, drains and failovers in between."""
    random = session.world.random
    while session.is_working:
        queue = random.choice(("in", "a", "b", "a", "b", "retry", "dead", "full", "short"))
        consumer, inbox = session.consume(
            name(session.set_name, queue),
            random.choice(_CREDITS),
            selector=random.choice(("", *SELECTED)),
            is_browser=True,
        )
        until_us = session.world.loop.now_us + random.randrange(1 * SECOND, 8 * SECOND)
        while session.is_working and inbox.is_open and session.world.loop.now_us < until_us:
            yield session.with_patience(inbox.arrival(), 1 * SECOND)
            yield session.world.think_us() // 4
            inbox.waiting = []
            if random.random() < 0.3:
                yield session.drain(consumer)
            session.grant(consumer, random.choice(_CREDITS))
        session.feed(StopConsuming(consumer))
        yield session.world.think_us()


def probe(session: ClientSession) -> Actor:
    """Publish to a queue of one's own, and drain a selecting consumer or browser of it: all that it matches must have come.

    Once more after the faults, until that was seen to hold (P7).
    """
    random = session.world.random
    queue = f"probe-{session.client.name}"
    own = name(session.set_name, queue)
    is_over = False
    while not is_over and not session.is_closed:
        yield session.world.think_us() * 2
        is_last = not session.is_working
        yield session.submit(DeclareQueueCommand(0, own, QueueOptions()))
        sent = messages(session, random.randint(1, 6))
        published = session.submit(publish_to(session, queue, sent))
        yield published
        assert published.operation is not None
        colour, is_browser, losses = random.choice(COLOURS), random.random() < 0.3, session.losses
        consumer, inbox = session.consume(own, 1000, selector=selector_of(colour), is_browser=is_browser)
        drained = session.drain(consumer)
        yield drained
        if published.operation.is_ok and session.losses == losses and inbox.is_open:
            assert isinstance(drained.value, tuple), "a drain is answered with what had come"
            wanted = [one.body for one in sent if one.properties == SELECTED[selector_of(colour)]]
            missing = [body for body in wanted if body not in drained.value]
            if missing:
                raise PromiseBroken(
                    "P7",
                    f"{session.client.name}'s drain of {own} was answered without {missing[0][:24]!r}, which was there, "
                    f"free and selected",
                )
            is_over = is_last
        session.feed(StopConsuming(consumer))
        taken, inbox.waiting = inbox.waiting, []
        if not is_browser:
            yield from give_back(session, queue, taken_positions(taken))
        yield session.submit(PurgeQueueCommand(0, own))
