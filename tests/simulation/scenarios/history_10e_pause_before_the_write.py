"""History 10e: a pause between the lease check and the socket write (R6, P8).

A has decided, within its lease, to answer its client; it is stopped in the place of the answer's writing for longer than the
lease. A successor has answered when A goes on. What is about to be written is checked once more and dropped.
"""

from lockstep.core.server_messages import BrowseAnswer
from tests.simulation.staging.moments import answers_client
from tests.simulation.staging.stage import ETCD, A, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.done(client.publish("a"))
    stage.when(answers_client(A, BrowseAnswer), lambda: stage.pause(A, 7))
    asking = client.ask_browse("a")
    stage.until(lambda: stage.world.brokers[A].is_paused)
    stage.hold(ETCD, A)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.cut("c2", A)
    stage.done(other.publish("a"))
    stage.run(7)
    stage.let_go(ETCD, A)
    stage.mend("c2", A)
    stage.until(lambda: asking.is_done)
    stage.whole()
