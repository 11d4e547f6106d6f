"""History 19: the events of a branch that stays prepared for long (DESIGN 5, 7).

Its message is in the first segment; everything behind that is consolidated, and a group of readers is done with it. The segment
stays because the branch has no outcome, through a loss of power; and it stays when the branch has ended, because that end is owed
to the group: whoever reads the stores finds the message in the frames. When the group acknowledges, the segment goes.
"""

from lockstep.core.decision_log import Verdict
from lockstep.core.ids import LogIndex
from lockstep.core.requests import SubscriptionChange
from lockstep.core.server_messages import SubscriptionsAnswer
from tests.simulation.staging.prepared_branch import (
    decide,
    prepare,
    prepared_count,
    write_participants,
    xid_of_it,
)
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import SET, A, B, C, Stage
from tests.simulation.subscriber import change_group


def play(stage: Stage) -> None:
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    change(stage, reader, SubscriptionChange.OPEN)
    write_participants(stage)
    prepare(stage, client, xid_of_it(stage))
    held = stage.log_end(A)
    pass_through(stage, reader, 12)
    change(stage, reader, SubscriptionChange.ADVANCE, stage.log_end(A))
    pass_through(stage, reader, 4)
    for broker in (A, B, C):
        status = stage.world.stores[broker].core.status()[0]
        stage.expect(
            status.snapshot_index > held, f"the state does not need the segment on {broker}: {status}"
        )
        stage.expect(status.lowest_index <= held, f"it stays all the same on {broker}: {status}")
    stage.power_loss(A, B, C)
    stage.run(0.1)
    stage.revive(A, B, C)
    stage.whole()
    decide(stage, Verdict.COMMIT)
    stage.until(lambda: prepared_count(stage) == 0, 30, "the branch's end")
    (body,) = reader.browse("a")
    pass_through(stage, reader, 4)
    for broker in (A, B, C):
        store = stage.world.stores[broker]
        store.read_journal(SET, stage.epoch)
        stage.run(0.5)
        frames = store.journals[SET].frames
        stage.expect(
            any(body in frame for frame in frames), f"the message is in what {broker} has: {len(frames)}"
        )
    change(stage, reader, SubscriptionChange.ADVANCE, stage.log_end(stage.map.primary))
    pass_through(stage, reader, 4)
    for broker in (A, B, C):
        status = stage.world.stores[broker].core.status()[0]
        stage.expect(status.lowest_index > held, f"nobody is owed it any more on {broker}: {status}")


def pass_through(stage: Stage, reader: ScriptedClient, count: int) -> None:
    """Big messages come and go: segments are filled and consolidated."""
    for _ in range(count):
        stage.done(reader.publish("b", size=400_000))
        stage.done(reader.settle("b", reader.take("b")))
    stage.run(2)


def change(
    stage: Stage, reader: ScriptedClient, change: SubscriptionChange, floor: LogIndex | None = None
) -> None:
    """Change the group at the primary, and wait for that."""
    answers: list[SubscriptionsAnswer] = []
    change_group(reader.client, SET, stage.map.primary, change, floor, answers.append)
    stage.until(lambda: bool(answers), what=f"an answer to {change}")
