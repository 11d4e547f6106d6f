"""Limits and times of a session."""

from dataclasses import dataclass

from lockstep.core.commands import SPAN_MS_MAX


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Given to a session core when it is made; never changes."""

    session_timeout_ms: int = 30_000
    """How long the set keeps the session without a stream, as far as it lets: at most `SPAN_MS_MAX`."""
    give_up_ms: int = 30_000
    """Without a primary for so long: what is in flight is in doubt, what is open is rolled back, and a new session begins. 0:
    never. Below the pause of a hand-over, which is a second or two on a busy machine, nothing outlives that (T8)."""
    heartbeat_ms: int = 250
    silence_ms: int = 1_000
    """A stream that says nothing for so long is given up: four heartbeats (DESIGN 9: three misses of 200-300 ms)."""
    attach_ms: int = 250
    """When a broker has not said anything for so long after the stream was opened, others are tried beside it: a hung primary's
    successor may be among them, and a busy one answers in the end."""
    attach_max_ms: int = 3_000
    """A stream on which nothing was said for so long is given up, and may be opened anew."""
    backoff_ms: int = 50
    backoff_max_ms: int = 200
    """Pause between rounds of candidates: short, because a failover takes about a second."""
    push_back_ms: int = 20
    push_back_max_ms: int = 500
    """Pause before commands that were pushed back are sent again."""
    suspected_ms: int = 1_000
    """A command that primaries may have died over waits for up to so long, by chance, before it is sent again."""
    suspected_heartbeat_ms: int = 50
    """So long behind such a command the primary is asked whether it lives: long enough to die of it first."""
    send_commands_max: int = 256
    send_bytes_max: int = 1 << 20
    """One write: about as much as a primary puts into one batch of its journal."""
    send_requests_max: int = 500
    """Requests in one write: thousands of consumers are opened again when a session comes back."""

    def __post_init__(self) -> None:
        # Without it no session attaches anywhere, so nobody would hear of it.
        if type(self.session_timeout_ms) is not int or not 0 <= self.session_timeout_ms <= SPAN_MS_MAX:
            raise ValueError(
                f"session_timeout_ms is {self.session_timeout_ms}: no number from 0 to {SPAN_MS_MAX}"
            )
