"""History 11: a suffix that was consolidated, or shown (DESIGN 5, R11).

B hears nothing of several full segments that A and C have; none of them is committed. A and C die, and restart while B leads
without all that. C shows nothing of its suffix when it comes back, and can drop it, because its consolidator waited for the
commit index.
"""

from lockstep.core.ids import LogIndex
from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    disks = {member.disk for member in stage.map.in_sync}
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a")
    stage.done(client.publish("a", size=600_000))
    stage.hold(A, B)
    end = stage.log_end(A)
    late = [client.publish("a", size=400_000) for _ in range(8)]
    stage.until(lambda: stage.durable(C) == end + len(late), what="the suffix on C")
    stage.run(0.3)
    stage.expect(not any(promise.is_done for promise in late), "nothing of it is committed")
    stage.kill(A, C)
    stage.run(0.1)
    stage.revive(C)
    stage.until(lambda: _shown(stage) is not None, what="what C has")
    stage.expect(_shown(stage) == end, "it shows nothing of its suffix")
    stage.until(lambda: stage.epoch == 2, what="a successor")
    stage.let_go(A, B)
    stage.expect(stage.map.primary == B, "B, which kept its memory, leads")
    stage.revive(A)
    stage.until(lambda: all(promise.is_done for promise in late), 30)
    stage.whole()
    stage.expect({member.disk for member in stage.map.in_sync} == disks, "no disk fell out with another")
    stage.expect(len(reader.browse("a")) == 9, "all of it, once, by the client's retries")


def _shown(stage: Stage) -> LogIndex | None:
    """How far C has applied what it has loaded from its disk."""
    backup = stage.replica(C).backup
    copy = backup.copy if backup is not None else None
    return copy.state.applied if copy is not None else None
