"""The note's *Atomicity* section, with a crash at every point between prepare and the last step of commit (P1, P2, R8).

A transaction with messages for two queues is committed while C, an expected backup, is being counted in by its guard. The
primary crashes in the place of its k-th effect from the sending of the commit on, for every k until the commit was answered;
and the same for a backup. Whoever is promoted has all of the transaction or nothing, and the client learns which.
"""

from tests.simulation.staging.stage import A, B, C, Stage

PRIMARY_STEPS, BACKUP_STEPS = 30, 16
CASES = (
    *(f"primary {step}" for step in range(1, PRIMARY_STEPS + 1)),
    *(f"backup {step}" for step in range(1, BACKUP_STEPS + 1)),
)


def play(stage: Stage, case: str) -> None:
    who, step = case.split()
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    stage.kill(C)
    stage.until(lambda: C not in stage.in_sync)
    key = client.transaction("a", "b", "a")
    stage.revive(C)
    stage.until(lambda: stage.log_end(C) == stage.log_end(A), what="C near the log's end")
    victim = stage.world.brokers[A if who == "primary" else B]
    victim.fuse = int(step)
    commit = client.commit(key)
    stage.until(lambda: commit.is_done)
    last = PRIMARY_STEPS if who == "primary" else BACKUP_STEPS
    if int(step) == last:
        stage.expect(victim.is_alive, f"{last} steps reach beyond the answer")
    stage.run(1)
    found = len(reader.browse("a")) + len(reader.browse("b"))
    stage.expect(found in (0, 3), f"all of the transaction or nothing, not {found} messages of 3")
