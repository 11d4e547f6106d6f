"""What clients say before the epoch serves: it waits, and is taken in order when the epoch's own record is committed.

Law: it is bounded, because an epoch below its minimum may wait for long. A stream with which it becomes too much is turned away
with all that it said; nothing of it was done, and its client attaches again. Of heartbeats in a row one is kept: each is answered
behind what was said before it, and the others would only be answered with it.
"""

from lockstep.core.alike_messages import size_of_outgoing
from lockstep.core.commands import CommitCommand, PublishCommand
from lockstep.core.inputs import ClientSaid
from lockstep.core.requests import Heard, Heartbeat
from services.primary.core.settings import PrimarySettings


class EarlyMessages:
    """Lives until the epoch serves; driven by the primary core."""

    def __init__(self, settings: PrimarySettings) -> None:
        self._settings = settings
        self._by_stream: dict[int, list[ClientSaid]] = {}
        self._turned_away: set[int] = set()
        self._messages = 0
        self._bytes = 0

    def __len__(self) -> int:
        """Messages that wait."""
        return self._messages

    def keep(self, given: ClientSaid) -> str:
        """Keep what was said; answers why the stream has to be turned away instead, "" if it has not."""
        if given.stream in self._turned_away:
            return ""
        messages = self._without_repeated_heartbeats(given)
        if not messages:
            return ""
        size = sum(map(message_bytes, messages))
        settings = self._settings
        if self._messages + len(messages) > settings.early_messages_max:
            why = f"{self._messages} messages wait, early_messages_max is {settings.early_messages_max}"
        elif self._bytes + size > settings.early_bytes_max:
            why = f"{self._bytes} bytes wait, early_bytes_max is {settings.early_bytes_max}"
        else:
            said = ClientSaid(given.set_name, given.stream, messages)
            self._by_stream.setdefault(given.stream, []).append(said)
            self._messages += len(messages)
            self._bytes += size
            return ""
        self.drop(given.stream)
        self._turned_away.add(given.stream)
        return why

    def _without_repeated_heartbeats(self, given: ClientSaid) -> tuple[Heard, ...]:
        kept: list[Heard] = []
        waiting = self._by_stream.get(given.stream)
        is_heartbeat = waiting is not None and isinstance(waiting[-1].messages[-1], Heartbeat)
        for message in given.messages:
            was_heartbeat, is_heartbeat = is_heartbeat, isinstance(message, Heartbeat)
            if not (was_heartbeat and is_heartbeat):
                kept.append(message)
        return tuple(kept)

    @property
    def streams(self) -> list[int]:
        """Those on which something waits, sorted."""
        return sorted(self._by_stream)

    def drop(self, stream: int) -> None:
        """The stream is gone."""
        self._turned_away.discard(stream)
        for said in self._by_stream.pop(stream, ()):
            self._messages -= len(said.messages)
            self._bytes -= sum(map(message_bytes, said.messages))

    def take(self) -> list[ClientSaid]:
        """Everything, stream by stream, each in its order; nothing waits afterwards."""
        taken = [said for waiting in self._by_stream.values() for said in waiting]
        self._by_stream.clear()
        self._turned_away.clear()
        self._messages = self._bytes = 0
        return taken


def message_bytes(message: Heard) -> int:
    """Content that a client's message carries."""
    if isinstance(message, CommitCommand):
        return 0 if message.last_publish is None else message_bytes(message.last_publish)
    if not isinstance(message, PublishCommand):
        return 0
    return size_of_outgoing(message.messages)
