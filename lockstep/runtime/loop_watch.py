"""Loop watch: which steps of an event loop keep it for too long, and where they were meanwhile.

Law: no step takes more than some 20 ms of *processor time* of its loop's thread, so that leases are renewed and others have
their turn; what a slow host does to a step does not count. A thread beside the loop looks at its processor time a hundred times
a second: a step is too long when the loop has not come round to a callback of this watch while it used so much, and was found in
one and the same frame below the loop all the time. On the way of messages nothing is paid for it.
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from lockstep.runtime.metrics import Sample

LONG_SECONDS = 0.05
"""More than this of processor time is too long for one step."""
LOOK_SECONDS = 0.01
RECENT_SECONDS = 300.0
"""For so long the longest step is shown."""
LOG_SECONDS = 60.0
"""Between two lines about it in the log."""
STACKS_MAX = 5
"""Of one step."""
FRAMES_MAX = 40
"""Of one stack."""
REPORTS = "LOCKSTEP_LONG_STEPS"
"""Environment: a directory in which each process writes down its long steps, one line of JSON each; for tests and benchmarks."""

_log = logging.getLogger("lockstep.loop")


@dataclass(frozen=True, slots=True)
class LongStep:
    """One step that was too long."""

    process: str
    seconds: float
    """Of processor time, at least."""
    stacks: tuple[tuple[str, ...], ...]
    """Where it was found, again and again: innermost first, `function (file:line)`."""
    began: float
    """By `time.monotonic`, which all processes of a host share: the last time that it was not found, hundredths before."""

    def __str__(self) -> str:
        stacks = "\n\n".join("\n".join(f"    {line}" for line in stack) for stack in self.stacks)
        return f"{self.process}: a step of {self.seconds * 1000:.0f} ms of processor time\n{stacks}"


def is_written_down() -> bool:
    """Whether the environment names such a directory."""
    return bool(os.environ.get(REPORTS))


def write_down(step: LongStep) -> None:
    """Into the directory that the environment names; nothing without one."""
    if directory := os.environ.get(REPORTS):
        with contextlib.suppress(OSError), open(Path(directory) / f"{os.getpid()}.jsonl", "a") as file:
            file.write(json.dumps(asdict(step)) + "\n")


def written_down(directory: Path) -> Iterator[LongStep]:
    """What processes have written there so far."""
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            found = json.loads(line)
            stacks = tuple(map(tuple, found["stacks"]))
            yield LongStep(found["process"], found["seconds"], stacks, found["began"])


class LoopWatch:
    """Watches the running loop of the thread that makes it, from `start` to `stop`."""

    def __init__(
        self,
        process: str,
        long_seconds: float = LONG_SECONDS,
        tell: Callable[[LongStep], None] = write_down,
    ) -> None:
        """`process`: as it calls itself. `tell` is called for each long step, in the watch's thread."""
        self._process = process
        self._long_seconds = long_seconds
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._loop_thread)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop watch", daemon=True)
        self._has_come_round = True
        self._used = time.clock_gettime(self._clock)
        """Processor time of the loop's thread at the last look."""
        self._slept = 0.0
        """When the last look was, less all the time for which this watch's thread has waited for a processor."""
        self._looked = time.monotonic()
        """When it was."""
        self._pulsed = self._used
        """Processor time when the loop came to its own timer last: a hundredth of a second ago, unless a step keeps it."""
        self._between = 0.0
        """The most that it used between two of these times since the last look."""
        self._timer: asyncio.TimerHandle | None = None
        self._step: FrameType | None = None
        """Outermost frame of the step that was found last; kept, so that no other step has one of the same identity."""
        self._step_used = 0.0
        """Processor time when it was found first, or before, if it had begun by then."""
        self._began = 0.0
        """When nobody had found it yet."""
        self._seconds = 0.0
        """What it has used since then."""
        self._stacks: list[tuple[str, ...]] = []
        self._recent: deque[tuple[float, float]] = deque()
        self._logged = -LOG_SECONDS
        self.long_steps = 0

    def start(self) -> None:
        self._pulse()
        self._thread.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stopping.set()
        self._thread.join()
        self._end_step()

    @property
    def longest_seconds(self) -> float:
        """Of the steps of the last minutes that were too long; 0: there was none."""
        now = time.monotonic()
        return max((seconds for at, seconds in list(self._recent) if now - at <= RECENT_SECONDS), default=0.0)

    def samples(self) -> Iterator[Sample]:
        """For /metrics."""
        yield Sample("lockstep_long_steps_total", self.long_steps)
        yield Sample("lockstep_longest_step_seconds", self.longest_seconds)

    def _pulse(self) -> None:
        """On the loop."""
        used = time.clock_gettime(self._clock)
        self._between, self._pulsed = max(self._between, used - self._pulsed), used
        self._timer = self._loop.call_later(LOOK_SECONDS, self._pulse)

    def _come_round(self) -> None:
        """On the loop: whatever step was found is over. Its frame goes here, for what it holds is the loop's."""
        self._step = None
        self._has_come_round = True

    def _run(self) -> None:
        with _delays() as delays:
            self._slept = time.monotonic() - delays()
            while not self._stopping.wait(LOOK_SECONDS):
                try:
                    self._look(delays)
                except RuntimeError:
                    return  # The loop is closed: the process is ending.

    def _look(self, delays: Callable[[], float]) -> None:
        before, self._looked = self._looked, time.monotonic()
        used, slept = time.clock_gettime(self._clock), self._looked - delays()
        since, asleep = used - self._used, slept - self._slept
        self._used, self._slept = used, slept
        kept, self._between = max(self._between, used - self._pulsed), 0.0
        # Who slept for longer than it wanted to, and waited for no processor, was kept by one call that held the interpreter: if
        # the loop was kept, too. Else its host has woken it late.
        was_kept = min(since, kept) > self._long_seconds and asleep > 3 * LOOK_SECONDS
        if was_kept or (not self._has_come_round and since > LOOK_SECONDS / 4):
            self._find(used, min(since, kept) if was_kept else 0.0, before)
        elif self._has_come_round:
            self._end_step()
        if self._has_come_round:
            self._has_come_round = False
            self._loop.call_soon_threadsafe(self._come_round)

    def _find(self, used: float, already: float, last_look: float) -> None:
        """The loop is in a step: look at what it does. `already`: how much the step has used, if it is a new one."""
        innermost = sys._current_frames()[self._loop_thread]
        step = _outermost(innermost)
        if step is None:
            self._end_step()
            return
        if step is not self._step:
            self._end_step()
            self._step, self._step_used, self._began = step, used - already, last_look
        self._seconds = used - self._step_used
        if self._seconds > self._long_seconds and len(self._stacks) < STACKS_MAX:
            self._stacks.append(_stack(innermost))

    def _end_step(self) -> None:
        if not self._stacks:
            return
        stacks, self._stacks = tuple(self._stacks), []
        step = LongStep(self._process, round(self._seconds, 3), stacks, self._began)
        now = time.monotonic()
        self.long_steps += 1
        self._recent.append((now, step.seconds))
        while now - self._recent[0][0] > RECENT_SECONDS:
            self._recent.popleft()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            where = " < ".join(stacks[0][:12])
            _log.warning("event=long_step milliseconds=%d %s", step.seconds * 1000, where)
        self._tell(step)


