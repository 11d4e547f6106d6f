"""History 7: an unsticky "no" (T5).

The client's commit hangs in the network. Somebody else asks what became of the transaction and wants to be certain, hears "rolled
back" and does the work again elsewhere. Then the old commit arrives. A "no" that was heard is a record: the commit is refused.
"""

from lockstep.core.server_messages import OutcomeState
from tests.simulation.staging.stage import A, Stage

CASES = ("same primary", "successor")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, asker = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    stage.hold("c1", A)
    commit = client.commit(key)
    stage.expect(
        asker.outcome(key, fence=True, of=client) == OutcomeState.ROLLED_BACK, "a fence makes certain"
    )
    stage.done(asker.commit(asker.transaction("a", "b")))
    if case == "successor":
        stage.kill(A)
        stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.let_go("c1", A)
    stage.expect(stage.done(commit).is_rejected, "the old commit is refused")
    stage.expect(asker.outcome(key) == OutcomeState.ROLLED_BACK, "as was said before")
    stage.expect(len(asker.browse("a")) == len(asker.browse("b")) == 1, "the work was done once")
