"""History 23: every restart pattern (R5, R12).

One backup restarts; the primary restarts within its lease, and after it; two of three; all; a store without its broker; a
broker without its store, while frames of the dead process are still in the store's socket. Sessions and transients survive
while somebody in the set has kept its memory, and are gone on all brokers alike when nobody has.
"""

from lockstep.core.ids import BrokerId
from tests.simulation.staging.stage import A, B, C, Stage

CASES = (
    "backup",
    "primary within its lease",
    "primary after its lease",
    "primary and backup",
    "both backups",
    "all",
    "all but late",
    "store of the primary",
    "store of a backup",
    "frames in the socket",
)


def play(stage: Stage, case: str) -> None:
    stage.start()
    client = stage.client("c1")
    client.declare("a")
    client.all_done([client.publish("a"), client.publish("a", is_durable=False)])
    late = client.publish("a", count=2)
    {
        "backup": lambda: _restart(stage, B),
        "primary within its lease": lambda: _restart(stage, A),
        "primary after its lease": lambda: _restart(stage, A, after_s=5),
        "primary and backup": lambda: _restart(stage, A, B),
        "both backups": lambda: _restart(stage, B, C),
        "all": lambda: _restart(stage, A, B, C),
        "all but late": lambda: _restart(stage, A, B, C, after_s=5),
        "store of the primary": lambda: stage.kill_store(A),
        "store of a backup": lambda: stage.kill_store(B),
        "frames in the socket": lambda: _leave_frames_in_the_socket(stage),
    }[case]()
    stage.run(0.2)
    stage.revive(A, B, C)
    stage.until(lambda: late.is_done)
    stage.whole()
    stage.done(client.publish("a", is_durable=False))
    count = len(client.browse("a"))
    if case not in ("all", "all but late", "frames in the socket"):
        stage.expect(count == 5, f"everything, transients too, not {count}")
    stage.kill(C)
    stage.until(lambda: C not in stage.in_sync or stage.map.primary != C)
    stage.revive(C)


def _restart(stage: Stage, *brokers: BrokerId, after_s: float = 0.02) -> None:
    stage.kill(*brokers)
    stage.run(after_s)
    stage.revive(*brokers)


def _leave_frames_in_the_socket(stage: Stage) -> None:
    """A's store is stopped; A sends it frames, dies, is back and opens the set anew; then the store reads all that."""
    client = stage.client("c2")
    stage.pause_store(B, 1)
    client.publish("a")
    stage.run(0.01)
    stage.kill(B)
    stage.revive(B)
    stage.run(1)
    stage.done(client.settle("a", client.take("a")))
    client.publish("a")
