"""A client's real session core and a primary: callers that ask for much, or for what cannot be said, harm neither the others
nor their own transactions."""

from lockstep.client import session_events as e
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core.errors import ErrorCode
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.client_core import CoreClient
from tests.unit.services.primary.primary_rig import Rig, publish


def talk(client: CoreClient) -> None:
    """Everything on its way arrives."""
    while client.write() | client.read():
        pass


def test_more_questions_than_a_set_keeps_are_all_answered_on_one_stream() -> None:
    rig = Rig()
    client = CoreClient(rig, "s")
    rig.client().declare("q")
    count = PrimarySettings().questions_waiting_max + 200
    for ticket in range(count):
        client.feed(e.Ask(ticket, rq.DescribeQueue(0, "q")))
    client.submit("behind them", publish("q", b"x"))
    talk(client)
    answered = [event for event in client.heard_events if isinstance(event, e.QuestionAnswered)]
    assert len(answered) == count
    assert len([event for event in client.heard_events if isinstance(event, e.Attached)]) == 1
    assert e.CommandDone("behind them", 1) in client.heard_events


def test_a_transaction_of_which_an_operation_is_left_out_does_not_commit() -> None:
    rig = Rig()
    client = CoreClient(rig, "s")
    rig.client().declare("q")
    client.submit("begin", c.BeginCommand(0))
    talk(client)
    (begun,) = [event for event in client.heard_events if isinstance(event, e.CommandDone)]
    assert begun.transaction is not None
    client.submit("publish", publish("q", b"x", transaction=begun.transaction))
    client.core.window.leave_out(begun.transaction)
    client.submit("commit", c.CommitCommand(0, begun.transaction, 0))
    talk(client)
    refused = [event for event in client.heard_events if isinstance(event, e.CommandRejected)]
    assert [(event.ticket, event.code) for event in refused] == [("commit", ErrorCode.ROLLED_BACK)]
