"""Joining and leaving: a backup joins between prepare and commit, and joins and leaves at every other step (P1, R8).

The steps of the transaction are: begun, published, accepted, commit sent, commit at the primary's own disk, commit answered. C is
back at one of them and killed again at a later one, or never. Once it counts as in sync it has all of the transaction's effects.
"""

from collections.abc import Callable
from functools import partial

from lockstep.core.ids import LogIndex
from tests.simulation.promises import Promise
from tests.simulation.staging.moments import acknowledges, writes_frames
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import A, B, C, Stage

STEPS = ("begun", "published", "accepted", "sent", "written", "acknowledged", "answered")
CASES = tuple(
    f"{joins} {leaves}" for place, joins in enumerate(STEPS) for leaves in (*STEPS[place + 1 :], "never")
)


def play(stage: Stage, case: str) -> None:
    joins, leaves = case.split()
    stage.start()
    client = stage.client("c1")
    client.declare("a", "b")
    client.all_done([client.publish("a", count=2)])
    stage.kill(C)
    stage.until(lambda: C not in stage.in_sync)
    commit = _transact(stage, client, partial(_at, stage, joins, leaves))
    stage.until(lambda: commit.is_done)
    stage.expect(bool(commit.operation and commit.operation.is_ok), "the commit is acknowledged")
    _at(stage, joins, leaves, "answered")
    stage.run(0.02)
    if leaves == "never":
        stage.until(lambda: C in stage.in_sync, what="C in sync")
        stage.kill(A)
    stage.run(0.5)


def _transact(stage: Stage, client: ScriptedClient, at: Callable[[str], None]) -> Promise:
    key = client.begin()
    at("begun")
    stage.done(client.publish("b", key))
    at("published")
    stage.done(client.settle("a", client.take("a"), key))
    at("accepted")
    stage.when(writes_frames(A), lambda: at("written"))
    stage.when(acknowledges(B, LogIndex(stage.log_end(A) + 1)), lambda: at("acknowledged"))
    commit = client.commit(key)
    at("sent")
    return commit


def _at(stage: Stage, joins: str, leaves: str, step: str) -> None:
    if step == joins:
        stage.revive(C)
    elif step == leaves:
        stage.kill(C)
