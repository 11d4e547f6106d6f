"""Readers that take nothing: they page through queues, ask for outcomes of anybody's transactions, and for descriptions."""

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import QueuePosition
from lockstep.core.requests import (
    Browse,
    Describe,
    GetOutcome,
)
from lockstep.core.server_messages import BrowseAnswer
from tests.simulation.client import ClientSession
from tests.simulation.promises import Actor
from tests.simulation.workloads.queues import name


def browse(session: ClientSession) -> Actor:
    """Read a whole queue, page by page, now and then."""
    random = session.world.random
    while session.is_working:
        yield session.world.think_us()
        queue = name(session.set_name, random.choice(("a", "b", "a", "b", "in", "dead", "full", "short")))
        after = QueuePosition(0)
        for _ in range(20):
            asking = session.ask(Browse(0, queue, after, random.choice((3, 10, 100))))
            yield asking
            answer = asking.value
            if not isinstance(answer, BrowseAnswer) or answer.code is not ErrorCode.NONE:
                break
            if answer.is_end or not answer.messages:
                break
            after = answer.messages[-1].position


def ask(session: ClientSession) -> Actor:
    """Ask what became of transactions, one's own or others', rarely with a fence."""
    random, history = session.world.random, session.world.history
    while session.is_working:
        yield session.world.think_us() * 2
        if random.random() < 0.1:
            yield session.ask(Describe(0))
        known = [
            operation.transaction
            for operation in history.operations[-400:]
            if operation.transaction is not None and operation.set_name == session.set_name
        ]
        if known:
            key, fence = random.choice(known[-30:]), random.random() < 0.1
            # Every other time with what its owner alone knows: a stranger's fence does nothing.
            others = [other.core.session_id for other in session.world.sessions() if key[0] % 2]
            yield session.ask(GetOutcome(0, key, fence, tuple(others) if fence else ()))
