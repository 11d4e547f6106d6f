"""Streams on which a session was asked for and nothing was said yet, at every broker.

Law: who does not lead owes nobody an answer. A stream that a reign leaves behind in silence is waited for by its client, and by
the parts of its own process that ask the set.
"""

from collections import defaultdict
from typing import TYPE_CHECKING

from lockstep.core.effects import AnyEffect, CloseClientStream, EndClientStreams, TellClient
from lockstep.core.ids import BrokerId, SetName
from lockstep.core.inputs import AnyInput, ClientSaid, ClientStreamClosed
from lockstep.core.requests import AttachSession
from tests.simulation.history import PromiseBroken

if TYPE_CHECKING:
    from tests.simulation.broker import Broker


class AttachmentsOwed:
    """Lives as long as the observer, which tells it of what replicas take and give."""

    def __init__(self) -> None:
        self._owed: dict[tuple[BrokerId, SetName], set[int]] = defaultdict(set)

    def forget(self, broker: BrokerId) -> None:
        """A new process of this broker has no streams yet."""
        for key in [key for key in self._owed if key[0] == broker]:
            del self._owed[key]

    def observe(self, process: "Broker", given: AnyInput, effects: list[AnyEffect]) -> None:
        """An input was handled; raises `PromiseBroken` where a stream was left behind."""
        owed = self._owed[process.broker, given.set_name]
        match given:
            case ClientSaid(stream=stream, messages=messages):
                if any(isinstance(message, AttachSession) for message in messages):
                    owed.add(stream)
            case ClientStreamClosed(stream=stream):
                owed.discard(stream)
            case _:
                pass
        for effect in effects:
            if isinstance(effect, TellClient | CloseClientStream):
                owed.discard(effect.stream)
            elif isinstance(effect, EndClientStreams):
                owed.clear()
        if owed and process.replicas[given.set_name].primary is None:
            text = f"{process.incarnation} leads {given.set_name} no more, and left its client streams {sorted(owed)} in silence"
            raise PromiseBroken("P7", text)
