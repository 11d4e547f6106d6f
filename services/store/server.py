"""The store service: streams of requests to the core, its jobs to threads, its answers back (DESIGN 5).

Law: an answer is written only when the core has given it, and the core gives it when its job is done. A heartbeat is answered
while the disk works: whoever hears nothing for three of them, or loses the stream, knows nothing of what was not answered. What
waits behind big requests cannot be read yet: while these get on, and while they wait for room, a heartbeat is said unasked.
"""

import asyncio
import contextlib
import logging
import signal
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc.aio

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SetName
from lockstep.core.store_protocol import AnyStoreAnswer, AnyStoreRequest, StateChunk
from lockstep.runtime.big_bytes import BIG_BYTES
from lockstep.runtime.channels import make_server
from lockstep.runtime.health import Health
from lockstep.runtime.hearing import hear_decoded
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.loop_watch import watching
from lockstep.runtime.metrics import serve_metrics
from lockstep.runtime.outbox import Outbox
from lockstep.runtime.process import CannotStart, bind, spawn
from lockstep.runtime.pulses import PULSE_SECONDS
from lockstep.runtime.reflection import add_services
from lockstep.runtime.rpc import Context, service, stream_stream, unary, unary_stream
from lockstep.runtime.store_codec import HEARTBEAT, decode_long_request, decode_request, encode_answer
from lockstep.runtime.tracing import tracing
from lockstep.runtime.wire import Serialized
from lockstep.transport.stream import MOVED_BYTES, size_of
from lockstep.wire.v1 import store_pb2
from services.store.core.messages import (
    ChunkSent,
    Note,
    Perform,
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
from services.store.core.requests import AnyReaderAnswer, AnyReaderRequest
from services.store.core.store_core import StoreCore
from services.store.directory_disk import DirectoryDisk, DirectoryInUse
from services.store.lane_threads import LaneThreads
from services.store.readers import ReaderMethods, encode_status
from services.store.samples import StoreSamples
from services.store.settings import StoreSettings
from services.store.store_tracing import StoreTracing

TICKED_AT_ONCE = 50
"""Sets: a millisecond or two, before others have their turn."""

_log = logging.getLogger("lockstep.store")

_Answer = tuple[AnyStoreAnswer | None, Serialized]
"""What is written; None for a heartbeat."""


@dataclass(slots=True)
class _Writer:
    """One stream of a set's writer, from its opening to its end."""

    outbox: Outbox[_Answer]
    context: Any
    """Its call."""
    received_bytes: int = 0
    """At the last beat."""
    is_waiting: bool = False
    """For room: nothing is read."""


class StoreServer:
    """Lives as long as the process, on one event loop."""

    def __init__(self, settings: StoreSettings, disk: DirectoryDisk) -> None:
        self._settings = settings
        self._disk = disk
        self.samples = StoreSamples(self)
        self.core = StoreCore(settings.limits)
        self.lanes = LaneThreads(disk, self.feed, self.samples.synced)
        traces = tracing()
        self._tracing = StoreTracing(traces) if traces is not None else None
        self._writers: dict[int, _Writer] = {}
        """By their streams."""
        self._readers: dict[int, Outbox[AnyReaderAnswer]] = {}
        self._last_stream = 0
        self._progress: dict[SetName, asyncio.Event] = {}
        """Set whenever a job of the set has ended: there may be room for requests again."""
        self._refusals = LimitLog(_log)

    def handlers(self) -> grpc.GenericRpcHandler:
        readers = ReaderMethods(self, self._disk.set_names)
        return service(
            "Store",
            {
                "Append": stream_stream(self._append),
                "ReadSnapshot": unary_stream(readers.read_snapshot),
                "ReadJournal": unary_stream(readers.read_journal),
                "ReadMessages": unary(store_pb2.ReadMessagesRequest, readers.read_messages),
                "Survey": unary(store_pb2.SurveyRequest, readers.survey),
                "Fence": unary(store_pb2.FenceRequest, readers.fence),
                "GetStatus": unary(store_pb2.GetStoreStatusRequest, self._get_status),
            },
        )

    # --- the core ---------------------------------------------------------------------------------------------------

    def feed(self, event: StoreInput) -> None:
        """Gives the core an input and performs what comes of it."""
        self._perform(self.core.handle(event))
        if self._progress and (set_name := getattr(event, "set_name", None)) in self._progress:
            self._progress[set_name].set()

    def _perform(self, effects: list[StoreEffect]) -> None:
        for effect in effects:
            match effect:
                case Perform():
                    self.samples.count_job(effect)
                    self.lanes.perform(effect)
                case Reply(stream, answer):
                    self._reply(stream, answer)
                case ReaderReply(stream, read_answer):
                    reader = self._readers.get(stream)
                    if reader is not None:
                        reader.put(read_answer)
                case Note(set_name, event, details, limit):
                    if limit:
                        self._refusals.refused(limit, details)
                        continue
                    epoch, index = self.core.place(set_name)
                    word = event.replace(" ", "_")
                    _log.warning(
                        "set=%s epoch=%d index=%d event=%s %s", set_name, epoch, index, word, details
                    )

    def _reply(self, stream: int, answer: AnyStoreAnswer) -> None:
        if self._tracing is not None:
            self._tracing.answered(answer)
        writer = self._writers.get(stream)
        if writer is None:
            return
        outbox, data = writer.outbox, encode_answer(answer)
        if outbox.bytes_waiting > self._settings.unsent_bytes_max:
            text = f"set={answer.set_name} {outbox.bytes_waiting} bytes of answers are not taken"
            self._refusals.refused("unsent_bytes_max", text)
            outbox.abort()
        outbox.put((answer, data), size_of(data), wakes=False)
        outbox.write_now(1, partial(_write_now, writer.context))

    async def tick(self) -> None:
        """Feeds `Tick`, to some sets at a time, for ever; a task of the process."""
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            for place, set_name in enumerate(self.core.set_names(), start=1):
                self.feed(Tick(set_name))
                if place % TICKED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def beat(self) -> None:
        """Says heartbeats to who is being read, or waits for room: his own are behind that. For ever; a task of the process."""
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            for writer in self._writers.values():
                before, writer.received_bytes = writer.received_bytes, writer.context.received_bytes
                if writer.is_waiting or writer.received_bytes - before >= MOVED_BYTES:
                    self._say_heartbeat(writer.outbox)

    async def stop(self) -> None:
        """Remembers what is told lazily and lets the jobs end."""
        self.feed(Stop())
        for _ in range(500):
            if self.core.is_idle:
                break
            await asyncio.sleep(0.01)
        self.lanes.close()

    # --- the writer's streams ---------------------------------------------------------------------------------------

    async def _append(self, context: Context) -> None:
        stream, writer = self._new_stream(), _Writer(Outbox(), context)
        self._writers[stream] = writer
        reading = asyncio.ensure_future(self._read_requests(stream, writer))
        try:
            await self._write_answers(context, stream, writer.outbox)
        finally:
            reading.cancel()
            del self._writers[stream]
            self.feed(StreamClosed(stream))
        with contextlib.suppress(asyncio.CancelledError):
            await reading

    async def _read_requests(self, stream: int, writer: _Writer) -> None:
        set_name = SetName("")

        def tell(request: AnyStoreRequest | None) -> bool:
            nonlocal set_name
            if request is None:
                self._say_heartbeat(writer.outbox)
                return True
            if set_name and request.set_name != set_name:
                raise Rejected(ErrorCode.OTHER_SET, f"this stream is of set {set_name}", set=request.set_name)
            set_name = request.set_name
            if self._tracing is not None:
                self._tracing.requested(request)
            self.feed(Requested(stream, request))
            return self._has_room(set_name)

        try:
            while await hear_decoded(writer.context, BIG_BYTES, decode_request, decode_long_request, tell):
                writer.is_waiting = True
                await self._wait_for_room(set_name)
                writer.is_waiting = False
        finally:
            writer.outbox.finish()

    def _say_heartbeat(self, outbox: Outbox[_Answer]) -> None:
        """Not while the disk hangs: a primary whose store cannot write has to notice (R6, history 27).

        To no set then: an answer to one that has nothing to write would keep the broker's one lease, and with it every set.
        """
        if self.lanes.longest_stall_seconds() < self._settings.stall_seconds:
            outbox.put((None, HEARTBEAT))

    def _has_room(self, set_name: SetName) -> bool:
        return self.core.waiting_bytes(set_name) <= self._settings.waiting_bytes_max

    async def _wait_for_room(self, set_name: SetName) -> None:
        while not self._has_room(set_name):
            event = self._progress.setdefault(set_name, asyncio.Event())
            event.clear()
            await event.wait()

    async def _write_answers(self, call: Any, stream: int, outbox: Outbox[_Answer]) -> None:
        while answers := await outbox.take(1):
            for answer, data in answers:
                await call.write(data)
                if isinstance(answer, StateChunk):
                    self.feed(ChunkSent(stream))

    # --- everybody else ---------------------------------------------------------------------------------------------

    def open_reader(self, request: AnyReaderRequest) -> tuple[int, Outbox[AnyReaderAnswer]]:
        """Asks the core; the answers come into the outbox. To be closed by `close_reader`."""
        stream, outbox = self._new_stream(), Outbox[AnyReaderAnswer]()
        self._readers[stream] = outbox
        self.feed(ReaderRequested(stream, request))
        return stream, outbox

    def close_reader(self, stream: int) -> None:
        del self._readers[stream]
        self.feed(StreamClosed(stream))

    async def _get_status(self, request: store_pb2.GetStoreStatusRequest) -> store_pb2.GetStoreStatusResponse:
        sets = [encode_status(status) for status in self.core.status()]
        return store_pb2.GetStoreStatusResponse(data_directory=str(self._settings.data), sets=sets)

    def _new_stream(self) -> int:
        self._last_stream += 1
        return self._last_stream


def _write_now(context: Any, answers: list[_Answer]) -> bool:
    """One answer, at once if it can be."""
    ((answer, data),) = answers
    return not isinstance(answer, StateChunk) and context.write_now(data)


async def serve(settings: StoreSettings) -> int:
    """Runs a store until SIGTERM or SIGINT; answers the exit status."""
    # The consolidator computes in a thread of its own: the event loop must get the interpreter back quickly.
    sys.setswitchinterval(0.0005)
    try:
        disk = DirectoryDisk(settings.data, settings.is_prefilled)
    except DirectoryInUse as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        raise CannotStart(f"the data directory cannot be used: {error}") from error
    store = StoreServer(settings, disk)
    server = make_server()
    add_services(server, (store.handlers(),), Health())
    port = bind(server, settings.listen)
    await server.start()
    health = make_server()
    add_services(health, (), Health())
    if settings.health_listen:
        bind(health, settings.health_listen)
    await health.start()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    cleanup = contextlib.ExitStack()
    watch = cleanup.enter_context(watching(f"store in {settings.data}"))
    if settings.metrics_port:
        sources = [store.samples.read, watch.samples]
        cleanup.callback(serve_metrics(settings.metrics_port, sources, settings.metrics_host))
    timers = spawn(store.tick(), "ticks"), spawn(store.beat(), "heartbeats")
    address = (
        settings.listen
        if settings.listen.startswith("unix:")
        else f"{settings.listen.rpartition(':')[0]}:{port}"
    )
    _log.info("event=ready address=%s data=%s", address, settings.data)
    await stopped.wait()
    for timer in timers:
        timer.cancel()
    await server.stop(grace=0.1)
    await health.stop(None)
    await store.stop()
    cleanup.close()
    disk.close()
    _log.info("event=stopped")
    return 0
