"""Qpid's test without backups: a set of one broker commits, rolls back, and survives its own restarts (P1, P4, R9).

The only broker restarts by a kill, by a loss of power, and its store alone; acknowledged transactions are there each time, and
what was open is aborted.
"""

from collections.abc import Callable

from lockstep.core.ids import BrokerId
from tests.simulation.options import Options
from tests.simulation.staging.stage import A, Stage, calm

CASES = ("broker", "store", "power")


def options() -> Options:
    return calm(brokers=1, min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a", "b")
    strikes: dict[str, Callable[[BrokerId], None]] = {
        "broker": stage.kill,
        "store": stage.kill_store,
        "power": stage.power_loss,
    }
    for _ in range(2):
        stage.done(client.commit(client.transaction("a", "b")))
        stage.done(client.rollback(client.transaction("a", "b")))
        left_open = client.transaction("a", "b")
        strikes[case](A)
        stage.run(0.5)
        stage.revive(A)
        stage.serves(A)
        stage.done(client.commit(left_open), 30)
    found = len(client.browse("a"))
    stage.expect(found == len(client.browse("b")) and found >= 2, f"whole transactions, {found} of them")
