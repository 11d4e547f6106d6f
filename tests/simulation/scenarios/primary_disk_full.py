"""The disk of the primary's store is full during a commit (R3, R6): what it does not take is acknowledged by another one only.

Where it is full alone and for long, one whose disk has room leads, and the set goes on meanwhile. Where all disks are full nobody
makes way for anybody. The commit ends, nothing that was acknowledged is lost, and the set goes on when there is room again.
"""

from tests.simulation.staging.stage import A, B, C, Stage

CASES = ("alone", "alone, to the last segment", "all of them")
SIZE = 300_000
MESSAGES = 12
"""More than a segment and the spare one take."""


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    full = (A, B, C) if case == "all of them" else (A,)
    for broker in full:
        stage.world.disk_faults.fill_up(broker)
    promises = [client.commit(key), client.publish("a", count=3)]
    if case != "alone":
        promises += [client.publish("b", size=SIZE) for _ in range(MESSAGES)]
    if case == "alone, to the last segment":
        for promise in promises:
            stage.done(promise)
        stage.expect(stage.map.primary != A, "a broker whose disk has room leads")
    else:
        stage.run(40 if case == "all of them" else 10)
        stage.expect((stage.map.primary, stage.epoch) == (A, 1), "nobody makes way")
        stage.expect(promises[-1].is_done is (case == "alone"), "it waits where there is no room")
    for broker in full:
        stage.world.disk_faults.repair(broker)
    for promise in promises:
        stage.done(promise)
    stage.done(client.publish("a", count=3))
    stage.whole()
