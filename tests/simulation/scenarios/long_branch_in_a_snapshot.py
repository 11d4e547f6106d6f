"""A branch in which very much was done commits while a newcomer is sent a snapshot in which it is prepared (P4, P5, R8).

C comes with an empty disk, and is sent all of the set in many parts; the branch, which was prepared before, commits when the
first of them have left. The part with its operations leaves behind that, and says what it would have said then: with the log
that follows C has each of its messages once, and leads with them.
"""

from lockstep.core.commands import CommitBranchCommand
from lockstep.core.xid import Xid
from tests.simulation.options import Options
from tests.simulation.staging.hand_overs import ask_hand_over
from tests.simulation.staging.moments import sends_snapshot
from tests.simulation.staging.prepared_branch import prepare
from tests.simulation.staging.stage import A, B, C, Stage, calm

OPERATIONS = 600
"""More than are looked at, or let go of, in one step."""
XID = Xid(1, b"long", b"1")
"""Of another transaction manager: nobody asks for its decision."""


def options() -> Options:
    """A newcomer gets a whole snapshot where nobody keeps much of the log."""
    return calm(small_limits=True, seed=7)


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a", "b")
    prepare(stage, client, XID, OPERATIONS)
    for _ in range(30):
        stage.done(client.publish("b", count=5, size=1000))
    stage.power_loss(C)
    stage.world.lose_disk(C)
    stage.until(lambda: stage.in_sync == {A, B}, what="C out of the set")
    parts: list[None] = []

    def hold_the_rest() -> None:
        stage.hold(C, A)
        parts.append(None)

    stage.when(sends_snapshot(A), hold_the_rest)
    stage.revive(C)
    stage.until(lambda: bool(parts), what="the first parts")
    committed = client.session.submit(CommitBranchCommand(0, XID.encode()))
    stage.expect(stage.done(committed).is_ok, "it commits")
    stage.let_go(C, A)
    stage.until(lambda: C in stage.in_sync, what="C in sync")
    ask_hand_over(stage, A, C, is_chosen=True)
    stage.serves(C)
    stage.expect(len(client.browse("a")) == OPERATIONS, "each message once")
    taken = client.take("a", OPERATIONS)
    stage.expect(stage.done(client.settle("a", taken)).is_ok, "all of them can be taken")
    stage.expect(client.browse("a") == [], "none is left")
