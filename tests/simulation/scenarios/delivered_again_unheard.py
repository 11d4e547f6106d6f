"""A message is given back, and delivered to the same consumer again; its client hears of neither, and its stream ends (P7).

The settle has no answer when the client comes back, and names what the session holds: the client is to get it once more.
"""

from lockstep.core.commands import Disposition
from tests.simulation.staging.stage import A, Stage

CASES = (Disposition.RELEASE, Disposition.FAIL)


def play(stage: Stage, case: int) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    _, inbox = client.session.consume("a", 2)
    stage.done(client.publish("a"))
    stage.until(lambda: bool(inbox.waiting), what="the message")
    taken = list(inbox.waiting)
    inbox.waiting.clear()
    stage.hold(A, "c1")
    settled = client.settle("a", taken, disposition=case)
    stage.run(3)
    stage.let_go(A, "c1")
    stage.expect(stage.done(settled).is_ok, "it is settled")
    stage.until(lambda: bool(inbox.waiting), what="the message again")
    stage.done(client.settle("a", inbox.waiting))
