"""History 17: the only in-sync member is damaged (R10, R7).

The in-sync set is {A}; a bit of an acknowledged frame flips on its disk, in the middle or in the last frame, and A restarts.
That is damage and no torn tail. A does not serve, nobody else is promoted, and the map goes on naming A's disk: R7's command
is the only way out. Here the bit flips back, and everything is there.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import SET, A, B, C, Stage, calm

CASES = ("last frame", "middle")


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.kill(B, C)
    stage.until(lambda: stage.in_sync == {A})
    stage.run(2.5)
    places = []
    file = stage.world.disks[A].directories[SET].segments[1]
    for _ in range(3):
        places.append(len(bytes(file.cached).rstrip(b"\0")))
        stage.done(client.publish("a", size=300))
    offset = places[2 if case == "last frame" else 1] + 200
    stage.run(2.5)
    stage.power_loss(A)
    stage.world.disks[A].flip_bit(SET, 1, offset, 3)
    stage.revive(A, B, C)
    stage.run(8)
    stage.expect(
        stage.epoch == 1 and stage.in_sync == {A}, "nobody is promoted, and A's disk stays in the map"
    )
    stage.power_loss(A)
    stage.world.disks[A].flip_bit(SET, 1, offset, 3)
    stage.revive(A)
    stage.whole()
    stage.expect(len(client.browse("a")) == 3, "everything acknowledged is there")
