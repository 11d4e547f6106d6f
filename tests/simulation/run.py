"""One run: a world through its phases, then the checkers.

start (all machines, then clients) -> safety (faults) -> heal -> settle (work goes on) -> rest (everything ends) -> checks
"""

import gc
import time
from collections import Counter
from dataclasses import dataclass, field

from lockstep.client.session_events import Close
from lockstep.core.ids import SetName
from lockstep.core.server_messages import OutcomeState
from services.coordinator.core.messages import State
from tests.simulation.checkers import CHECKERS
from tests.simulation.checkers.record import Record
from tests.simulation.client import Client
from tests.simulation.history import PromiseBroken
from tests.simulation.loop import MS, SECOND
from tests.simulation.options import CoordinationOptions, Options
from tests.simulation.parts import Parts
from tests.simulation.replica_view import at_rest, hands_apart, names_astray, transactions_left, view_of
from tests.simulation.subscriber import Subscriber
from tests.simulation.tiny_steps import step_sizes
from tests.simulation.workloads import start_work
from tests.simulation.workloads.distributing import distribute
from tests.simulation.workloads.visiting import visit
from tests.simulation.world import World

SAMPLE_US = 1700 * MS


@dataclass(slots=True)
class Report:
    """What a run found and did."""

    seed: int
    broken: list[str] = field(default_factory=list)
    """Sentences, each beginning with its promise. Empty: all is well."""
    totals: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    branches: Counter[str] = field(default_factory=Counter)
    simulated_us: int = 0
    real_seconds: float = 0.0
    events: int = 0
    digest: str = ""
    """Of the whole history: equal for equal seeds."""


def run(options: Options, parts: Parts | None = None, traced: frozenset[SetName] | None = None) -> Report:
    """Simulate one seed to its end; `traced`: print what happens in these sets."""
    began = time.process_time()
    report = Report(options.seed)
    gc.disable()  # A run's objects live until its end; looking for garbage among them costs a tenth of the time.
    try:
        with step_sizes(options.tiny_steps):
            _simulate(options, parts, traced, report)
    finally:
        # The first that looks for garbage behind this finds all of the run among what is new.
        gc.enable()
    report.real_seconds = time.process_time() - began
    return report


def _simulate(
    options: Options, parts: Parts | None, traced: frozenset[SetName] | None, report: Report
) -> None:
    world = World(options, parts)
    world.traced = traced
    try:
        _safety(world)
        moving = _liveness(world)
        read_journals(world)
        moving = moving or _at_rest_again(world)
        record = make_record(world, moving)
        for promise, check in CHECKERS.items():
            report.broken += [f"{promise}: {sentence}" for sentence in check(record)]
    except PromiseBroken as broken:
        report.broken.append(f"{broken} (at {world.loop.now_us / 1e6:.6f} s)")
    summarise(world, report)


def _safety(world: World) -> None:
    for broker in world.broker_ids:
        world.loop.after(world.random.randrange(300 * MS), world.start_machine, broker)
    world.loop.run_until(400 * MS)
    world.start_clients()
    for client in world.clients:
        for session in client.sessions.values():
            start_work(session)
    if world.options.coordination is not None:
        _start_distributing(world, world.options.coordination)
    if world.parts.prepare is not None:
        world.parts.prepare(world)
    if world.options.has_subscriber:
        world.subscribers.append(Subscriber(world))
    if world.options.visit_gap_us:
        world.loop.after(3 * SECOND, world.welcome, visit)
    world.loop.after(2 * SECOND, world.faults.start)
    _advance(world, world.options.safety_us)


def _start_distributing(world: World, coordination: CoordinationOptions) -> None:
    """Coordinators, and clients of theirs with sessions in all sets."""
    world.coordinators.start_all()
    for number in range(coordination.clients):
        client = Client(world, f"d{number + 1}", world.set_names)
        world.clients.append(client)
        first = next(iter(client.sessions.values()))
        first.spawn(distribute(client))


def _advance(world: World, until_us: int) -> None:
    while world.loop.now_us < until_us:
        world.loop.run_until(min(until_us, world.loop.now_us + SAMPLE_US))
        world.observer.sample()


def _liveness(world: World) -> list[str]:
    """Heal, go on, come to rest; returns what did not."""
    world.faults.heal()
    _advance(world, world.loop.now_us + world.options.settle_us)
    limit_us = world.loop.now_us + world.options.liveness_us
    while world.loop.now_us < limit_us and begun(world) < world.options.transactions:
        _advance(world, world.loop.now_us + SAMPLE_US)
    world.is_working = False
    # Whoever pauses, rarely for long, is not stuck.
    awake_us = max(world.loop.now_us, *(session.asleep_until_us for session in world.sessions()))
    limit_us = awake_us + world.options.liveness_us
    is_closing = False
    while world.loop.now_us < limit_us:
        world.loop.run_until(world.loop.now_us + 200 * MS)
        sessions = world.sessions()
        is_idle = all(session.actors == 0 for session in sessions)
        if not is_closing and is_idle and not hands_apart(world):
            is_closing = True
            for session in sessions:
                session.feed(Close())
        if is_closing and all(session.is_closed for session in sessions) and not _moving(world):
            return []
    return _moving(world) + hands_apart(world)


