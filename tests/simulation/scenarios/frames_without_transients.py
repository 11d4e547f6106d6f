"""A primary's own log lacks transient parts (R12): whoever gets its frames from there is not whole.

B is cut off, and keeps its memory. A transient message is published; C restarts, loads its log, which has no trace of it, and is
made whole by a snapshot of A's memory. A dies, C leads. B comes to C with a whole memory that ends before the message: the frames
that C would send it have no transient parts. So B gets a memory snapshot, too; then C dies, and B has the message.
"""

from tests.simulation.options import Options
from tests.simulation.staging.stage import A, B, C, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    stage.done(client.publish("a"))
    stage.cut(B, A, C)
    stage.until(lambda: stage.in_sync == {A, C})
    stage.done(client.publish("a", is_durable=False))
    stage.kill(C)
    stage.until(lambda: stage.in_sync == {A})
    stage.revive(C)
    stage.until(lambda: stage.in_sync == {A, C}, what="C in sync again")
    stage.kill(A)
    stage.serves(C)
    stage.mend(B, A, C)
    stage.until(lambda: B in stage.in_sync, what="B in sync again")
    stage.run(0.5)
    stage.kill(C)
    stage.serves(B)
    stage.expect(len(client.browse("a")) == 2, "the transient message, too: no memory of it was lost but C's")
    stage.revive(A, C)
    stage.whole()
