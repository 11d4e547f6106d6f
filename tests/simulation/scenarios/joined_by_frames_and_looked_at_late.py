"""Whoever leads comes to know more of etcd while an operator has the disks asked (R1, R8, history 13).

As in `joined_by_frames_and_gone`: C has come into the set by frames, messages are acknowledged, and C never heard so; all lose
power, the disk of A is lost, etcd comes back from a backup, and B leads the set without these messages. C comes, and has etcd say
that it was set back. While an operator has the disks asked, something is written to etcd, and B has its disk remember that
before it answers. That it knows more than was read of etcd before says nothing of when its epoch began: an operator is asked all
the same.
"""

from services.store.core.meta import decode_set_meta
from tests.simulation.loop import SECOND
from tests.simulation.map_rebuild import SURVEY_US, MapRebuild
from tests.simulation.options import Options
from tests.simulation.staging.gone_unheard import go_on_with_c, have_c_say_so, join_by_frames, lead_without_c
from tests.simulation.staging.stage import SET, A, B, Stage, calm

OPERATORS = "operators"


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    found = join_by_frames(stage)
    lead_without_c(stage, found)
    have_c_say_so(stage)
    stage.run(12)
    rebuild, is_held = MapRebuild(stage.world), False
    for wait_us in rebuild.attempt("00000002-generation", (A,)):
        if wait_us != SURVEY_US:
            # Behind the wait for the lease comes the look that counts; until then B remembers all of etcd.
            stage.run(wait_us / SECOND + 12)
            stage.hold(OPERATORS, B)
            is_held = True
        elif is_held:
            _write_and_let_go(stage)
            is_held = False
        else:
            stage.run(wait_us / SECOND)
    stage.expect(not rebuild.generations, "nobody but an operator says which log goes")
    go_on_with_c(stage, found)


def _write_and_let_go(stage: Stage) -> None:
    """B is asked when its disk remembers what etcd had not when it was read before; takes as long as a survey."""
    world = stage.world
    before = world.etcd.revision
    stage.run(0.1)
    world.etcd.execute(lambda etcd: etcd.put(world.keys.set_back, b"it is said again"))
    stage.run(0.2)
    remembered = decode_set_meta(world.disks[B].directories[SET].meta).etcd_revision
    stage.expect(remembered > before, "B has its disk remember that etcd has gone on")
    stage.let_go(OPERATORS, B)
    stage.run(SURVEY_US / SECOND - 0.3)
