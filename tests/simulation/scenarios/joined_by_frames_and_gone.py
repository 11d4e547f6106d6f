"""A newcomer that had no time to hear what is committed, and got all of it in frames (R1, R8, history 13).

B is cut off while A publishes messages. C comes back into the set with the frames of these messages, B is removed, and they are
acknowledged; but C hears nothing more of A. Then all lose power, and the disk of A is lost. etcd comes back from a backup, and B
leads the set without these messages. The disk of C names no commit index above what B has, and no snapshot: by itself it looks as
one of which nothing more was acknowledged. But it remembers what that etcd lacks, and was there when B's epoch was not known yet;
that one began in an etcd that did not know of C. So an operator is asked which of the two logs is to be given up, also while B
leads; and where that is the one of B, all of them are there.
"""

from tests.simulation.options import Options
from tests.simulation.staging.gone_unheard import (
    go_on_with_c,
    have_c_say_so,
    join_by_frames,
    lead_without_c,
    rebuild_unled,
)
from tests.simulation.staging.rebuilt_map import try_to_rebuild_map
from tests.simulation.staging.stage import A, Stage, calm

LED, NOT_LED = "B leads", "nobody leads"
CASES = (LED, NOT_LED)


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    found = join_by_frames(stage)
    lead_without_c(stage, found, 100 if case == LED else 0)
    have_c_say_so(stage)
    if case == NOT_LED:
        rebuild_unled(stage, found)
        return
    is_rebuilt = try_to_rebuild_map(stage, "00000002-generation", A)
    stage.expect(not is_rebuilt, "nobody but an operator says which log goes")
    go_on_with_c(stage, found)
