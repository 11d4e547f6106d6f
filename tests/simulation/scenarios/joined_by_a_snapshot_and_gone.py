"""A newcomer that had no time to hear what is committed knows it of its snapshot all the same (R1, R8, R11, history 18).

B is cut off while A publishes messages. C comes with an empty disk, and its snapshot has them, before they are acknowledged. B
is removed, C is in sync, and they are acknowledged; but C hears nothing of A any more. Then all lose power, and the disk of A is
lost. etcd comes back from a backup, and B leads the set without these messages. The disk of C names no commit index above what
B has. But it remembers the entry of the map that names it, and nobody is named before all that its snapshot holds is committed.
So an operator is asked which of the two logs is to be given up; and where that is the one of B, all of them are there.
"""

from tests.simulation.options import Options
from tests.simulation.staging.gone_unheard import (
    have_c_say_so,
    join_by_a_snapshot,
    lead_without_c,
    rebuild_unled,
)
from tests.simulation.staging.stage import Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    found = join_by_a_snapshot(stage)
    lead_without_c(stage, found, 0)
    have_c_say_so(stage)
    rebuild_unled(stage, found)
