"""A disk without room for anything new is used as long as its journal has some (DESIGN 5, R1, R6; P7).

Others fill the file system up. What is preallocated of the journal can still be written, and so the set goes on as if nothing
were wrong: it has no member to spare, or it has only one broker. That etcd goes on meanwhile, as it does with each name and each
decision of whichever set, and that the disk cannot remember how far, or how far the set is committed, holds nobody up.
"""

from functools import partial

from tests.simulation.etcd import Etcd
from tests.simulation.loop import SECOND
from tests.simulation.options import Options
from tests.simulation.staging.stage import A, B, Stage, calm

CASES = ("the backup's", "the primary's", "the only one", "at rest between two commits")


def options_of(case: object) -> Options:
    brokers = 1 if case == "the only one" else 2
    return calm(brokers=brokers, min_in_sync=brokers)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, etcd = stage.client("c1"), stage.world.etcd
    client.declare("a")
    stage.done(client.publish("a"))
    stage.run(6)
    full = A if case in ("the primary's", "the only one") else B
    stage.world.disk_faults.fill_up(full)
    for number in range(10):
        etcd.execute(partial(_change, number))
        stage.run(2.5 if case == "at rest between two commits" else 0.7)
        begun_us = stage.world.loop.now_us
        stage.done(client.publish("a"))
        took = (stage.world.loop.now_us - begun_us) / SECOND
        stage.expect(took < 0.05, f"publish {number} takes {took:.2f} s")
    stage.world.disk_faults.repair(full)
    stage.expect(len(client.browse("a")) == 11, "all of it is there")
    stage.whole()


def _change(number: int, etcd: Etcd) -> None:
    etcd.put(f"/elsewhere/{number}", b"")
