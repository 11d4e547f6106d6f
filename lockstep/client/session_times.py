"""The times that a session core waits for, and the one timer that stands for all of them.

Law: the timer is never later than the earliest time. It may be earlier: then nothing is due when it fires, and it is armed again.
"""

from dataclasses import dataclass

from lockstep.client.session_events import ArmTimer


@dataclass(slots=True)
class SessionTimes:
    """Milliseconds of the core's clock; None: not waiting for that. Lives as long as the core, which drives it."""

    round_at: int | None = None
    """The candidates may be tried again."""
    silence_at: int | None = None
    """The stream is given up unless something was heard."""
    moving_since: int | None = None
    """Something large has been on its way from then on, and nothing was heard."""
    heartbeat_at: int | None = None
    resend_at: int | None = None
    """Commands that were pushed back may be sent again."""
    give_up_at: int | None = None
    """The session is given up unless a primary was reached."""
    _armed: int | None = None

    def end_stream(self) -> None:
        """What belongs to one stream is over with it."""
        self.silence_at = self.moving_since = self.heartbeat_at = self.resend_at = None

    def heard(self, now: int, silence_ms: int) -> None:
        """The stream said something; for so long it may be silent."""
        self.silence_at, self.moving_since = now + silence_ms, None

    def moved(self, now: int, silence_ms: int) -> None:
        """Much has got through of something large. What is behind it takes its time, too, and so does what this side believes
        to have got through, and is still somewhere on its way."""
        if self.silence_at is not None:
            self.moving_since = now if self.moving_since is None else self.moving_since
            self.silence_at = max(self.silence_at, 2 * now - self.moving_since + silence_ms)

    def arm(self, awaited_at: int | None) -> ArmTimer | None:
        """The timer to set, unless the one that is set is early enough. `awaited_at`: a stream that is awaited is given up."""
        earliest = self._armed
        for at in (
            self.round_at,
            self.silence_at,
            self.heartbeat_at,
            self.resend_at,
            self.give_up_at,
            awaited_at,
        ):
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        if earliest is None or earliest == self._armed:
            return None
        self._armed = earliest
        return ArmTimer(earliest)

    def fire(self, now: int) -> int:
        """The timer fired; returns how late it was."""
        armed, self._armed = self._armed, None
        return 0 if armed is None else now - armed
