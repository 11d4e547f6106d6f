"""History 25: command numbers (DESIGN 6).

(a) A command is rejected, and its primary dies before the client hears it: the number is consumed, the next command is no
gap. (b) The first command of a session has taken effect when all restart: its retry is in doubt; it is not executed by a
session that looks new.
"""

from lockstep.core.commands import (
    DeclareQueueCommand,
    QueueOptions,
)
from tests.simulation.staging.stage import A, B, C, Stage

CASES = ("rejected", "rejected, heard", "all restart")


def play(stage: Stage, case: str) -> None:
    stage.start()
    owner = stage.client("c2")
    owner.declare("a")
    client = stage.client("c1")
    stage.until(lambda: bool(client.session.core.session), what="the session")
    if case != "rejected, heard":
        stage.hold(A, "c1")
    if case == "all restart":
        end = stage.log_end(A)
        published = client.publish("a", count=2)
        stage.until(lambda: stage.log_end(A) > end)
        stage.run(0.1)
        stage.kill(A, B, C)
        stage.run(0.01)
        stage.lose(A, "c1")
        stage.let_go(A, "c1")
        stage.run(0.1)
        stage.revive(A, B, C)
        stage.expect(stage.done(published).is_in_doubt, "a retry without its session is in doubt")
        stage.expect(len(owner.browse("a")) == 2, "and took effect once")
        return
    rejected = client.session.submit(DeclareQueueCommand(0, "a", QueueOptions(length_max=7)))
    stage.run(0.1)
    stage.kill(A)
    stage.let_go(A, "c1")
    following = client.publish("a")
    stage.expect(stage.done(rejected).is_rejected, "it is rejected, now as before")
    stage.expect(stage.done(following).is_ok, "the next command is no gap")
