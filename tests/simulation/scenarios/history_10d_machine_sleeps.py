"""History 10d: the machine sleeps (R6).

A's machine is suspended for longer than its lease. CLOCK_BOOTTIME has gone on when it wakes; CLOCK_MONOTONIC would have
stood still, and with it the lease. With requests of its client in its sockets, and before any news from etcd, A answers
nothing.
"""

from tests.simulation.staging.stage import ETCD, A, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.done(client.publish("a"))
    stage.run(1)
    stage.hold(ETCD, A)
    stage.suspend(A, 7)
    asking = client.ask_outcome((stage.log_end(A), stage.epoch))
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.cut("c2", A)
    stage.done(other.publish("a"))
    stage.run(7)
    stage.let_go(ETCD, A)
    stage.mend("c2", A)
    stage.until(lambda: asking.is_done)
    stage.whole()
