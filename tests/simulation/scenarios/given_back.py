"""A set whose first broker has come back is given back to it, under open transactions and with messages in hand (C4, T6, T8).

Only when it has lacked no member for a while, and not where an operator said who should lead it. A member whose presence etcd
does not show, or shows as that of an earlier memory, says once more that it is there.
"""

from lockstep.core.ids import BrokerId
from tests.simulation.options import Options
from tests.simulation.staging.hand_overs import ask_hand_over
from tests.simulation.staging.stage import A, B, C, Stage, calm

CASES = (
    "the first came back",
    "another is lacking",
    "an operator said who should lead",
    "it dies again",
    "a presence was deleted",
    "a presence of before was put",
)
WAIT_S = 2.0


def options() -> Options:
    return calm(give_back_ms=int(WAIT_S * 1000))


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, other = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    stage.done(client.publish("a", count=2))
    if case == "an operator said who should lead":
        ask_hand_over(stage, A, B, is_chosen=True)
        stage.serves(B)
        stage.run(5 * WAIT_S)
        stage.expect(stage.map.primary == B, "it stays where it was said to be")
        ask_hand_over(stage, B, C)
        stage.serves(C)
        stage.serves(A)
        return
    stage.kill(A)
    stage.until(lambda: stage.map.primary in (B, C), what="a successor")
    leads, follows = (B, C) if stage.map.primary == B else (C, B)
    stage.serves(leads)
    key = client.begin()
    stage.done(client.settle("a", client.take("a"), key))
    held = client.take("a")
    if case == "another is lacking":
        stage.kill(follows)
    stage.revive(A)
    if case.startswith("a presence"):
        _change_presence(stage, follows, "" if case == "a presence was deleted" else f"{follows}-of-before.0")
    if case == "another is lacking":
        stage.until(lambda: A in stage.in_sync, what="its first broker in sync")
        stage.run(3 * WAIT_S)
        stage.expect(stage.map.primary == leads, "it stays while a member is lacking")
        stage.revive(follows)
    stage.until(lambda: stage.in_sync == {A, B, C}, what="everybody in sync")
    whole_us, epoch = stage.world.loop.now_us, stage.epoch
    stage.until(lambda: stage.epoch > epoch, what="its first broker")
    waited_s = (stage.world.loop.now_us - whole_us) / 1e6
    stage.expect(stage.map.primary == A and waited_s >= WAIT_S, f"it goes back after a while: {waited_s:g} s")
    stage.serves(A)
    stage.done(client.publish("b", key))
    stage.expect(stage.done(client.settle("a", held, key)).is_ok, "what was in hand can be accepted")
    stage.expect(stage.done(client.commit(key)).is_ok, "what was open commits")
    stage.expect(not client.session.aborted, "nothing was aborted")
    stage.expect(other.browse("a") == [] and len(other.browse("b")) == 1, "all of it")
    if case == "it dies again":
        stage.kill(A)
        stage.until(lambda: stage.map.primary in (B, C), what="a successor, again")
        stage.revive(A)
        stage.serves(A)


def _change_presence(stage: Stage, broker: BrokerId, value: str) -> None:
    """Behind the back of the broker, whose lease stays; "": it is gone."""
    etcd, key = stage.world.etcd, stage.world.keys.presence(stage.map.set_name, broker)
    held = etcd.get(key)
    assert held is not None, "it is there"
    if value:
        etcd.execute(lambda etcd: etcd.put(key, value.encode(), held.lease))
    else:
        etcd.execute(lambda etcd: etcd.delete(key))
