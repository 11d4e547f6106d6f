"""The journal of this broker's own store, read for committed events: frames in a row, never beyond the commit index."""

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.runtime.channels import Channels
from lockstep.runtime.status import error_from
from lockstep.runtime.wire import parse
from lockstep.wire.v1 import store_pb2 as pb
from services.broker.core.events.builder import DecodedFrame

READ_SECONDS = 30.0
"""Of one reading, which is of some megabytes."""


class JournalReader:
    """Lives as long as the process."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channels = channels
        self._address = address

    async def frames(
        self, set_name: SetName, epoch: Epoch, after: LogIndex, until: LogIndex
    ) -> AsyncIterator[DecodedFrame]:
        """The frames behind `after` up to the one with `until`. Whoever has enough closes the iterator.

        Raises `Rejected` OUT_OF_RANGE if the first is not there any more, UNAVAILABLE if the store cannot be read now.
        """
        request = pb.ReadJournalRequest(
            resource_set=set_name, epoch=epoch, from_index=after + 1, to_index=until
        )
        call: Any = self._channels.to(self._address).unary_stream("/lockstep.wire.v1.Store/ReadJournal")
        stream = call(request.SerializeToString(), timeout=READ_SECONDS)
        try:
            async for data in stream:
                for durable in parse(pb.ReadJournalResponse(), data).frames:
                    yield DecodedFrame.of(durable)
        except grpc.aio.AioRpcError as error:
            raise error_from(error, is_read=True) from error
        finally:
            stream.cancel()
