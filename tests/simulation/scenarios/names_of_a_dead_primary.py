"""Names that a dead primary left in the cluster's directory (DESIGN 2; P7).

It dies between a committed deletion and the release of the name, or between a claim and the declaration. The name is given back
by whoever leads then, while what is declared keeps its own; a client that comes back late claims its name again. And an etcd
that was set back, and lacks a name that the set has, gets it again.
"""

from lockstep.core.commands import (
    DeclareQueueCommand,
    QueueOptions,
)
from lockstep.core.effects import ReleaseName
from tests.simulation.staging.stage import ETCD, SET, A, B, C, Stage

CASES = ("deleted", "claimed", "lost by etcd")
WITHIN_S = 12


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, etcd = stage.client("c1"), stage.world.etcd
    name_of, other_name = (stage.world.keys.directory("queue", name) for name in ("a", "b"))
    client.declare("b")
    if case == "deleted":
        client.declare("a")
        stage.when(lambda process, effect: isinstance(effect, ReleaseName), lambda: stage.kill(A))
        stage.done(client.delete("a"))
    elif case == "claimed":
        stage.hold(ETCD, A)
        declared = client.session.submit(DeclareQueueCommand(0, "a", QueueOptions()))
        stage.until(lambda: etcd.get(name_of) is not None, what="the claim")
        stage.cut("c1", A, B, C)
        stage.kill(A)
        stage.let_go(ETCD, A)
    else:
        client.declare("a")
        etcd.execute(lambda etcd: etcd.delete(name_of))
        stage.until(lambda: etcd.get(name_of) is not None, WITHIN_S, "the name in the directory")
        return
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.until(lambda: etcd.get(name_of) is None, WITHIN_S, "a directory without the name")
    held = etcd.get(other_name)
    stage.expect(held is not None and held.value == SET.encode(), "what is declared keeps its name")
    if case == "claimed":
        stage.mend("c1", A, B, C)
        stage.done(declared)
        stage.expect(etcd.get(name_of) is not None, "the late declaration has claimed its name again")