def _moving(world: World) -> list[str]:
    """What is not at rest, or does not agree with the directory."""
    return at_rest(world) + names_astray(world) + transactions_left(world) + world.coordinators.at_work()


def read_journals(world: World) -> None:
    """Have all stores read what they hold, for the comparison with the committed logs, and with what is owed."""
    for entry in world.set_maps():
        for store in world.stores.values():
            if store.is_alive:
                store.read_journal(entry.set_name, entry.epoch)
    world.loop.run_until(world.loop.now_us + 500 * MS)


def _at_rest_again(world: World) -> list[str]:
    """A message may have expired while the journals were read: wait until everybody has heard of it; returns what has not."""
    limit_us = world.loop.now_us + 10 * SECOND
    while _moving(world) and world.loop.now_us < limit_us:
        world.loop.run_until(world.loop.now_us + 50 * MS)
    return _moving(world)


def begun(world: World) -> int:
    """Transactions begun so far."""
    return sum(operation.kind == "begin" and operation.is_ok for operation in world.history.operations)


def make_record(world: World, moving: list[str] | None = None) -> Record:
    """Everything that the checkers need, at the end of a run; `moving`: what did not come to rest (None: look now)."""
    observer = world.observer
    observer.check_journals()
    record = Record(history=world.history, views=observer.views)
    record.models = {set_name: log.model() for set_name, log in observer.logs.items()}
    record.logs = {set_name: log.frames() for set_name, log in observer.logs.items()}
    for _, store in sorted(world.stores.items()):
        record.readings += store.journals.values() if store.is_alive else ()
    record.unresolved = sorted(world.unresolved)
    record.refused = observer.refused
    record.handed_on = observer.handed_on
    record.stuck = _moving(world) if moving is None else list(moving)
    left = {visitor.name for visitor in world.visitors if not visitor.is_alive}
    record.departed = frozenset(left | world.coordinators.departed)
    record.distributed, record.hazards = world.coordinators.begun, world.coordinators.hazards
    sessions = world.sessions()
    at_work = [session for session in sessions if session.actors]
    for session in at_work or [session for session in sessions if not session.is_closed]:
        record.stuck.append(f"{session.client.name}: {session.actors} actors left, {session.core!r}")
    for broker in world.broker_ids:
        for set_name in world.set_names:
            view = view_of(world.brokers[broker], set_name, world.loop.now_us)
            if view is not None:
                record.final_views.append(view)
    return record


def summarise(world: World, report: Report) -> None:
    """Totals, for people and for the run's digest."""
    totals = report.totals
    for operation in world.history.operations:
        if operation.kind == "commit":
            totals["transactions committed"] += operation.is_ok
            totals["commits rejected"] += operation.is_rejected
            totals["commits in doubt"] += operation.is_in_doubt
        elif operation.kind == "rollback":
            totals["transactions rolled back"] += operation.is_ok
        elif operation.kind == "publish":
            totals["messages published"] += len(operation.bodies) if operation.is_ok else 0
        elif operation.kind == "begin":
            totals["transactions begun"] += operation.is_ok
    heard = {
        (outcome.set_name, outcome.transaction)
        for outcome in world.history.outcomes
        if outcome.state in (OutcomeState.COMMITTED, OutcomeState.ROLLED_BACK)
    }
    totals["commits in doubt, then resolved"] = sum(
        operation.kind == "commit"
        and operation.is_in_doubt
        and (operation.set_name, operation.transaction) in heard
        for operation in world.history.operations
    )
    totals["messages delivered"] = sum(len(delivered.messages) for delivered in world.history.deliveries)
    totals["failovers"] = sum(max(0, entry.epoch - 1) for entry in world.set_maps())
    for mine in world.coordinators.begun:
        totals["distributed transactions"] += 1
        totals["distributed transactions told committed"] += State.COMMITTED in mine.told
        totals["distributed transactions told rolled back"] += State.ROLLED_BACK in mine.told
    totals["faults"] = sum(world.faults.counts.values())
    report.faults = world.faults.counts + world.core_faults.counts
    report.branches = world.branches.counts
    report.simulated_us, report.events = world.loop.now_us, world.loop.events
    report.digest = digest(world)


def digest(world: World) -> str:
    """A hash of everything that clients saw and of everything that was committed."""
    import hashlib

    found = hashlib.sha256()
    history = world.history
    for part in (history.operations, history.deliveries, history.browses, history.outcomes):
        for event in part:
            found.update(repr(event).encode())
    for mine in world.coordinators.begun:
        found.update(repr(mine).encode())
    for set_name, log in world.observer.logs.items():
        found.update(f"{set_name} {log.end} {world.loop.events}".encode())
    return found.hexdigest()[:16]
