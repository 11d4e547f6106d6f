"""Streams on which a session was asked for, and nothing was said yet: of brokers that hang, or that are busy.

Law: one at most for each address.
"""

from collections.abc import Collection

from lockstep.client.session_events import CloseStream, Effect


class AwaitedStreams:
    """Lives as long as the session line, which drives it."""

    def __init__(self) -> None:
        self._addresses: dict[int, str] = {}
        self._until: dict[int, int] = {}
        """Milliseconds of the core's clock."""
        self.next_at: int | None = None
        """When the first of them is given up; None: there is none."""

    def __contains__(self, stream: int) -> bool:
        return stream in self._addresses

    @property
    def addresses(self) -> Collection[str]:
        """Where nobody else is to be asked meanwhile."""
        return self._addresses.values()

    def add(self, stream: int, address: str, until: int) -> None:
        self._addresses[stream], self._until[stream] = address, until
        self._look()

    def remove(self, stream: int) -> str:
        """It is lost, or is no longer awaited; returns its address."""
        del self._until[stream]
        self._look()
        return self._addresses.pop(stream)

    def postpone(self, until: int) -> None:
        """None of them is given up before that."""
        self._until = {stream: max(at, until) for stream, at in self._until.items()}
        self._look()

    def give_up(self, now: int, effects: list[Effect]) -> None:
        """Closes those that have been silent for too long."""
        for stream in [stream for stream, until in self._until.items() if until <= now]:
            self.remove(stream)
            effects.append(CloseStream(stream))

    def close(self, effects: list[Effect]) -> None:
        """Closes all."""
        effects += [CloseStream(stream) for stream in self._addresses]
        self._addresses.clear()
        self._until.clear()
        self._look()

    def _look(self) -> None:
        self.next_at = min(self._until.values(), default=None)
