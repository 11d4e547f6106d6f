"""A purge of a long queue is done in parts, between which others have their turn (R6): one publishes between two of them.

What goes was there when the purge was asked for, and what comes meanwhile stays. It is answered behind the last part; where the
primary dies, or hands over, between two parts, the command is repeated to the next one, which takes all that is there then.
"""

from lockstep.core.commands import PurgeQueueCommand
from tests.simulation.options import Options
from tests.simulation.scenarios.handed_over import hand_over
from tests.simulation.staging.stage import A, B, Stage, calm

CASES = ("undisturbed", "killed between two parts", "handed over between two parts")
MESSAGES = 60
PART = 3


def options() -> Options:
    return calm(command_messages_max=PART)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("q")
    client.all_done([client.publish("q", count=PART) for _ in range(MESSAGES // PART)])
    purge = client.session.submit(PurgeQueueCommand(0, "q"))
    stage.until(lambda: 0 < _left(stage) < MESSAGES, what="a part")
    meanwhile = other.publish("q")
    stage.until(lambda: _left(stage) < MESSAGES // 2, what="half of it")
    stage.expect(not purge.is_done, "it is answered behind the last part")
    if case == "killed between two parts":
        stage.kill(A)
    elif case == "handed over between two parts":
        hand_over(stage, A, B)
    purged, published = stage.done(purge), stage.done(meanwhile)
    stage.expect(purged.is_ok and published.is_ok, "both are done")
    found = client.browse("q")
    if case == "undisturbed":
        stage.expect(found == list(published.bodies), "what came meanwhile stays")
    stage.expect(set(found) <= set(published.bodies), "what was there is gone")
    later = stage.done(other.publish("q")).bodies
    stage.expect(client.browse("q") == [*found, *later], "and nothing goes behind the answer")
    stage.revive(A)
    stage.whole()


def _left(stage: Stage) -> int:
    primary = stage.primary_core(A)
    assert primary is not None
    return primary.context.state.queues.by_name["q"].length
