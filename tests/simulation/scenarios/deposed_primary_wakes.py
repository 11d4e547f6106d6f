"""A deposed primary wakes after a pause longer than its lease, with requests of clients in its sockets (P8, R6).

A is stopped for 8 s at each of four places: between two inputs, in the place of an answer, of a frame for a backup, of a
frame for its own store. Meanwhile B leads and answers. When A wakes it says nothing to anybody that contradicts B, and comes
back as a learner.
"""

from lockstep.core.server_messages import Answers
from tests.simulation.staging.moments import Moment, answers_client, sends_frames, writes_frames
from tests.simulation.staging.stage import A, Stage

CASES = ("between inputs", "answer", "frame for a backup", "frame for the store")
_MOMENTS: dict[str, Moment] = {
    "answer": answers_client(A, Answers),
    "frame for a backup": sends_frames(A),
    "frame for the store": writes_frames(A),
}


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    asking = other.transaction("a")
    if case in _MOMENTS:
        stage.when(_MOMENTS[case], lambda: stage.pause(A, 8))
    else:
        stage.pause(A, 8)
    commit = client.commit(key)
    other.publish("a", asking)
    client.publish("b")
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.until(lambda: commit.is_done)
    later = stage.client("c3")
    stage.done(later.publish("a"))
    later.browse("a")
    stage.expect(stage.world.brokers[A].is_paused, "A still sleeps while its successor answers")
    stage.run(8)
    stage.whole()
