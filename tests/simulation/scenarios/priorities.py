"""Priorities through failovers, restarts and joins: the highest first and, of one, what came first (AMQP 1.0, 3.2.1).

The level of a message is a part of its content, so whoever has that delivers in the same order: a backup that is promoted, a disk
that is read again, a newcomer that got a snapshot, and a primary whose bodies are away. What was given back takes its old place.
"""

from lockstep.core.commands import Disposition
from tests.simulation.options import Options
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("failover", "full restart", "newcomer leads", "rolled back", "in doubt")
LEVELS = (4, 0, 9, 4, 7, 0, 9)
ROUNDS = 6
SIZE = 1000


def options() -> Options:
    """Most bodies are away."""
    return calm(resident_bytes_max=8000, body_bytes_max=2000)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("q")
    levels = LEVELS * ROUNDS
    published = [stage.done(client.publish("q", size=SIZE, priority=level)).bodies[0] for level in levels]
    # Sorting is stable: of one level they stay as they came.
    order = sorted(range(len(levels)), key=lambda number: -levels[number])
    expected = [published[number] for number in order]
    found: list[bytes] = []
    if case == "newcomer leads":
        stage.power_loss(C)
        stage.world.lose_disk(C)
        stage.revive(C)
        stage.whole()
    if case in ("rolled back", "in doubt"):
        tx = client.begin()
        stage.done(client.publish("q", tx, priority=9))
        taken = client.take("q", 9)
        stage.expect([message.body for _, message in taken] == expected[:9], "the first")
        stage.done(client.settle("q", taken, tx))
        if case == "in doubt":
            stage.kill(A)
        else:
            stage.done(client.rollback(tx))
    else:
        found = _consume(stage, client, 10)
    _another_leads(stage, case)
    found += _consume(stage, client, len(expected) - len(found))
    stage.expect(found == expected, "all of it, in the order of priorities")
    stage.whole()


def _another_leads(stage: Stage, case: str) -> None:
    if case == "full restart":
        stage.power_loss(A, B, C)
        stage.run(0.1)
        stage.revive(A, B, C)
        stage.whole()
        return
    if case != "in doubt":
        stage.kill(A)
    stage.until(lambda: stage.map.primary != A, what="a successor")
    if case == "newcomer leads" and stage.map.primary != C:
        stage.revive(A)
        stage.whole()
        stage.kill(B)
        stage.until(lambda: stage.map.primary != B, what="another successor")
        stage.revive(B)
    else:
        stage.revive(A)


def _consume(stage: Stage, client: ScriptedClient, count: int) -> list[bytes]:
    """Take and accept so many, a few at a time; sometimes all but the first go back."""
    found: list[bytes] = []
    while len(found) < count:
        taken = client.take("q", min(5, count - len(found)))
        if len(found) % 2 and len(taken) > 1:
            stage.done(client.settle("q", taken[1:], disposition=Disposition.RELEASE))
            taken = taken[:1]
        found += [message.body for _, message in taken]
        stage.done(client.settle("q", taken))
    return found
