"""The methods of the store service for others than the writer: inspection, contents, fences.

Law: each is one question to the core; answers are written as they come, and the core reads on when they have left.
"""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from lockstep.core.errors import Rejected
from lockstep.core.ids import Epoch, LogIndex, MessageId, SetName
from lockstep.runtime.epochs_codec import encode_epochs
from lockstep.runtime.outbox import Outbox
from lockstep.runtime.rpc import Context
from lockstep.runtime.store_codec import check_set_name, encode_items
from lockstep.runtime.wire import parse
from lockstep.wire.v1 import store_pb2
from services.store.core.messages import ChunkSent, StoreInput
from services.store.core.requests import (
    AnyReaderAnswer,
    AnyReaderRequest,
    ContentsRead,
    FenceSet,
    FramesRead,
    ItemsRead,
    ReadContents,
    ReadFrames,
    ReadItems,
    ReadRefused,
    SetFenced,
    SetStatus,
    SetSurveyed,
    SurveySet,
)


class Asked(Protocol):
    """The server, as its readers see it."""

    def open_reader(self, request: AnyReaderRequest) -> tuple[int, Outbox[AnyReaderAnswer]]: ...
    def close_reader(self, stream: int) -> None: ...
    def feed(self, event: StoreInput) -> None: ...


class ReaderMethods:
    """Lives as long as the server."""

    def __init__(self, server: Asked, set_names: Callable[[], list[SetName]]) -> None:
        """`set_names`: the sets that the disk has."""
        self._server = server
        self._set_names = set_names

    async def read_snapshot(self, data: bytes, context: Context) -> None:
        request = parse(store_pb2.ReadSnapshotRequest(), data)
        question = ReadItems(check_set_name(request.resource_set), Epoch(request.epoch), request.from_key)
        async for answer in self._ask(question):
            assert isinstance(answer, ItemsRead), answer
            response = store_pb2.ReadSnapshotResponse(
                items=encode_items(answer.items), snapshot_index=answer.snapshot_index
            )
            await context.write(response.SerializeToString())

    async def read_journal(self, data: bytes, context: Context) -> None:
        request = parse(store_pb2.ReadJournalRequest(), data)
        question = ReadFrames(
            check_set_name(request.resource_set),
            Epoch(request.epoch),
            LogIndex(request.from_index),
            LogIndex(request.to_index),
            request.bytes_max,
        )
        async for answer in self._ask(question):
            assert isinstance(answer, FramesRead), answer
            if answer.frames:
                response = store_pb2.ReadJournalResponse(frames=answer.frames)
                await context.write(response.SerializeToString())

    async def read_messages(self, request: store_pb2.ReadMessagesRequest) -> store_pb2.ReadMessagesResponse:
        wanted = tuple(MessageId(message) for message in request.message_ids)
        question = ReadContents(check_set_name(request.resource_set), Epoch(request.epoch), wanted)
        response = store_pb2.ReadMessagesResponse()
        async for answer in self._ask(question):
            assert isinstance(answer, ContentsRead), answer
            for content in answer.contents:
                response.is_there.append(content is not None)
                properties, body = content or (b"", b"")
                response.properties.append(properties)
                response.bodies.append(body)
        return response

    async def fence(self, request: store_pb2.FenceRequest) -> store_pb2.FenceResponse:
        response = store_pb2.FenceResponse()
        async for answer in self._ask(FenceSet(check_set_name(request.resource_set), Epoch(request.epoch))):
            assert isinstance(answer, SetFenced), answer
            response = store_pb2.FenceResponse(
                highest_epoch=answer.highest_epoch, log_end=answer.log_end, commit_index=answer.commit_index
            )
        return response

    async def survey(self, request: store_pb2.SurveyRequest) -> store_pb2.SurveyResponse:
        response = store_pb2.SurveyResponse()
        for set_name in self._set_names():
            surveyed = response.sets.add(set=store_pb2.StoredSet(resource_set=set_name))
            try:
                async for answer in self._ask(SurveySet(set_name, Epoch(0), request.with_names)):
                    assert isinstance(answer, SetSurveyed), answer
                    surveyed.CopyFrom(encode_survey(answer))
            except Rejected as error:
                surveyed.trouble = error.message
        return response

    async def _ask(self, question: AnyReaderRequest) -> AsyncIterator[AnyReaderAnswer]:
        """The answers to one question; raises `Rejected` if it was refused."""
        stream, outbox = self._server.open_reader(question)
        try:
            is_last = False
            while not is_last:
                for answer in await outbox.take(1):
                    if isinstance(answer, ReadRefused):
                        raise Rejected(
                            answer.code,
                            answer.message,
                            set=question.set_name,
                            highest_epoch=answer.highest_epoch,
                            lowest_index=answer.lowest_index,
                        )
                    yield answer
                    is_last = not isinstance(answer, ItemsRead | FramesRead) or answer.is_last
                    if isinstance(answer, ItemsRead | FramesRead):
                        self._server.feed(ChunkSent(stream))
        finally:
            self._server.close_reader(stream)


def encode_status(status: SetStatus) -> store_pb2.StoredSet:
    return store_pb2.StoredSet(
        resource_set=status.set_name,
        disk=status.disk,
        log_end=status.log_end,
        snapshot_index=status.snapshot_index,
        commit_index=status.commit_index,
        highest_epoch=status.highest_epoch,
        journal_bytes=status.journal_bytes,
        damage=status.damage,
        owed_bytes=status.owed_bytes,
        lowest_index=status.lowest_index,
    )


def encode_survey(survey: SetSurveyed) -> store_pb2.SurveyedSet:
    return store_pb2.SurveyedSet(
        set=encode_status(survey.status),
        last_epoch=survey.last_epoch,
        map_bytes=survey.map_bytes,
        map_revision=survey.map_revision,
        generation=survey.generation,
        queues=survey.queues,
        exchanges=survey.exchanges,
        etcd_revision=survey.etcd_revision,
        stamp=survey.stamp,
        epochs=encode_epochs(survey.epochs, survey.reigns),
        trouble=survey.trouble,
    )
