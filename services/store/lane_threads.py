"""Threads that perform the core's jobs (DESIGN 5): journal writes and syncs in one per set, the rest in one per lane.

Law: a job's steps are performed in order, and its end is told to the event loop, once. Jobs of one (set, lane) never overlap,
because the core has only one under way. What is not a disk's error is a bug of ours and stops the process.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from lockstep.core.ids import SetName
from lockstep.runtime.process import halt
from services.store.core.disk import Compute, Disk, DiskError, Lane, StepResult, SyncSegment, WriteSegment
from services.store.core.messages import JobDone, JobFailed, Perform


class SyncingDisk(Disk, Protocol):
    """A disk that makes durable what it writes in the same call: between two the thread may wait for the interpreter."""

    def write_and_sync(self, set_name: SetName, step: WriteSegment) -> None:
        """As `perform` of the step and of `SyncSegment` behind it."""


def perform_job(disk: SyncingDisk, job: Perform, syncs: list[float]) -> JobDone | JobFailed:
    """All of its steps, on this thread, with their rests; `syncs` gets the seconds that each sync of a journal took."""
    results: list[StepResult] = []
    try:
        steps = job.steps
        if type(steps[0]) is WriteSegment and steps[1:2] == (SyncSegment(steps[0].number),):
            begun = time.perf_counter()
            disk.write_and_sync(job.set_name, steps[0])
            syncs.append(time.perf_counter() - begun)
            results += (None, None)
            steps = steps[2:]
        for step in steps:
            begun = time.perf_counter()
            results.append(disk.perform(job.set_name, step))
            if type(step) is Compute and step.rest:
                time.sleep(step.rest * (time.perf_counter() - begun))
    except DiskError as error:
        return JobFailed(job.set_name, job.lane, error)
    return JobDone(job.set_name, job.lane, tuple(results))


class LaneThreads:
    """Lives as long as the process. `feed` is called on the event loop, everything else by it."""

    def __init__(
        self,
        disk: SyncingDisk,
        feed: Callable[[JobDone | JobFailed], None],
        synced: Callable[[SetName, float], None] = lambda set_name, seconds: None,
    ) -> None:
        """`synced` is told, on the event loop, how long each sync of a journal took, its write included."""
        self._disk = disk
        self._feed = feed
        self._synced = synced
        self._loop = asyncio.get_running_loop()
        self._queues: dict[tuple[SetName | None, Lane], SimpleQueue[Perform | None]] = {}
        self._threads: list[threading.Thread] = []
        self._journal_since: dict[SetName, float] = {}
        """When the journal job that is under way began (monotonic seconds)."""

    def perform(self, job: Perform) -> None:
        """Hands a job to its thread."""
        place = (job.set_name if job.lane is Lane.JOURNAL else None), job.lane
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = SimpleQueue()
            name = f"{job.lane.value} {place[0] or ''}".strip()
            thread = threading.Thread(target=self._run, args=(queue,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        if job.lane is Lane.JOURNAL:
            self._journal_since[job.set_name] = time.monotonic()
        queue.put(job)

    def stalled_seconds(self, set_name: SetName) -> float:
        """How long the set's journal job is under way; 0 without one."""
        since = self._journal_since.get(set_name)
        return time.monotonic() - since if since is not None else 0.0

    def longest_stall_seconds(self) -> float:
        """The same of all sets: they share the disk."""
        return max(map(self.stalled_seconds, list(self._journal_since)), default=0.0)

    def close(self) -> None:
        """Ends the threads behind what they were given; waits for them a few seconds."""
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _run(self, queue: "SimpleQueue[Perform | None]") -> None:
        while (job := queue.get()) is not None:
            syncs: list[float] = []
            try:
                end = perform_job(self._disk, job, syncs)
            except BaseException as error:
                halt(f"a job of set {job.set_name} failed in lane {job.lane.value}", error)
            try:
                self._loop.call_soon_threadsafe(self._end, end, syncs)
            except RuntimeError:
                return  # the event loop is closed: the process is ending

    def _end(self, end: JobDone | JobFailed, syncs: list[float]) -> None:
        for seconds in syncs:
            self._synced(end.set_name, seconds)
        if end.lane is Lane.JOURNAL:
            self._journal_since.pop(end.set_name, None)
        self._feed(end)
