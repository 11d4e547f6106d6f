"""Qpid's failure test: the primary dies under an open transaction, which is aborted, and its client is told (T8, P3).

What it published is nowhere, what it accepted is there again for others, and its next operation, as its commit, is rejected.
"""

from lockstep.core.server_messages import OutcomeState
from tests.simulation.staging.stage import A, Stage

CASES = ("kill", "pause", "power loss")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    stage.done(client.publish("a", count=2))
    key = client.begin()
    stage.done(client.settle("a", client.take("a"), key))
    stage.done(client.publish("b", key))
    {
        "kill": lambda: stage.kill(A),
        "pause": lambda: stage.pause(A, 9),
        "power loss": lambda: stage.power_loss(A),
    }[case]()
    stage.until(
        lambda: client.session.core.epoch == 2 and bool(client.session.core.session), what="a successor"
    )
    stage.expect(
        key in client.session.aborted or stage.done(client.publish("b", key)).is_rejected,
        "the client is told",
    )
    stage.expect(stage.done(client.commit(key)).is_rejected, "the commit is rejected")
    stage.expect(other.outcome(key) == OutcomeState.ROLLED_BACK, "everybody hears that it was rolled back")
    stage.expect(len(other.take("a", 2)) == 2, "what it had accepted is given to others")
    stage.expect(other.browse("b") == [], "what it had published is nowhere")
