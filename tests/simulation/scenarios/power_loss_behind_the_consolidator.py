"""All lose power behind segments that the consolidator has let go (section 5): the snapshot has what was in them, on disk.

Segments are small; many are closed, applied and deleted. What was written to the snapshot and not flushed goes with the power; a
segment that went before its flush would take acknowledged messages along. No disk may lack any: one that does is set aside.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import SET, A, B, C, Stage, calm

CASES = (7, 1, 6)
"""Seeds, which draw the limits: segments of each size, and pages of a browse that show three messages or all of them."""
_LET_GO = 4
_ROUNDS_MIN = 21
_ROUNDS_MAX = 500


def options_of(case: object) -> Options:
    assert isinstance(case, int)
    return calm(small_limits=True, seed=case)


def play(stage: Stage, _case: object) -> None:
    stage.start()
    client = stage.client("c1")
    published: list[bytes] = []
    client.declare("a")
    segments = stage.world.disks[A].directories[SET]
    first = min(segments.segments)
    for count in range(_ROUNDS_MAX):
        published += stage.done(client.publish("a", count=5, size=600)).bodies
        stage.run(0.3)
        if count + 1 >= _ROUNDS_MIN and min(segments.segments) >= first + _LET_GO:
            break
    stage.expect(min(segments.segments) >= first + _LET_GO, f"{_LET_GO} segments were let go")
    stage.power_loss(A, B, C)
    stage.run(1)
    stage.revive(A, B, C)
    stage.whole(60)
    is_aside = any(stage.world.disks[broker].directories[SET].aside for broker in (A, B, C))
    stage.expect(not is_aside, "every disk has what it said it has")
    stage.expect(client.browse("a") == published, "everything acknowledged is there")
