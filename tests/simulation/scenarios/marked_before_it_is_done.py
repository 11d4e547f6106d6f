"""The word that etcd was set back, and what nobody may do there any more, reach it at the same moment (R1, R5, R6, history 13).

A leads, and etcd is backed up; then A, or C, is cut off, another leads the next epoch, and messages are acknowledged. etcd comes
back from the backup, and whoever was cut off is there again. Those who miss a stamp there say so; that word takes a moment, as it
waits in the queue of another set, say. Behind the wait of a whole lease A asks for its key again; or A's key of then has ended,
and C, which knows no more than this etcd, asks to be promoted. The word is there just before. What was asked for is not done: A
does not serve again beside its successor, and C does not begin the epoch of that one once more.
"""

from tests.simulation.etcd import Call
from tests.simulation.options import Options
from tests.simulation.staging.rebuilt_map import rebuild_map
from tests.simulation.staging.restored_etcd import deposed_behind_a_backup
from tests.simulation.staging.stage import ETCD, A, B, C, Stage, calm

KEY, PROMOTION = "a key asked for again", "a promotion"
CASES = (KEY, PROMOTION)


def options() -> Options:
    return calm(min_in_sync=1)


def play(stage: Stage, case: str) -> None:
    world = stage.world
    if case == KEY:
        client, old = deposed_behind_a_backup(stage)
    else:
        stage.start()
        client = stage.client("c1")
        client.declare("a")
        stage.run(1)
        old = world.etcd.backup()
        stage.cut(C, A, B, ETCD)
        stage.until(lambda: stage.in_sync == {A, B}, what="a set without C")
        stage.kill(A)
        stage.serves(B)
        stage.revive(A)
        stage.done(client.publish("a", count=3))
        stage.run(6)
    asked: list[Call] = []

    def detain(call: Call) -> bool:
        name = call.operation.__qualname__
        if asks(name, case):
            asked.append(call)
            world.etcd.detain = None
            world.etcd.deliver_detained()
        return "_have_it_told" in name

    world.etcd.detain = detain
    world.etcd.restore(old)
    late = A if case == KEY else C
    stage.lose(ETCD, late)
    before = stage.map
    stage.mend(late, A, B, C, ETCD)
    stage.until(lambda: bool(asked), what="what nobody may do any more")
    stage.expect(world.etcd.get(world.keys.set_back) is not None, "the word was there before")
    stage.run(8)
    core = stage.primary_core(late)
    stage.expect(core is None or not core.streams.may_speak, f"{late} does not serve")
    stage.expect(stage.map == before, "nothing is changed in an etcd that says that it was set back")
    rebuild_map(stage, "00000002-generation")
    stage.whole(60)
    stage.expect(len(client.browse("a")) == 3, "what was acknowledged is there")


def asks(name: str, case: str) -> bool:
    """Whether an operation of that name does what the case is about."""
    return ".perform.<locals>.found.<locals>" in name if case == KEY else name.endswith(".promote")
