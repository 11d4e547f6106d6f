"""A publish over which every primary dies, right before it leaves for anybody: it is found and refused, and the set goes on (P7).

Beside it in the same session are others, and another session has one under way each time: all of those are done, and once. With
backups that are killed one after the other while nothing is wrong with any command, nothing is refused.
"""

from lockstep.core.effects import AnyEffect, TellBackup
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId
from lockstep.core.replication import Frames
from tests.simulation.broker import Broker
from tests.simulation.promises import Promise
from tests.simulation.staging.moments import Moment
from tests.simulation.staging.stage import Stage

CASES = ("first", "between others", "killed by chance")
REIGNS_MAX = 8


def carries(body: bytes) -> Moment:
    """Somebody, a primary, is about to send a backup a frame with this body."""

    def matches(_: Broker, effect: AnyEffect) -> bool:
        return (
            isinstance(effect, TellBackup)
            and isinstance(effect.message, Frames)
            and any(body in durable or body in transient for durable, transient in effect.message.frames)
        )

    return matches


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("q")
    before = [client.publish("q") for _ in range(0 if case == "first" else 3)]
    poison = client.publish("q")
    behind = [client.publish("q") for _ in range(3)]
    assert poison.operation is not None
    meanwhile: list[Promise] = []
    reigns = 0
    while not poison.is_done and reigns < REIGNS_MAX:
        victim = stage.map.primary
        if case == "killed by chance":
            stage.run(0.05)
            stage.kill(victim)
        else:
            if not _dies(stage, poison):
                break
        reigns += 1
        meanwhile.append(other.publish("q"))
        epoch = stage.epoch
        stage.until(lambda: stage.epoch > epoch, what="a successor")  # noqa: B023 - called before it changes
        stage.revive(victim)
    stage.expect(poison.is_done, f"the command ends: {reigns} primaries died")
    stage.whole()
    for each in (*before, *behind, *meanwhile):
        stage.expect(stage.done(each).is_ok, f"{each.operation} is done")
    refused = poison.operation.code is ErrorCode.POISON
    stage.expect(refused is (case != "killed by chance"), f"refused or not: {poison.operation.code}")
    stage.expect(case == "killed by chance" or reigns <= 4, f"after a few primaries, not {reigns}")


def _dies(stage: Stage, poison: Promise) -> bool:
    """Wait until the primary has died over it; False: the command came to its end."""
    assert poison.operation is not None
    fallen: list[BrokerId] = []

    def die() -> None:
        fallen.append(stage.map.primary)
        stage.kill(stage.map.primary)

    stage.when(carries(poison.operation.bodies[0]), die)
    stage.until(lambda: bool(fallen) or poison.is_done, within_s=30, what="the poison, or its end")
    return bool(fallen)
