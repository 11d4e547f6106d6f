"""History 12: below min_in_sync (R3, R4).

The set is {A, B}, the minimum 2, and B stalls. A commit waits; somebody who asks for its outcome, and a rollback by time-
out, wait too: nothing is told that one disk alone has. A does not shrink to itself. A dies; B is promoted, and what it says
is the first that anybody hears.
"""

from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, asker = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    stage.kill(C)
    stage.until(lambda: stage.in_sync == {A, B})
    key, timed = client.transaction("a", "b"), client.begin(timeout_ms=400)
    stage.hold(A, B)
    commit = client.commit(key)
    stage.run(1.5)
    asking = [asker.ask_outcome(key), asker.ask_outcome(timed)]
    stage.run(2)
    stage.expect(stage.in_sync == {A, B}, "A does not shrink below the minimum")
    stage.expect(not commit.is_done and not any(asked.is_done for asked in asking), "nothing is told")
    stage.kill(A)
    stage.let_go(A, B)
    stage.run(4)
    stage.world.lose_disk(A)
    stage.world.stores[A].die()
    stage.revive(A, C)
    stage.until(lambda: commit.is_done and all(asked.is_done for asked in asking))
    stage.whole()
