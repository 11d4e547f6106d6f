"""Most disks are lost where none may be removed (R4, R8, R9, P7): what the one disk that is left has comes back by itself.

The minimum is three. Everybody loses power; the disks of B and C are new, or damaged, when all return. A leads, holds everything,
and may remove nobody. Neither newcomer can come alone into the place of its own lost disk: its snapshot cannot be cut, and the
other's lost disk, of which nobody has heard, might have less. So both come in one swap, with which both lost disks leave. So it
is with more brokers than the minimum, where newcomers also take the places of disks that are not their brokers'.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import SET, Stage, calm

CASES = ("one of three", "two of three", "two of three damaged", "three of four", "four of five")
LOST = {"one of three": 1, "three of four": 3, "four of five": 4}


def options_of(case: object) -> Options:
    return calm(min_in_sync=3, brokers={"three of four": 4, "four of five": 5}.get(str(case), 3))


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, world = stage.client("c1"), stage.world
    client.declare("a")
    stage.done(client.publish("a", count=3, size=300))
    stage.run(3)
    lost = world.broker_ids[-LOST.get(case, 2) :]
    stage.power_loss(*world.broker_ids)
    for broker in lost:
        if case.endswith("damaged"):
            world.disks[broker].flip_bit(SET, 1, 200, 3)
        else:
            world.lose_disk(broker)
    stage.run(5)
    stage.revive(*world.broker_ids)
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
