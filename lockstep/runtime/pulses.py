"""Pulses: heartbeats of streams, and noticing that the other side has fallen silent (DESIGN 9: three misses of 200-300 ms).

Law: silence is counted in rounds of this process's own timer, and a round that comes late counts for nobody: a process that
was stopped itself must read what waits in its sockets before it calls others dead.
"""

import asyncio
from collections.abc import Callable

PULSE_SECONDS = 0.225
"""Between the two ends of the 200-250 ms at which both sides speak."""
MISSES_MAX = 3


class Pulse:
    """One stream's heartbeat; made by whoever opens the stream, driven by `Pulses`.

    `beat` sends a sign of life and is called in a round in which nothing else was sent; `on_silent` is called once, after
    `misses_max` rounds in which nothing was heard.
    """

    def __init__(
        self, beat: Callable[[], None], on_silent: Callable[[], None], misses_max: int = MISSES_MAX
    ) -> None:
        self.has_sent = False
        """Set by the stream's writer; something left since the last round."""
        self.has_heard = False
        """Set by the stream's reader."""
        self._misses = 0
        self._misses_max = misses_max
        self._beat = beat
        self._on_silent = on_silent

    def round(self, is_late: bool) -> bool:
        """One round; returns whether the stream goes on."""
        if not self.has_sent:
            self._beat()
        self.has_sent = False
        if self.has_heard:
            self._misses = 0
        elif not is_late:
            self._misses += 1
        self.has_heard = False
        if self._misses < self._misses_max:
            return True
        self._on_silent()
        return False


class Pulses:
    """The timer of all streams of a process; `run` is a task that lives as long as the process."""

    def __init__(self, pulse_seconds: float = PULSE_SECONDS) -> None:
        self._pulse_seconds = pulse_seconds
        self._pulses: dict[Pulse, None] = {}

    def add(self, pulse: Pulse) -> None:
        self._pulses[pulse] = None

    def remove(self, pulse: Pulse) -> None:
        """Of one that is gone already too."""
        self._pulses.pop(pulse, None)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._pulse_seconds
            await asyncio.sleep(self._pulse_seconds)
            self.round(is_late=loop.time() > due + self._pulse_seconds)

    def round(self, is_late: bool) -> None:
        for pulse in list(self._pulses):
            if pulse in self._pulses and not pulse.round(is_late):
                self.remove(pulse)
