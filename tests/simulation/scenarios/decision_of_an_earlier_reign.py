"""What the decision log said in one reign is heard in the next one (T3, T5; P1).

A asks the log for a prepared branch of which there is nothing yet, because a client wants to know; the answer is slow. A hands
the set over to B, and B hands it back. A coordinator writes its list and has the branch vote again, which says that it is
prepared. A client asks once more; then the old answer comes. It is from before the vote, and nothing is presumed by it.
"""

from lockstep.core.commands import PrepareBranchCommand
from lockstep.core.decision_log import Verdict
from lockstep.core.server_messages import OutcomeAnswer, OutcomeState
from tests.simulation.scenarios.handed_over import hand_over
from tests.simulation.staging.prepared_branch import (
    decide,
    prepare,
    prepared_count,
    write_participants,
    xid_of_it,
)
from tests.simulation.staging.stage import A, B, C, Stage


def play(stage: Stage) -> None:
    stage.start()
    client, gone, asker = stage.client("c1"), stage.client("c2"), stage.client("c3")
    client.declare("a")
    xid, etcd = xid_of_it(stage), stage.world.etcd
    key = prepare(stage, client, xid)
    # Another branch has found nothing just now: what this one reads is believed at once.
    stage.world.brokers[A].etcd.call_the_roll()
    stage.run(0.2)
    etcd.detain_answer = lambda call: "_ask_decision" in call.operation.__qualname__
    gone.ask_outcome(key)
    stage.until(lambda: len(etcd.detained_answers) == 1, what="an answer that says that nothing is there")
    stage.cut("c2", A, B, C)
    hand_over(stage, A, B)
    stage.run(0.1)
    hand_over(stage, B, A)
    write_participants(stage)
    voted = stage.done(client.session.submit(PrepareBranchCommand(0, xid.encode())))
    stage.expect(voted.is_ok, "it is prepared")
    asking = asker.ask_outcome(key)
    stage.until(lambda: len(etcd.detained_answers) == 2, what="a question of the next reign")
    old, new = etcd.detained_answers
    old()
    stage.run(0.1)
    stage.expect(prepared_count(stage) == 1, "the old answer is not believed")
    etcd.detain_answer = None
    new()
    stage.until(lambda: asking.is_done)
    told = asking.value
    stage.expect(isinstance(told, OutcomeAnswer) and told.state == OutcomeState.PREPARED, "it is undecided")
    decide(stage, Verdict.COMMIT)
    stage.until(lambda: prepared_count(stage) == 0, what="the decision")
    stage.expect(len(client.browse("a")) == 1, "it is committed")
    stage.mend("c2", A, B, C)
    stage.whole()
