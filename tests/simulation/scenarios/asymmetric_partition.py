"""A partition in one direction only: of the primary from a backup, from etcd, or from its client (P7, P8, R4, R6).

For 6 s what one host sends to another does not arrive, while the other way is open. Work goes on through whoever can: the
backup is removed or a successor promoted, and everything that was answered stays true.
"""

from tests.simulation.staging.stage import Stage

CASES = ("b1 b2", "b2 b1", "b1 etcd", "etcd b1", "b2 etcd", "etcd b2", "b1 c1", "c1 b1")


def play(stage: Stage, case: str) -> None:
    source, target = case.split()
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    stage.hold(source, target)
    commit = client.commit(key)
    late = [other.publish("a"), other.publish("b")]
    stage.run(6)
    if case not in ("b1 c1", "c1 b1"):
        stage.expect(
            commit.is_done and all(promise.is_done for promise in late), "work goes on during the partition"
        )
    stage.let_go(source, target)
    stage.until(lambda: commit.is_done)
    stage.whole()
