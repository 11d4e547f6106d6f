"""The last in-sync disk has a hole, and an operator accepts what it took (R7, R10).

The in-sync set is {A}; a bit of an acknowledged frame flips on its disk, and A restarts. It refuses for as long as nobody says
otherwise, and so do B and C, which the map does not name. The command brings the set back with all that lies before the hole;
a crash right after it changes nothing. B and C come in behind A, whatever they have.
"""

from lockstep.core.effects import PromoteSelf
from lockstep.core.ids import LogIndex
from tests.simulation.options import Options
from tests.simulation.staging.stage import SET, A, B, C, Stage, calm

CASES = ("last frame", "middle", "crash of the store", "power loss before the promotion")


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.done(client.publish("a", size=300))
    stage.kill(B, C)
    stage.until(lambda: stage.in_sync == {A})
    stage.run(2.5)
    file = stage.world.disks[A].directories[SET].segments[1]
    places, ends, published = [], [], []
    for _ in range(3):
        places.append(len(bytes(file.cached).rstrip(b"\0")))
        ends.append(stage.log_end(A))
        published.append(client.publish("a", size=300))
        stage.done(published[-1])
    hole = 2 if case == "last frame" else 1
    stage.run(2.5)
    stage.power_loss(A)
    stage.world.disks[A].flip_bit(SET, 1, places[hole] + 200, 3)
    stage.revive(A, B, C)
    stage.run(30)
    stage.expect(stage.epoch == 1 and stage.in_sync == {A}, "nobody is promoted without a word")
    if case == "power loss before the promotion":
        stage.when(lambda _, effect: isinstance(effect, PromoteSelf), lambda: stage.power_loss(A))
    stage.accept_loss(A, LogIndex(ends[hole]), *published[hole:])
    if case == "crash of the store":
        stage.kill_store(A)
    stage.run(0.1)
    stage.revive(A)
    stage.run(5)
    if stage.epoch == 1:
        stage.accept_loss(A, LogIndex(ends[hole]))  # The command had failed, and is given again.
    stage.serves(A)
    stage.done(other.publish("a", size=300))
    stage.whole()
    bodies = other.browse("a")
    stage.expect(
        len(bodies) == 1 + hole + 1, f"what lies before the hole and what came after it, not {len(bodies)}"
    )
