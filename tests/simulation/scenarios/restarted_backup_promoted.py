"""A restarted backup is promoted before it was shrunk out of the in-sync set (R5, R12).

B is killed and back at once; A, whose requests reach etcd late, has no time to remove it or to give it the non-durable state
before A and C die. Nobody who kept its memory is present, so B may lead: its epoch record says `restarted`, sessions and
transients are gone on every broker, and every acknowledged durable effect is there.
"""

from lockstep.core.effects import OpenSubscription
from tests.simulation.staging.moments import does
from tests.simulation.staging.stage import ETCD, A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    client.all_done([client.publish("a"), client.publish("a", is_durable=False), client.publish("a")])
    stage.when(does(B, OpenSubscription), lambda: stage.kill(A, C))
    stage.hold(A, ETCD)
    stage.kill(B)
    stage.revive(B)
    stage.until(lambda: stage.epoch == 2 and stage.map.primary == B, what="B promoted")
    stage.revive(A, C)
    stage.let_go(A, ETCD)
    stage.serves(B)
    reader = stage.client("c2")
    stage.expect(len(reader.browse("a")) == 2, "what is durable, and nothing else")
    stage.whole()
