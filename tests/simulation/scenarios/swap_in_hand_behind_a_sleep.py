"""A swap that its primary had in hand when it fell asleep, and an etcd that has forgotten who led since (R1, R4, R6, history 13).

A and B are in sync, and etcd is backed up. B dies, and A is about to take it out of the set when it stands still. B comes back,
leads the next epoch, and messages are acknowledged. etcd comes back from the backup, with the entry that A's swap is to replace.
A wakes, and does what it was about to do: but its lease is over, so the swap does not leave any more. A does not serve, and B is
not taken out.
"""

from lockstep.core.effects import SwapMap
from tests.simulation.options import Options
from tests.simulation.staging.moments import does
from tests.simulation.staging.restored_etcd import SLEPT_S, expect_deposed, go_on_in_the_newer_state, wake
from tests.simulation.staging.stage import A, B, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1, brokers=2)


def play(stage: Stage) -> None:
    stage.start()
    world, client = stage.world, stage.client("c1")
    client.declare("a")
    stage.run(1)
    old = world.etcd.backup()
    stage.when(does(A, SwapMap), lambda: stage.pause(A, SLEPT_S))
    stage.kill(B)
    stage.until(lambda: world.brokers[A].is_paused, what="A, which stands still")
    stage.revive(B)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.expect(stage.done(stage.client("c2").publish("a", count=3)).is_ok, "B serves")
    stage.run(6)
    new = world.etcd.backup()
    world.etcd.restore(old)
    before = stage.map
    wake(stage)
    expect_deposed(stage, before)
    go_on_in_the_newer_state(stage, new, client)
