"""The core of a store: one data directory with any number of resource sets (DESIGN 5).

Law: what an answer reports is durable before the answer is an effect. Sets have nothing to do with each other; requests of one
set are handled in the order of their arrival.
"""

from typing import assert_never

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.store_protocol import StoreRefused
from services.store.core.limits import StoreLimits
from services.store.core.messages import (
    ChunkSent,
    JobDone,
    JobFailed,
    Note,
    ReaderReply,
    ReaderRequested,
    Reply,
    Requested,
    Stop,
    StoreEffect,
    StoreInput,
    StreamClosed,
    Tick,
)
from services.store.core.requests import FenceSet, ReadRefused, SetStatus, SurveySet
from services.store.core.set_lanes import SetLanes
from services.store.core.stored_set import ReaderWaiting


class StoreCore:
    """Lives as long as the process; driven by the server or the simulator: `handle(input, now) -> effects`."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self._limits = limits or StoreLimits()
        self._sets: dict[SetName, SetLanes] = {}
        self._set_of: dict[int, SetName] = {}
        """Which set a stream speaks of."""

    @property
    def is_idle(self) -> bool:
        """Nothing is under way and nothing waits."""
        return all(lanes.is_idle for lanes in self._sets.values())

    def set_names(self) -> list[SetName]:
        """All sets that were asked for since the start."""
        return sorted(self._sets)

    def status(self) -> list[SetStatus]:
        """Of each of them."""
        return [lanes.the.status() for _, lanes in sorted(self._sets.items())]

    def place(self, set_name: SetName) -> tuple[Epoch, LogIndex]:
        """The highest epoch that the set has seen, and the log's end, as far as they are known; for the log."""
        lanes = self._sets.get(set_name)
        if lanes is None:
            return Epoch(0), LogIndex(0)
        status = lanes.the.status()
        return status.highest_epoch, status.log_end

    def waiting_bytes(self, set_name: SetName) -> int:
        """Of requests that were not taken up yet: a driver reads no more of the set's streams while they are many."""
        lanes = self._sets.get(set_name)
        return lanes.the.waiting_bytes if lanes else 0

    def handle(self, event: StoreInput, now: float = 0.0) -> list[StoreEffect]:
        """Take an input in. `now` is not used: nothing in a store depends on time."""
        match event:
            case JobDone(set_name, lane, results):
                lanes = self._sets[set_name]
                lanes.job_done(lane, results)
            case Requested(stream, request):
                if self._is_one_too_many(request.set_name):
                    head = request.set_name, request.epoch, request.incarnation
                    refusal = StoreRefused(*head, ErrorCode.UNAVAILABLE, self._too_many, Epoch(0))
                    return [Reply(stream, refusal), self._refused(request.set_name)]
                lanes = self._lanes_of(stream, request.set_name)
                lanes.request(stream, request)
            case ReaderRequested(stream, request):
                if self._is_one_too_many(request.set_name):
                    refused = ReadRefused(ErrorCode.UNAVAILABLE, self._too_many, Epoch(0), LogIndex(0))
                    return [ReaderReply(stream, refused), self._refused(request.set_name)]
                lanes = self._lanes_of(stream, request.set_name)
                if isinstance(request, FenceSet | SurveySet):
                    lanes.request(stream, request)
                else:
                    lanes.read(ReaderWaiting(stream, request))
            case ChunkSent(stream) | StreamClosed(stream):
                found = self._sets.get(self._set_of.get(stream, SetName("")))
                if found is None:
                    return []
                lanes = found
                if isinstance(event, StreamClosed):
                    del self._set_of[stream]
                    lanes.close_stream(stream)
                else:
                    lanes.chunk_sent(stream)
            case JobFailed(set_name, lane, error):
                lanes = self._sets[set_name]
                lanes.job_failed(lane, error)
            case Tick() | Stop():
                effects = []
                for each in self._sets_of(event):
                    each.remember(is_last=isinstance(event, Stop))
                    effects += each.advance()
                return effects
            case _:
                assert_never(event)
        return lanes.advance()

    def _sets_of(self, event: Tick | Stop) -> list[SetLanes]:
        if isinstance(event, Tick) and event.set_name:
            return [self._sets[event.set_name]]
        return [lanes for _, lanes in sorted(self._sets.items())]

    def _is_one_too_many(self, set_name: SetName) -> bool:
        return set_name not in self._sets and len(self._sets) >= self._limits.sets_max

    @property
    def _too_many(self) -> str:
        return f"this store has {len(self._sets)} sets, sets_max is {self._limits.sets_max}"

    def _refused(self, set_name: SetName) -> Note:
        return Note(set_name, "limit reached", f"{set_name!r}: {self._too_many}", "sets_max")

    def _lanes_of(self, stream: int, set_name: SetName) -> SetLanes:
        self._set_of[stream] = set_name
        if set_name not in self._sets:
            self._sets[set_name] = SetLanes(set_name, self._limits)
        return self._sets[set_name]
