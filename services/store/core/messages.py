"""Inputs and effects of a `StoreCore`.

Law: inputs are facts, effects are performed in order. A `Perform` is a job of `disk.py`: its steps are done in order by one
thread, and exactly one `JobDone` or `JobFailed` comes back. The core holds back whatever depends on a job until then, so that
effects of other sets and lanes need not wait: an answer leaves only after the sync that it reports.
"""

import msgspec

from lockstep.core.ids import SetName
from lockstep.core.store_protocol import AnyStoreAnswer, AnyStoreRequest
from services.store.core.disk import DiskError, Lane, Results, Steps
from services.store.core.requests import AnyReaderAnswer, AnyReaderRequest


class Requested(msgspec.Struct, frozen=True):
    """A broker's request arrived on `stream` (a number that the driver gives out and never reuses)."""

    stream: int
    request: AnyStoreRequest


class ReaderRequested(msgspec.Struct, frozen=True):
    """Somebody who is not the writer asks; `stream` is a number of the same kind, for this one request."""

    stream: int
    request: AnyReaderRequest


class StreamClosed(msgspec.Struct, frozen=True):
    """Nothing more comes from this stream, and nothing can be sent to it."""

    stream: int


class ChunkSent(msgspec.Struct, frozen=True):
    """One `StateChunk`, `ItemsRead` or `FramesRead` of a `Reply` has left: there is room for another."""

    stream: int


class JobDone(msgspec.Struct, frozen=True):
    """All steps were performed; one result for each."""

    set_name: SetName
    lane: Lane
    results: Results


class JobFailed(msgspec.Struct, frozen=True):
    """A step failed; none behind it was performed."""

    set_name: SetName
    lane: Lane
    error: DiskError


class Tick(msgspec.Struct, frozen=True):
    """About once a second: what is remembered lazily is written (the known commit index)."""

    set_name: SetName = SetName("")
    """Of which set; "": of all of them, where these are few."""


class Stop(msgspec.Struct, frozen=True):
    """No more requests come. Remember what there is; the store may exit when no job is under way."""


class Perform(msgspec.Struct, frozen=True):
    """A job for the disk."""

    set_name: SetName
    lane: Lane
    steps: Steps


class Reply(msgspec.Struct, frozen=True):
    """An answer to a writer's stream; dropped when that is closed."""

    stream: int
    answer: AnyStoreAnswer


class ReaderReply(msgspec.Struct, frozen=True):
    """An answer to a reader's request."""

    stream: int
    answer: AnyReaderAnswer


class Note(msgspec.Struct, frozen=True):
    """Something an operator should find in the log; `event` is a fixed word."""

    set_name: SetName
    event: str
    details: str
    limit: str = ""
    """Which limit has refused something: such lines come once a minute at most (`LimitLog`)."""


StoreInput = Requested | ReaderRequested | StreamClosed | ChunkSent | JobDone | JobFailed | Tick | Stop
StoreEffect = Perform | Reply | ReaderReply | Note
