"""What a caller asked for that has no form on the wire: it hears so, and nobody else suffers from it.

Law: a command that has its number keeps it. In its place goes one that every set refuses and that changes nothing, so what comes
behind stays as it is; an operation that is missing in its transaction makes the commit fail (DESIGN T1).
"""

from lockstep.client import session_events as e
from lockstep.client.session_line import SessionLine
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core.errors import ErrorCode


def refuse(
    line: SessionLine, message: rq.ClientMessage, code: ErrorCode, text: str
) -> tuple[list[rq.ClientMessage], list[e.Effect]]:
    """What is said instead, and what the caller hears."""
    match message:
        case c.Command(number):
            return line.window.refuse(number, code, text)
        case rq.OpenConsumer(consumer) | rq.GrantCredit(consumer):
            known = line.held.consumers.pop(consumer, None)
            return [], [e.ConsumerStopped(consumer, code, text)] if known is not None else []
        case _:
            asked = line.questions.answered(getattr(message, "request", 0))
            line.say_questions()
            return [], [e.CommandRejected(asked, code, text)] if asked is not None else []
