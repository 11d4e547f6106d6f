"""History 3: transients and positions (DESIGN 3, R12).

A transient message takes a place before a durable one. B restarts and replays without the transient; it must not count
places anew: `accept(8)` names the durable message on B too. The same inside one transaction, in a queue whose limit the
transient overflowed, and when all brokers restart and nobody knows the transient any more.
"""

from lockstep.core.commands import QueueOptions
from tests.simulation.staging.stage import A, B, C, Stage

CASES = ("plain", "in a transaction", "evicting", "full restart")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a", options=QueueOptions(length_max=3, is_evicting=True) if case == "evicting" else None)
    key = client.begin() if case == "in a transaction" else None
    for is_durable in (False, True, False, True):
        stage.done(client.publish("a", key, is_durable=is_durable))
    if key is not None:
        stage.done(client.commit(key))
    if case == "full restart":
        stage.kill(A, B, C)
        stage.revive(A, B, C)
    else:
        stage.kill(B)
        stage.until(lambda: B not in stage.in_sync)
        stage.revive(B)
    stage.whole()
    client = stage.client("c2")
    count = len(client.browse("a"))
    stage.expect(count == {"evicting": 3, "full restart": 2}.get(case, 4), f"{count} messages")
    for _ in range(count - 1):
        stage.done(client.settle("a", client.take("a")))
    epoch = stage.epoch
    stage.kill(*((B,) if stage.map.primary == B else (A, C)))
    stage.until(lambda: stage.epoch > epoch, what="the next epoch")
    stage.revive(A, B, C)
    stage.whole()
    stage.expect(len(client.browse("a")) == 1 or case == "evicting", "the last one, which is durable")
