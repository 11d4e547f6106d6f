"""History 24: an empty disk comes back first (R1, R5, R8, R9).

All machines lose power; B's volume is new when it returns, before the others or with them. B's disk is none that the map
names: B is a learner, does not stand, and cuts nobody. And a whole set that returns half-installed is none.
"""

from tests.simulation.staging.stage import A, B, C, Stage

CASES = ("alone", "with A", "last")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.done(client.publish("a", count=3))
    stage.run(1.5)
    stage.power_loss(A, B, C)
    stage.world.lose_disk(B)
    stage.run(0.2)
    order = {"alone": (B,), "with A": (B, A), "last": (C,)}[case]
    stage.revive(*order)
    stage.run(6)
    stage.expect(stage.epoch == 1 or stage.map.primary != B, "an empty disk leads nothing")
    stage.revive(A, B, C)
    stage.whole()
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")
