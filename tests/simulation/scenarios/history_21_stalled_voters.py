"""History 21: the stalled voters of the original (R3, R4).

Both backups frozen: a commit is not acknowledged before it is on their disks. One frozen, one well: it is acknowledged after the
heartbeat's misses, without the frozen one. A backup lost just before the vote, or just after it. A backup promoted while the old
primary is active again and again asked to commit. An old primary that returns with the transaction in its memory.
"""

from lockstep.core.ids import LogIndex
from lockstep.core.server_messages import OutcomeState
from tests.simulation.staging.moments import acknowledges
from tests.simulation.staging.stage import A, B, C, Stage

CASES = ("both frozen", "one frozen", "lost before the vote", "lost after the vote", "old primary returns")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    prepared = LogIndex(stage.log_end(A) + 1)
    if case.endswith("frozen"):
        for broker in (B, C) if case.startswith("both") else (B,):
            for process in stage.processes_of(broker):
                stage.world.pause(process, 3_000_000)
    elif case == "lost before the vote":
        stage.when(acknowledges(B, prepared), lambda: stage.kill(B))
    elif case == "lost after the vote":
        stage.when(acknowledges(C, prepared), lambda: stage.kill(B))
    else:
        stage.pause(A, 6)
    commit = client.commit(key)
    stage.run(2)
    if case == "both frozen":
        stage.expect(not commit.is_done, "no commit without its voters")
    elif case != "old primary returns":
        stage.expect(bool(commit.operation and commit.operation.is_ok), "the commit is acknowledged")
    stage.until(lambda: commit.is_done)
    again = stage.done(client.commit(key))
    stage.expect(again.is_rejected, "nothing is committed twice")
    stage.run(6)
    stage.revive(A, B, C)
    stage.whole()
    ok = bool(commit.operation and commit.operation.is_ok)
    stage.expect(
        (reader.outcome(key) == OutcomeState.COMMITTED) == ok, "the outcome is what the client heard"
    )
    stage.expect(len(reader.browse("a")) == len(reader.browse("b")) == int(ok), "all or nothing")
