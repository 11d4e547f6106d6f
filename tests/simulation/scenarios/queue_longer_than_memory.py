"""A queue longer than memory (DESIGN 5): most bodies are away on every replica; whoever leads reads them back from its store.

Whatever happens between: everything is delivered once, in order, with the body that was published.
"""

from lockstep.core.commands import BindCommand, DeclareExchangeCommand, QueueOptions
from lockstep.core.content import DroppedMessage
from lockstep.core.ids import BrokerId
from tests.simulation.options import Options
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import SET, A, B, C, Stage, calm

CASES = (
    "failover",
    "damaged disk",
    "full restart",
    "store killed while it is read",
    "newcomer leads",
    "consolidated",
    "dead letters",
)
LIMIT = 20_000
MESSAGES = 60
SIZE = 1000


def options() -> Options:
    return calm(resident_bytes_max=LIMIT, body_bytes_max=2000)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("q")
    published = [body for _ in range(MESSAGES) for body in _publish(stage, client)]
    stage.run(1)
    for broker in (A, B, C):
        stage.expect(_away(stage, broker) > MESSAGES // 2, f"most bodies are away on {broker}")
    _CASES[case](stage, client, published)
    damaged = stage.world.branches.counts["note: damaged"]
    stage.expect(bool(damaged) is (case == "damaged disk"), f"disks are damaged where they were: {damaged}")


def _failover(stage: Stage, client: ScriptedClient, published: list[bytes]) -> None:
    found = _consume(stage, client, MESSAGES // 3)
    stage.kill(A)
    stage.until(lambda: stage.map.primary != A, what="a successor")
    stage.revive(A)
    stage.whole()
    stage.expect(found + _consume(stage, client, MESSAGES - len(found)) == published, "all of it, in order")


def _damaged_disk(stage: Stage, client: ScriptedClient, published: list[bytes]) -> None:
    """The primary's store finds a bad checksum where a body should be: another disk leads, and that one is replaced (R10)."""
    disk = stage.map.member(A)
    found = _consume(stage, client, 1)
    segment = min(stage.world.disks[A].directories[SET].segments)
    stage.world.disks[A].flip_bit(SET, segment, 30_000, 0)
    found += _consume(stage, client, MESSAGES - 1)
    stage.expect(found == published, "all of it, in order")
    stage.whole()
    stage.expect(
        stage.map.primary != A and stage.map.member(A) != disk, "another leads, with a new disk beside it"
    )


def _full_restart(stage: Stage, client: ScriptedClient, published: list[bytes]) -> None:
    stage.power_loss(A, B, C)
    stage.run(0.1)
    stage.revive(A, B, C)
    stage.whole()
    for broker in (A, B, C):
        stage.expect(_away(stage, broker) > MESSAGES // 2, f"most bodies are away on {broker} again")
    stage.expect(stage.client("c2").browse("q")[:1] == published[:1], "the first")
    stage.expect(_consume(stage, client, MESSAGES) == published, "all of it, in order")


def _store_killed(stage: Stage, client: ScriptedClient, published: list[bytes]) -> None:
    found = _consume(stage, client, 10)
    _, inbox = client.session.consume("q", MESSAGES)
    for _ in range(3):
        stage.run(0.001)
        stage.kill_store(A)
        stage.run(0.2)
        stage.revive(A)
        stage.run(0.3)
    stage.until(lambda: len(inbox.waiting) >= MESSAGES - 10, what="the rest")
    found += [message.body for _, message in inbox.waiting]
    stage.expect(found == published, "all of it, in order")


def _newcomer_leads(stage: Stage, client: ScriptedClient, published: list[bytes]) -> None:
    stage.power_loss(C)
    stage.world.lose_disk(C)
    stage.revive(C)
    found = _consume(stage, client, 5)
    stage.whole()
    stage.expect(_away(stage, C) > MESSAGES // 2, "most bodies are away on the newcomer")
    stage.power_loss(A, B)
    stage.run(0.1)
    stage.revive(B)
    stage.until(lambda: stage.map.primary not in (A,), what="a successor")
    stage.run(5)
    if stage.map.primary != C:
        stage.kill(B)
        stage.revive(A)
        stage.until(lambda: stage.map.primary == C, what="the newcomer as primary")
    stage.revive(A, B)
    stage.whole()
    stage.expect(found + _consume(stage, client, MESSAGES - 5) == published, "all of it, in order")


def _consolidated(stage: Stage, client: ScriptedClient, published: list[bytes]) -> None:
    _roll_segments(stage, client)
    stage.expect(_consume(stage, client, MESSAGES) == published, "all of it, in order, from the snapshot")


def _dead_letters(stage: Stage, client: ScriptedClient, published: list[bytes]) -> None:
    client.declare("durable")
    client.declare("fleeting", options=QueueOptions(is_durable=False))
    _bind(stage, client, "x", "durable", "fleeting")
    client.declare("old", options=QueueOptions(message_ttl_ms=500, dead_letter_exchange="x"))
    bodies = [body for _ in range(30) for body in _publish(stage, client, "old")]
    stage.run(2)
    _roll_segments(stage, client)
    for queue in ("durable", "fleeting"):
        found = _consume(stage, client, 30, queue)
        stage.expect(sorted(found) == sorted(bodies), f"all dead letters in {queue}")


_CASES = dict(
    zip(
        CASES,
        (
            _failover,
            _damaged_disk,
            _full_restart,
            _store_killed,
            _newcomer_leads,
            _consolidated,
            _dead_letters,
        ),
        strict=True,
    )
)


def _publish(stage: Stage, client: ScriptedClient, queue: str = "q", exchange: str = "") -> tuple[bytes, ...]:
    promise = client.publish(queue, size=SIZE, exchange=exchange)
    return stage.done(promise).bodies


def _consume(stage: Stage, client: ScriptedClient, count: int, queue: str = "q") -> list[bytes]:
    """Take and accept so many, a few at a time."""
    found: list[bytes] = []
    while len(found) < count:
        taken = client.take(queue, min(7, count - len(found)))
        found += [message.body for _, message in taken]
        stage.done(client.settle(queue, taken))
    return found


def _bind(stage: Stage, client: ScriptedClient, exchange: str, *queues: str) -> None:
    stage.done(client.session.submit(DeclareExchangeCommand(0, exchange, "fanout", True)))
    for queue in queues:
        stage.done(client.session.submit(BindCommand(0, exchange, queue, "")))


def _roll_segments(stage: Stage, client: ScriptedClient) -> None:
    """So much goes through another queue that everything before is consolidated and its segments are dropped."""
    client.declare("roll")
    for _ in range(8):
        stage.done(client.publish("roll", size=400_000))
        stage.done(client.settle("roll", client.take("roll")))
    stage.run(2)
    segments = sorted(stage.world.disks[A].directories[SET].segments)
    stage.expect(segments[0] > 1, f"the first segment is dropped: {segments}")


def _away(stage: Stage, broker: BrokerId) -> int:
    replica = stage.replica(broker)
    core = replica.primary.context if replica.primary is not None else None
    copy = replica.backup.copy if replica.backup is not None else None
    state = core.state if core is not None else copy.state if copy is not None else None
    contents = state.contents.values() if state is not None else ()
    return sum(isinstance(content, DroppedMessage) for content in contents)
