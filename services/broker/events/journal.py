"""The journal of this broker's own store, read for committed events: frames in a row, never beyond the commit index."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.frames import BadFrame
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.runtime.channels import Channels
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.status import error_from
from lockstep.runtime.wire import parse_answer
from lockstep.wire.v1 import store_pb2 as pb
from services.broker.core.events.builder import DecodedFrame

READ_SECONDS = 10.0
"""Of one piece."""
PIECE_BYTES = 1024 * 1024
"""Of frames in one call: readers of a store take turns."""

_log = logging.getLogger("lockstep.events")


class JournalReader:
    """Lives as long as the process."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channels = channels
        self._address = address
        self._failures = LimitLog(_log)

    async def frames(
        self, set_name: SetName, epoch: Epoch, after: LogIndex, until: LogIndex
    ) -> AsyncIterator[DecodedFrame]:
        """The frames behind `after` up to the one with `until`, as far as the store knows them to be committed.

        Raises `Rejected` OUT_OF_RANGE if the first is not there any more, UNAVAILABLE if the store cannot be read now.
        """
        position = after
        while position < until:
            pieces = await self._piece(set_name, epoch, position, until)
            if not pieces:
                return
            for durable in pieces:
                try:
                    frame = DecodedFrame.of(durable)
                except BadFrame as error:
                    raise self._no_frame(set_name, position, str(error)) from error
                if frame.header.first > position + 1:
                    raise self._no_frame(set_name, position, f"frame {frame.header.first} does not follow")
                position = frame.header.last
                yield frame

    async def _piece(self, set_name: SetName, epoch: Epoch, after: LogIndex, until: LogIndex) -> list[bytes]:
        request = pb.ReadJournalRequest(
            resource_set=set_name, epoch=epoch, from_index=after + 1, to_index=until, bytes_max=PIECE_BYTES
        )
        call: Any = self._channels.to(self._address).unary_stream("/lockstep.wire.v1.Store/ReadJournal")
        found: list[bytes] = []
        try:
            async for data in call(request.SerializeToString(), timeout=READ_SECONDS):
                whose = f"the store at {self._address}, asked for frames of {set_name} behind {after},"
                found += parse_answer(pb.ReadJournalResponse(), data, whose, is_read=True).frames
        except Rejected as error:
            error.details["set_name"] = set_name
            raise
        except grpc.aio.AioRpcError as error:
            failure = error_from(error, is_read=True)
            if failure.code is ErrorCode.WRONG_EPOCH:
                # This broker is behind its store; whether the reader's offset is good is another question.
                failure = Rejected(ErrorCode.UNAVAILABLE, failure.message)
            # Whoever reads several sets has to know where it lacks something.
            failure.details["set_name"] = set_name
            raise failure from error
        return found

    def _no_frame(self, set_name: SetName, after: LogIndex, why: str) -> Rejected:
        """Of what the store gives behind that index."""
        text = f"set {set_name}: behind index {after} the store at {self._address} has no frame that can be read: {why}"
        self._failures.seldom("bad_frame", f"set={set_name} index={after} {text}")
        return Rejected(ErrorCode.UNAVAILABLE, text, set_name=set_name, index=after)
