"""The disk of the primary's store alone is full during a commit (R3, R6): it is acknowledged only once it is on that disk too.

The commit ends, nothing that was acknowledged is lost, and the set goes on when there is room again.
"""

from tests.simulation.staging.stage import A, Stage


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    stage.world.disk_faults.fill_up(A)
    commit = client.commit(key)
    late = client.publish("a", count=3)
    stage.run(10)
    stage.world.disk_faults.repair(A)
    stage.done(commit)
    stage.done(late)
    stage.done(client.publish("a", count=3))
    stage.whole()
