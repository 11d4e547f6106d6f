"""Inputs and effects of a `StoreCore`.

Law: inputs are facts, effects are performed in order. A `Perform` is a job of `disk.py`: its steps are done in order by one
thread, and exactly one `JobDone` or `JobFailed` comes back. The core holds back whatever depends on a job until then, so that
effects of other sets and lanes need not wait: an answer leaves only after the sync that it reports.
"""

from dataclasses import dataclass

from lockstep.core.ids import SetName
from lockstep.core.store_protocol import AnyStoreAnswer, AnyStoreRequest
from services.store.core.disk import DiskError, Lane, Results, Steps
from services.store.core.requests import AnyReaderAnswer, AnyReaderRequest


@dataclass(frozen=True, slots=True)
class Requested:
    """A broker's request arrived on `stream` (a number that the driver gives out and never reuses)."""

    stream: int
    request: AnyStoreRequest


@dataclass(frozen=True, slots=True)
class ReaderRequested:
    """Somebody who is not the writer asks; `stream` is a number of the same kind, for this one request."""

    stream: int
    request: AnyReaderRequest


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """Nothing more comes from this stream, and nothing can be sent to it."""

    stream: int


@dataclass(frozen=True, slots=True)
class ChunkSent:
    """One `StateChunk`, `ItemsRead` or `FramesRead` of a `Reply` has left: there is room for another."""

    stream: int


@dataclass(frozen=True, slots=True)
class JobDone:
    """All steps were performed; one result for each."""

    set_name: SetName
    lane: Lane
    results: Results


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A step failed; none behind it was performed."""

    set_name: SetName
    lane: Lane
    error: DiskError


@dataclass(frozen=True, slots=True)
class Tick:
    """About once a second: what is remembered lazily is written (the known commit index)."""


@dataclass(frozen=True, slots=True)
class Stop:
    """No more requests come. Remember what there is; the store may exit when no job is under way."""


@dataclass(frozen=True, slots=True)
class Perform:
    """A job for the disk."""

    set_name: SetName
    lane: Lane
    steps: Steps


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a writer's stream; dropped when that is closed."""

    stream: int
    answer: AnyStoreAnswer


@dataclass(frozen=True, slots=True)
class ReaderReply:
    """An answer to a reader's request."""

    stream: int
    answer: AnyReaderAnswer


@dataclass(frozen=True, slots=True)
class Note:
    """Something an operator should find in the log; `event` is a fixed word."""

    set_name: SetName
    event: str
    details: str


StoreInput = Requested | ReaderRequested | StreamClosed | ChunkSent | JobDone | JobFailed | Tick | Stop
StoreEffect = Perform | Reply | ReaderReply | Note
