"""History 8: deduplication (DESIGN 6).

(a) A command is appended and not yet committed; its stream breaks, and its retry comes on another one. (b) It is only in the
suffix of a primary that dies, with another behind it; both are sent again to the successor, which has neither. (c) The new
primary finishes a commit that the old one had only appended; the client's retry gets that commit's answer. Each takes effect
once.
"""

from tests.simulation.staging.stage import A, B, C, Stage

CASES = ("retry on another stream", "dropped suffix", "finished by the successor", "answer lost")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.transaction("b") if case.startswith("finished") else None
    if case == "retry on another stream":
        stage.pause_store(C, 0.6)
    elif case == "dropped suffix":
        stage.cut(A, B, C)
    elif case == "finished by the successor":
        stage.pause_store(A, 5)
    else:
        stage.hold(A, "c1")
    end = stage.log_end(A)
    promises = (
        [client.commit(key)] if key is not None else [client.publish("a"), client.publish("a", count=2)]
    )
    stage.until(lambda: stage.log_end(A) > end + len(promises) - 1)
    if case == "finished by the successor":
        stage.until(lambda: min(stage.durable(B), stage.durable(C)) == stage.log_end(A))
    if case in ("dropped suffix", "finished by the successor"):
        stage.kill(A)
        stage.mend(A, B, C)
    else:
        for side in stage.world.network.open_streams:
            if side.host == "c1" and not side.is_closed:
                stage.world.network.reset(side)
        stage.run(0.3)
        stage.let_go(A, "c1")
    stage.until(lambda: all(promise.is_done for promise in promises))
    stage.expect(
        all(promise.operation and promise.operation.is_ok for promise in promises), "each is acknowledged"
    )
    stage.expect(len(reader.browse("a")) == (0 if key else 3), "each took effect once")
    stage.expect(len(reader.browse("b")) == (1 if key else 0), "so did the commit")
