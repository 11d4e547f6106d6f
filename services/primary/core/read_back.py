"""Reading back: bodies that are away are asked from the own store, in batches (DESIGN 5).

Law: whoever needs bodies says which when its turn comes, and hears once that they are here. What is asked for is in the own store
as long as the state has it, so an answer without it, or with another content, is a damaged disk and ends the reign (R10); an
answer for a message that is gone meanwhile is nobody's. What the store did not answer is asked again, and who drives this hears
since when: a disk that never reads it may be the only one that does not.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockstep.core.content import DroppedMessage, without_body
from lockstep.core.effects import AnyEffect, ReadMessages
from lockstep.core.ids import Epoch, MessageId
from lockstep.core.inputs import MessagesRead
from lockstep.core.records import Message
from lockstep.core.set_state import SetState
from services.primary.core.reign import DiskDamaged
from services.primary.core.settings import PrimarySettings

Wanted = dict[MessageId, DroppedMessage]
Found = dict[MessageId, Message]


@dataclass(slots=True, eq=False)
class _Reading:
    """One request, from `ask` to the answer."""

    want: Callable[[], Wanted]
    then: Callable[[Found], None]
    wanted: Wanted
    unread_since_ms: int = 0
    """When the store first did not answer it; 0: it always has."""


class ReadBack:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, epoch: Epoch, state: SetState, settings: PrimarySettings) -> None:
        self._epoch = epoch
        self._state = state
        self._settings = settings
        self._waiting: deque[_Reading] = deque()
        self._in_flight: dict[int, _Reading] = {}
        self._last_request = epoch << 32
        """Numbers differ from those of all other reigns of this process, which may still be answered."""
        self._retry_ms = 0
        """Nothing is asked before."""

    @property
    def is_full(self) -> bool:
        """So much waits that nobody should add to it who could do without."""
        return len(self._waiting) >= self._settings.readings_waiting_max

    def select(self, ids: Iterable[MessageId]) -> Wanted:
        """Those of these whose bodies are away, in that order: as many as one request may bring, at least one if there is any."""
        contents, wanted, size = self._state.contents, Wanted(), 0
        for message_id in ids:
            content = contents.find(message_id)
            if not isinstance(content, DroppedMessage) or message_id in wanted:
                continue
            size += content.size
            if wanted and size > self._settings.reading_bytes_max:
                break
            wanted[message_id] = content
            if len(wanted) == self._settings.reading_messages_max:
                break
        return wanted

    def ask(self, want: Callable[[], Wanted], then: Callable[[Found], None], is_urgent: bool = False) -> None:
        """Read what `want` says when it can be asked for, then call `then`, with those that the store still had.

        `is_urgent`: before all that waits.
        """
        add = self._waiting.appendleft if is_urgent else self._waiting.append
        add(_Reading(want, then, {}))

    def requests(self, now_ms: int) -> list[AnyEffect]:
        """What can be asked for now."""
        effects: list[AnyEffect] = []
        while (
            self._waiting
            and now_ms >= self._retry_ms
            and len(self._in_flight) < self._settings.readings_in_flight_max
        ):
            reading = self._waiting.popleft()
            reading.wanted = reading.wanted or reading.want()
            if not reading.wanted:
                reading.then({})
                continue
            self._last_request += 1
            self._in_flight[self._last_request] = reading
            wanted = tuple(reading.wanted)
            effects.append(ReadMessages(self._state.set_name, self._last_request, self._epoch, wanted))
        return effects

    def answered(self, given: MessagesRead, now_ms: int) -> int:
        """The store has answered, or has not: since when it has not is answered, 0: it has. Raises `DiskDamaged`."""
        reading = self._in_flight.pop(given.request, None)
        if reading is None:
            return 0
        if given.contents is None:
            self._retry_ms = now_ms + self._settings.store_retry_ms
            self._waiting.appendleft(reading)
            reading.unread_since_ms = reading.unread_since_ms or now_ms
            return reading.unread_since_ms
        found: Found = {}
        for (message_id, dropped), content in zip(reading.wanted.items(), given.contents, strict=True):
            if content is not None:
                message = Message(
                    dropped.queues, *content, dropped.expires_ms, dropped.is_durable, dropped.priority
                )
                if without_body(message) != dropped:
                    raise DiskDamaged(f"another content of message {message_id}")
                found[message_id] = message
            elif message_id in self._state.contents:
                raise DiskDamaged(f"no content of message {message_id}")
        reading.then(found)
        return 0

    def lost(self) -> None:
        """The stream to the store ended: nothing is waited for on it, everything is asked again."""
        self._waiting.extendleft(reversed(self._in_flight.values()))
        self._in_flight.clear()
