"""A set is handed over, and a client finds the successor a second later: its transaction is open, unless the client has given up.

What is open belongs to a session, and how long that is without a primary before it is given up is its client's own choice
(`give_up_ms`): below the pause of a hand-over on a busy machine nothing is left to go on with (T8).
"""

from lockstep.client.session_settings import SessionSettings
from tests.simulation.scenarios.handed_over import hand_over
from tests.simulation.staging.stage import A, B, C, Stage

CASES = ("patient", "gives up before")
PAUSE_SECONDS = 1.3
TIMEOUT_MS = 2_000
"""How long the set keeps the session of a client that has given up."""


def play(stage: Stage, case: str) -> None:
    stage.start()
    is_patient = case == "patient"
    settings = SessionSettings() if is_patient else SessionSettings(TIMEOUT_MS, give_up_ms=400)
    client, other = stage.client("c1", settings), stage.client("c2")
    client.declare("a")
    key = client.begin()
    stage.done(client.publish("a", key))
    stage.cut("c1", B, C)
    hand_over(stage, A, B)
    stage.run(PAUSE_SECONDS)
    stage.mend("c1", B, C)
    if is_patient:
        stage.done(client.publish("a", key))
        stage.expect(stage.done(client.commit(key)).is_ok, "it commits")
        stage.expect(not client.session.aborted and not client.session.losses, "nothing was given up")
        stage.expect(len(other.browse("a")) == 2, "all of it")
        return
    stage.expect(key in client.session.aborted, "it is told so as it gives up")
    again = client.begin()
    stage.done(client.publish("a", again))
    stage.expect(stage.done(client.commit(again)).is_ok, "it goes on in a new session")
    stage.run(TIMEOUT_MS / 1000 + 1)
    stage.expect(len(other.browse("a")) == 1, "nothing of what was given up")
