"""Times and limits of the jobs, with the reason for each default."""

from dataclasses import dataclass

HOLD_SECONDS = 30.0
"""A transaction whose sibling has no outcome holds its sets for at most so long where windows are closed by time: longer than a
coordinator's death and the next one's taking up. What is held longer is planned in part, and listed."""
WINDOW_SECONDS = 10
"""Fine enough to see a failover, and coarse enough to keep."""
WATERMARK_SECONDS = 60
"""How far the time of events may lie behind the latest: more than HOLD_SECONDS and what the brokers' clocks differ by. Then no
event is ever late, and no window loses one."""
AGE_SECONDS_MAX = 3600
"""The time in queue is measured up to this age: so long a message's arrival is kept in state."""
TRIGGER_SECONDS = 5.0
"""Between micro-batches of a query that goes on."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What jobs are told; seconds are those of commit times."""

    window_seconds: int = WINDOW_SECONDS
    watermark_seconds: int = WATERMARK_SECONDS
    age_seconds_max: int = AGE_SECONDS_MAX

    @property
    def window(self) -> str:
        return f"{self.window_seconds} seconds"

    @property
    def watermark(self) -> str:
        return f"{self.watermark_seconds} seconds"
