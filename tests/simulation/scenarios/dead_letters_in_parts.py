"""Dead letters that are copies, and more of them than a frame carries (DESIGN 5): made in parts, each complete by itself.

Whoever leads next finds each message in one place, whatever part was the last; what was answered is in the log.
"""

from lockstep.core.commands import BindCommand, DeclareExchangeCommand, Disposition, QueueOptions
from lockstep.core.errors import ErrorCode
from tests.simulation.options import Options
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import A, Stage, calm

CASES = (
    "rejected",
    "killed when it is answered",
    "killed between two parts",
    "killed when a part is answered",
    "worn out",
    "expired",
    "queues of many kinds",
)
MESSAGES = 30
SIZE = 1000
COMMAND_BYTES = 8 * SIZE


def options() -> Options:
    """Most bodies are away, and a command brings a few."""
    return calm(resident_bytes_max=10_000, body_bytes_max=2000, command_bytes_max=COMMAND_BYTES)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("dead", options=QueueOptions(is_durable=False))
    if case == "queues of many kinds":
        _publish_to_many(stage, client)
        return
    options = QueueOptions(
        dead_letter_exchange="",
        dead_letter_key="dead",
        message_ttl_ms=500 if case == "expired" else 0,
        delivery_count_max=1 if case == "worn out" else 0,
    )
    client.declare("q", options=options)
    done = 0
    promises = [client.publish("q", size=SIZE) for _ in range(MESSAGES)]
    bodies = sorted(body for promise in promises for body in stage.done(promise).bodies)
    if case != "expired":
        taken = client.take("q", MESSAGES)
        disposition = Disposition.FAIL if case == "worn out" else Disposition.REJECT
        is_partial = case == "killed when a part is answered"
        settling = client.settle("q", taken, disposition=disposition, may_be_partial=is_partial)
        if case == "killed between two parts":
            stage.until(lambda: 0 < _dead(stage) < MESSAGES, what="a part")
            # No more bodies come, and what was done reaches the backups.
            stage.kill_store(A)
            stage.run(0.1)
            stage.kill(A)
        answered = stage.done(settling)
        done, is_ok = answered.value, answered.is_ok
        stage.expect(is_ok is (case != "killed between two parts"), "it is answered when all is in the log")
        if case in ("killed when it is answered", "killed when a part is answered"):
            stage.kill(A)
    stage.until(lambda: stage.map.primary != A or not case.startswith("killed"), what="a successor")
    stage.run(2)
    dead = client.browse("dead")
    if case == "killed between two parts":
        stage.expect(0 < len(dead) < MESSAGES, "a part is rejected")
    elif case == "killed when a part is answered":
        stage.expect(0 < len(dead) == done < MESSAGES, "as much is rejected as was answered")
    else:
        stage.expect(len(dead) == MESSAGES, "all are rejected")
    left = stage.client("c2").take("q", MESSAGES - len(dead))
    stage.expect(
        sorted(dead + [message.body for _, message in left]) == bodies, "each message is in one place"
    )
    stage.revive(A)
    stage.whole()


def _publish_to_many(stage: Stage, client: ScriptedClient) -> None:
    """One message to queues with different times to live is in the log for each of them."""
    stage.done(client.session.submit(DeclareExchangeCommand(0, "x", "fanout", True)))
    for number in range(12):
        client.declare(f"q{number}", options=QueueOptions(message_ttl_ms=60_000 * (number + 1)))
        stage.done(client.session.submit(BindCommand(0, "x", f"q{number}", "")))
    refused = stage.done(client.publish("", size=SIZE, exchange="x"))
    stage.expect(refused.code is ErrorCode.TOO_LARGE, "that is more than a command may bring")
    taken = stage.done(client.publish("", size=SIZE // 2, exchange="x"))
    stage.expect(taken.is_ok, "this is not")


def _dead(stage: Stage) -> int:
    """How many there are; while a part is under way, 0."""
    primary = stage.primary_core(A)
    assert primary is not None
    if primary.is_alone:
        return 0
    return primary.context.state.queues.by_name["dead"].length
