"""History 12 with a prepared branch: below min_in_sync (R3, R4).

The set is {A, B}, the minimum 2, and B stalls. The coordinator tells the branch to commit, and is not answered: once it were,
it would delete the decision, and B, promoted after A's death without the commit, would find nothing left and presume abort.
B holds the branch as prepared, and commits it when it is told again.
"""

from lockstep.core.commands import CommitBranchCommand
from tests.simulation.staging.prepared_branch import prepare, prepared_count, write_participants, xid_of_it
from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, coordinator = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.kill(C)
    stage.until(lambda: stage.in_sync == {A, B})
    xid = xid_of_it(stage)
    write_participants(stage)
    prepare(stage, client, xid)
    stage.hold(A, B)
    commit = coordinator.session.submit(CommitBranchCommand(0, xid.encode()))
    stage.run(3.5)
    stage.expect(stage.in_sync == {A, B}, "A does not shrink below the minimum")
    stage.expect(not commit.is_done, "the coordinator is not answered")
    stage.kill(A)
    stage.let_go(A, B)
    stage.run(4)
    stage.world.lose_disk(A)
    stage.world.stores[A].die()
    stage.revive(A, C)
    stage.until(lambda: commit.is_done)
    stage.whole()
    stage.expect(prepared_count(stage) == 0 and len(client.browse("a")) == 1, "it is committed")
