"""A primary that slept before it heard that it is not alone in its set any more, and an etcd that has forgotten it (R1, R4, R6).

A is alone in the set when etcd is backed up. B has come back, and A takes it into the set, but sleeps before it hears that it
has. B leads the next epoch, and messages are acknowledged. etcd comes back from the backup, with the entry in which A is alone.
A wakes. That all members of that entry follow it says nothing: one that it asked to be in the set may have led since. So it does
not serve; and with the newer state all goes on.
"""

from lockstep.core.effects import SwapMap
from tests.simulation.etcd import Backup
from tests.simulation.options import Options
from tests.simulation.staging.moments import does
from tests.simulation.staging.restored_etcd import SLEPT_S, expect_deposed, go_on_in_the_newer_state, wake
from tests.simulation.staging.stage import ETCD, A, B, Stage, calm


def options() -> Options:
    return calm(min_in_sync=1, brokers=2)


def play(stage: Stage) -> None:
    stage.start()
    world, client = stage.world, stage.client("c1")
    client.declare("a")
    stage.kill(B)
    stage.until(lambda: stage.in_sync == {A}, what="A alone")
    stage.run(1)
    backups: list[Backup] = []

    def ask() -> None:
        backups.append(world.etcd.backup())
        stage.hold(ETCD, A)

    stage.when(does(A, SwapMap), ask)
    stage.revive(B)
    stage.until(lambda: stage.in_sync == {A, B}, what="B in the set again")
    stage.pause(A, SLEPT_S)
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.expect(stage.done(stage.client("c2").publish("a", count=3)).is_ok, "B serves")
    stage.run(6)
    new = world.etcd.backup()
    world.etcd.restore(backups[0])
    stage.lose(ETCD, A)
    stage.let_go(ETCD, A)
    before = stage.map
    wake(stage)
    expect_deposed(stage, before)
    go_on_in_the_newer_state(stage, new, client)
