"""Long selections: publishes, bindings and consumers whose selectors take more than their share of the loop at once, and
publishes to many queues, or whose headers are compared with many bindings.

Law: what waits has done nothing, and blocks its stream; when there is a share again it is taken again, and a publish goes on
where it was. Those that wait have their turns one after the other, so one that takes long holds no other up for longer than that.
"""

from collections import deque
from dataclasses import dataclass

from lockstep.core.effects import WakeAt
from lockstep.core.requests import Heard
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.context import Context
from services.primary.core.selecting import Asking
from services.primary.core.waiting_rejects import BLOCKED


@dataclass(slots=True, eq=False)
class _Waiting:
    stream: ClientStream
    message: Heard
    asking: Asking | None


class LongSelections:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, context: Context, streams: ClientStreams) -> None:
        self._context = context
        self._streams = streams
        self._waiting: deque[_Waiting] = deque()

    @property
    def are_waiting(self) -> bool:
        """Whether there is more to do."""
        return bool(self._waiting)

    def begin(self, stream: ClientStream, message: Heard, asking: Asking | None) -> None:
        """Block the stream until this message, whose selectors have no share now, is taken again."""
        stream.blocked_by = BLOCKED
        self._waiting.append(_Waiting(stream, message, asking))
        context = self._context
        context.effects.append(WakeAt(context.state.set_name, context.now.boottime_ms + 1))

    def take(self) -> tuple[ClientStream, Heard] | None:
        """A message that is to be taken again now, of a stream that is blocked no more; None: there is none, or no share."""
        context = self._context
        while self._waiting and context.selectors.has_share(context.now):
            first = self._waiting.popleft()
            if self._streams.by_number.get(first.stream.number) is first.stream:
                first.stream.blocked_by = 0
                context.selectors.resumed = first.asking
                return first.stream, first.message
        return None
