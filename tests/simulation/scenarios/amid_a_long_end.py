"""A session with much in hand ends, and amid that its set is handed over, its primary dies, or a newcomer comes (P1, T8, R8).

A client leaves with hundreds of messages in hand, some of them accepted in an open transaction. Its primary gives all of that
back in pieces between which nothing comes. The hand-over waits for that, and what another client has open goes on behind it; a
successor after a crash finds all of it back, or gives it back itself; a newcomer that subscribes meanwhile is heard behind it. In
each case every message is there once, for whoever consumes it next.
"""

from lockstep.client.session_events import Close
from tests.simulation.options import Options
from tests.simulation.staging.hand_overs import ask_hand_over
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = ("it is handed over", "it dies", "a newcomer comes")
HELD, ACCEPTED = 600, 20


def options_of(case: object) -> Options:
    return calm(piece_cost=1)


def play(stage: Stage, case: str) -> None:
    stage.start()
    away, other = stage.client("c1"), stage.client("c2")
    other.declare("a", "b")
    stage.done(other.publish("a", count=HELD))
    taken = away.take("a", HELD)
    mine = away.begin()
    away.all_done([away.settle("a", [one], mine) for one in taken[:ACCEPTED]])
    key = other.begin()
    stage.done(other.publish("b", key))
    if case == "a newcomer comes":
        stage.kill(C)
        stage.until(lambda: stage.in_sync == {A, B}, what="C out of the set")
    away.session.feed(Close())
    stage.until(lambda: is_amid(stage), what="the end of its session")
    if case == "it is handed over":
        ask_hand_over(stage, A, B)
        stage.serves(B)
        stage.done(other.publish("b", key))
        stage.expect(stage.done(other.commit(key)).is_ok, "what another has open goes on")
        stage.expect(len(other.browse("b")) == 2, "all of it")
    elif case == "it dies":
        stage.kill(A)
        stage.until(lambda: stage.map.primary in (B, C), what="a successor")
        stage.serves(stage.map.primary)
    else:
        stage.revive(C)
        stage.until(lambda: stage.in_sync == {A, B, C}, what="C in sync")
        stage.expect(stage.done(other.commit(key)).is_ok, "what another has open commits")
    stage.expect(len(set(other.browse("a"))) == HELD, "each message is there")
    back = other.take("a", HELD)
    stage.expect(len({message.position for _, message in back}) == HELD, "each is delivered once")
    stage.expect(stage.done(other.settle("a", back)).is_ok, "all of them can be accepted")
    stage.expect(other.browse("a") == [], "none is left")


def is_amid(stage: Stage) -> bool:
    core = stage.primary_core(A)
    return core is not None and core.is_alone and bool(core.context.alone.works)
