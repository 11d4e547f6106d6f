"""A torn journal tail: power is lost while frames are being written, and what was not synced is kept sector by sector (R10, P4).

A writes large frames; power is lost on A alone, on a backup alone, or on all machines at once, at several moments of the writing.
The torn tail is cut off without a word, because nobody ever acknowledged it, and everything acknowledged is there.
"""

from lockstep.core.ids import BrokerId
from tests.simulation.options import Options
from tests.simulation.staging.stage import Stage, calm

CASES = tuple(f"{who} {moment}" for who in ("b1", "b2", "b1,b2,b3") for moment in (150, 700, 1500, 2600))
"""Who loses power, and how many microseconds after the publish."""


def options() -> Options:
    return calm(disk_sync_us=1500)


def play(stage: Stage, case: str) -> None:
    who, moment = case.split()
    victims = [BrokerId(name) for name in who.split(",")]
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    for _ in range(3):
        stage.done(client.publish("a", size=2000))
    late = client.publish("a", count=4, size=4000)
    stage.run(int(moment) / 1e6)
    stage.power_loss(*victims)
    stage.run(0.3)
    stage.revive(*victims)
    stage.until(lambda: late.is_done, 30)
    stage.whole()
    branches = stage.world.branches.counts
    stage.expect(not branches["store: damaged"], "a torn tail is no damage")
