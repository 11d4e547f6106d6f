"""A set is handed over under an open transaction and with messages in hand: both go on, and nobody else gets anything (T6, T8).

However often it is handed over, also to one that came meanwhile. When the successor dies, everything is aborted as after any
failure, the oldest of it included.
"""

from lockstep.core.ids import BrokerId
from lockstep.core.server_messages import OutcomeState
from tests.simulation.options import Options
from tests.simulation.staging.hand_overs import ask_hand_over
from tests.simulation.staging.stage import A, B, C, Stage, calm

_PAUSE_SECONDS = 0.5
"""Less than the others wait for a successor."""
CASES = ("once", "twice", "to a newcomer in the end", "and the successor dies")


def options_of(case: object) -> Options:
    """A newcomer gets a whole snapshot where nobody keeps much of the log."""
    return calm(small_limits=case == "to a newcomer in the end", seed=7)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a", "b", "c")
    stage.done(client.publish("a", count=2))
    empty, key = client.begin(), client.begin()
    stage.done(client.settle("a", client.take("a"), key))
    stage.done(client.publish("b", key))
    held = client.take("a")
    hand_over(stage, A, B)
    _, inbox = other.session.consume("a", 10)
    if case == "twice":
        hand_over(stage, B, C)
    if case == "to a newcomer in the end":
        for _ in range(30):
            stage.done(other.publish("c", count=5, size=1000))
        newcomer(stage, C)
        hand_over(stage, B, C)
    stage.done(client.publish("b", key))
    stage.run(1)
    stage.expect(not inbox.waiting, "nobody else is given what is in hand")
    if case == "and the successor dies":
        stage.kill(B)
        stage.until(lambda: {empty, key} <= client.session.aborted, what="the client is told")
        stage.expect(
            other.outcome(key) == OutcomeState.ROLLED_BACK, "everybody hears that it was rolled back"
        )
        stage.until(
            lambda: len(inbox.waiting) == 2, what="what was in hand, and what was accepted, for others"
        )
        return
    stage.expect(stage.done(client.settle("a", held, key)).is_ok, "what was in hand can be accepted")
    stage.expect(stage.done(client.commit(key)).is_ok, "it commits")
    stage.done(client.publish("b", empty))
    stage.expect(stage.done(client.commit(empty)).is_ok, "and so does what had not done anything")
    stage.expect(not client.session.aborted, "nothing was aborted")
    stage.expect(other.browse("a") == [] and len(other.browse("b")) == 3, "all of both")


def newcomer(stage: Stage, broker: BrokerId) -> None:
    """It comes with an empty disk: what it knows of epochs that were handed over it knows by its snapshot."""
    stage.power_loss(broker)
    stage.world.lose_disk(broker)
    stage.until(lambda: broker not in stage.in_sync, what=f"{broker} out")
    stage.revive(broker)
    stage.until(lambda: broker in stage.in_sync, what=f"{broker} in sync again")
    stage.run(0.1)


def hand_over(stage: Stage, source: BrokerId, to: BrokerId) -> None:
    """And wait until it is served there, which nobody's waiting for another successor may delay."""
    ask_hand_over(stage, source, to)
    stage.serves(to, _PAUSE_SECONDS)
