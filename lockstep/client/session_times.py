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
    heartbeat_at: int | None = None
    resend_at: int | None = None
    """Commands that were pushed back may be sent again."""
    give_up_at: int | None = None
    """The session is given up unless a primary was reached."""
    _armed: int | None = None

    def end_stream(self) -> None:
        """What belongs to one stream is over with it."""
        self.silence_at = self.heartbeat_at = self.resend_at = None

    def arm(self) -> ArmTimer | None:
        """The timer to set, unless the one that is set is early enough."""
        earliest = self._armed
        for at in (self.round_at, self.silence_at, self.heartbeat_at, self.resend_at, self.give_up_at):
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
