"""Time as cores see it: a value handed in with every input."""

from typing import NamedTuple


class Now(NamedTuple):
    """One moment. Leases and timeouts are measured on `boottime_ms`; `wall_ms` only goes into records."""

    boottime_ms: int
    """CLOCK_BOOTTIME in milliseconds: goes on while the machine sleeps (R6)."""
    wall_ms: int
    """Milliseconds since the Unix epoch; may jump."""