@contextlib.contextmanager
def watching(process: str) -> Iterator[LoopWatch]:
    """The running loop of this thread is watched until the end of the block."""
    watch = LoopWatch(process)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def _outermost(frame: FrameType | None) -> FrameType | None:
    """The first frame below the loop's own: what the loop called. None: it is in the loop itself."""
    below: FrameType | None = None
    while frame is not None:
        if frame.f_code.co_filename.endswith(_LOOP_FILES):
            return below
        below, frame = frame, frame.f_back
    return None


_LOOP_FILES = (os.path.join("asyncio", "runners.py"), os.path.join("asyncio", "events.py"))
"""Whose frames are those of a loop: `Runner.run`, and `Handle._run` of a loop that is written in Python."""


def _stack(frame: FrameType) -> tuple[str, ...]:
    lines: list[str] = []
    found: FrameType | None = frame
    while found is not None and len(lines) < FRAMES_MAX:
        code = found.f_code
        if code.co_filename.endswith(_LOOP_FILES):
            break
        place = "/".join(Path(code.co_filename).parts[-3:])
        lines.append(f"{code.co_qualname} ({place}:{found.f_lineno})")
        found = found.f_back
    return tuple(lines)


@contextlib.contextmanager
def _delays() -> Iterator[Callable[[], float]]:
    """Asks how long the calling thread has waited for a processor so far, in seconds; always 0 where the kernel does not say."""
    try:
        descriptor = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
    except OSError:
        yield lambda: 0.0
        return
    try:
        yield lambda: int(os.pread(descriptor, 100, 0).split()[1]) / 1e9
    finally:
        os.close(descriptor)


def functions_in(step: LongStep) -> Sequence[str]:
    """All functions that were found in it, for lists of what is known."""
    return sorted({line.partition(" ")[0] for stack in step.stacks for line in stack})
