"""All lose power behind segments that the consolidator has let go (section 5): the snapshot has what was in them, on disk.

Segments are small; many are closed, applied and deleted. What was written to the snapshot and not flushed goes with the power; a
segment that went before its flush would take acknowledged messages along.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import SET, A, B, C, Stage, calm


def options() -> Options:
    return calm(small_limits=True, seed=7)


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    published: list[bytes] = []
    client.declare("a")
    first = min(stage.world.disks[A].directories[SET].segments)
    for _ in range(21):
        published += stage.done(client.publish("a", count=5, size=600)).bodies
        stage.run(0.3)
    stage.expect(min(stage.world.disks[A].directories[SET].segments) > first, "segments were let go")
    stage.power_loss(A, B, C)
    stage.run(1)
    stage.revive(A, B, C)
    stage.whole(60)
    stage.expect(client.browse("a") == published, "everything acknowledged is there")
