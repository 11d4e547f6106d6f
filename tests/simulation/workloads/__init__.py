"""What clients do, one kind of work per file. Each is an actor: a generator that yields what it waits for."""

from tests.simulation.client import ClientSession
from tests.simulation.promises import Actor
from tests.simulation.workloads.browsing import ask, browse
from tests.simulation.workloads.choosing import peek, probe, select
from tests.simulation.workloads.consuming import consume
from tests.simulation.workloads.producing import produce
from tests.simulation.workloads.queues import declare
from tests.simulation.workloads.redeclaring import exclusive, redeclare
from tests.simulation.workloads.transferring import transfer


def start_work(session: ClientSession) -> None:
    """Declare the queues, then produce and transfer in every session, and some kinds of work more."""
    random = session.world.random

    def work() -> Actor:
        yield from declare(session)
        session.spawn(transfer(session))
        if random.random() < 0.6:
            session.spawn(produce(session))
        for actor in random.sample((consume, browse, ask, redeclare, exclusive), 2):
            session.spawn(actor(session))
        if session.world.options.has_choosers:
            for actor in random.sample((select, peek, probe), 2):
                session.spawn(actor(session))

    session.spawn(work())
