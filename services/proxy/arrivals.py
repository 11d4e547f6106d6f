"""Arrivals: clients that have a socket and are not logged in, from accept on, TLS handshakes among them.

Law: they are counted apart, so that whoever says nothing takes no place of those who are connected. Where there are too many, the
one that has said nothing for longest goes, if that is long enough for a client that lives; else the newcomer is turned away.
"""

from collections.abc import Callable
from typing import Protocol

from lockstep.runtime.limit_log import LimitLog

IDLE_SECONDS = 2.0
"""A client that has its turn in a login, or waits for ours, has said something within so long."""


class Arrival(Protocol):
    """A socket whose client is not known."""

    peer: str

    def close_now(self) -> None: ...


class Arrivals:
    """Lives as long as its worker."""

    def __init__(self, count_max: int, log: LimitLog, seconds: Callable[[], float]) -> None:
        """`seconds`: a clock that only goes on."""
        self._count_max = count_max
        self._log = log
        self._seconds = seconds
        self._heard: dict[Arrival, float] = {}
        """When each said something last, or came; the first has been silent for longest."""

    def __len__(self) -> int:
        return len(self._heard)

    def all(self) -> list[Arrival]:
        """Those that are here now."""
        return list(self._heard)

    def take(self, arrival: Arrival) -> bool:
        """One more; False: there is no place for it."""
        now = self._seconds()
        if len(self._heard) >= self._count_max:
            oldest, heard = next(iter(self._heard.items()))
            text = f"{len(self._heard)} clients are not logged in"
            if now - heard < IDLE_SECONDS:
                self._log.refused("arrivals", f"peer={arrival.peer} is turned away: {text}")
                return False
            self._log.refused(
                "idle_arrivals", f"peer={oldest.peer} has said nothing for {now - heard:.1f} s: {text}"
            )
            del self._heard[oldest]
            oldest.close_now()
        self._heard[arrival] = now
        return True

    def heard(self, arrival: Arrival) -> None:
        """It has said something."""
        if self._heard.pop(arrival, None) is not None:
            self._heard[arrival] = self._seconds()

    def drop(self, arrival: Arrival) -> None:
        """It is logged in, or gone."""
        self._heard.pop(arrival, None)
