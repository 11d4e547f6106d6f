"""A transaction accepts what a plain publish put there, and a plain accept takes what a transaction put there (QPID-5966).

Both ways round, with the primary killed before, and after, the end; a backup that knew one of the two only by another path than
the other would be left with a message that is gone, or without one that is there (P1, P3).
"""

from tests.simulation.staging.stage import A, Stage

CASES = (
    "accept in tx, commit",
    "accept in tx, rollback",
    "publish in tx, commit",
    "accept in tx, failover",
    "publish in tx, failover",
)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    if case.startswith("accept"):
        stage.done(client.publish("a", count=2))
        taken = client.take("a")
        key = client.begin()
        stage.done(client.settle("a", taken, key))
        stage.done(client.publish("b", key))
    else:
        key = client.transaction("a", "a")
    if case.endswith("rollback"):
        stage.done(client.rollback(key))
    elif case.endswith("commit"):
        stage.done(client.commit(key))
    else:
        stage.kill(A)
        stage.until(lambda: client.session.core.epoch == 2, what="the client at a successor")
        end = stage.done(client.commit(key))
        stage.expect(end.is_rejected, "a transaction left open by its primary is aborted")
    if case == "publish in tx, commit":
        stage.done(reader.settle("a", reader.take("a", 2)))
    left = {"accept in tx, commit": 1, "publish in tx, commit": 0, "publish in tx, failover": 0}.get(case, 2)
    stage.expect(len(reader.browse("a")) == left, f"{left} messages in a")
    if stage.map.primary == A:
        stage.kill(A)
        stage.until(lambda: stage.epoch == 2, what="a successor")
        stage.expect(len(reader.browse("a")) == left, f"{left} messages in a, at the successor too")
