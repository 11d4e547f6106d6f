"""A disk that has what was acknowledged is away when an operator rebuilds the map beside a set that is led (R1, R8, history 13).

As in `joined_by_frames_and_gone`: C has come into the set by frames, messages are acknowledged, and C never heard so; all lose
power, the disk of A is lost, etcd comes back from a backup, and B leads the set without these messages. C comes, has etcd say
that it was set back, and loses its power again. An operator reads that, and rebuilds the map. The set is led; but in the new
generation C would not tell any more what it knows. So its disk is to be given up by name, or to come back.
"""

from tests.simulation.options import Options
from tests.simulation.staging.gone_unheard import go_on_with_c, have_c_say_so, join_by_frames, lead_without_c
from tests.simulation.staging.rebuilt_map import try_to_rebuild_map
from tests.simulation.staging.stage import A, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    found = join_by_frames(stage)
    lead_without_c(stage, found)
    have_c_say_so(stage)
    stage.power_loss(C)
    is_rebuilt = try_to_rebuild_map(stage, "00000002-generation", A)
    stage.expect(not is_rebuilt, "a disk that was not asked is given up by name, or it comes back")
    stage.revive(C)
    stage.run(2)
    go_on_with_c(stage, found)
