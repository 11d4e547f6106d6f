"""The disk of this broker's own store, as a whole: which sets it holds, whoever serves them (DESIGN R1).

Law: a set that is on the disk and not in etcd is never taken for a new one. Somebody lost it, and an operator has to say what is
to become of it.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import Message

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, SetName
from lockstep.runtime.channels import Channels
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.status import error_from
from lockstep.runtime.wire import parse_answer
from lockstep.wire.v1 import store_pb2 as pb

SURVEY_SECONDS = 120.0
"""For one disk: opening a set reads its journal, and a survey with names reads it once more."""
RETRY_SECONDS = 0.5

_log = logging.getLogger("lockstep.own_disk")
_Response = TypeVar("_Response", bound=Message)


class OwnDisk:
    """Lives as long as the broker process."""

    def __init__(self, channels: Channels, address: str, view: ClusterView) -> None:
        self._channels = channels
        self._address = address
        self._view = view
        self._found: dict[SetName, Epoch] = {}
        """Sets that had been written to when this process started, and the highest epoch that the disk had seen of each."""

    @property
    def lost_sets(self) -> list[SetName]:
        """On the disk, and not in etcd."""
        return [set_name for set_name in self._found if self._view.set_map(set_name) is None]

    def epoch_ahead(self, set_name: SetName) -> Epoch | None:
        """The epoch that the disk has seen, if it is above the one that etcd shows: etcd was set back."""
        set_map, found = self._view.set_map(set_name), self._found.get(set_name, Epoch(0))
        return found if set_map is not None and found > set_map.epoch else None

    def refuse_lost(self, set_name: SetName | None = None) -> None:
        """Raises `Rejected` (UNKNOWN_SET) if this set, or any, is lost: nobody is to go on as if it had never been."""
        lost = self.lost_sets
        if lost and (set_name is None or set_name in lost):
            names = ", ".join(lost[:20])
            raise Rejected(
                ErrorCode.UNKNOWN_SET,
                f"etcd has lost its data: it does not know of {names}, which the brokers' disks have;"
                " an operator has to run `lockstep cluster rebuild-map`",
                set_names=lost[:20],
            )

    async def look(self) -> None:
        """Finds out what is on the disk, as soon as the store answers; a task of the process. The view was read before."""
        said = ""
        while True:
            try:
                survey = await self.survey(with_names=False)
            except Rejected as error:
                if error.message != said:
                    said = error.message
                    _log.warning("event=disk_not_surveyed %s", said)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._found = {
                SetName(one.set.resource_set): Epoch(one.set.highest_epoch)
                for one in survey.sets
                if _is_used(one)
            }
            self._log_what_is_wrong()
            return

    def _log_what_is_wrong(self) -> None:
        advice = "nothing is started of it (lockstep cluster rebuild-map)"
        for set_name in self.lost_sets:
            _log.critical("set=%s event=etcd_lost on this disk and not in etcd: %s", set_name, advice)
        for set_name in self._found:
            epoch = self.epoch_ahead(set_name)
            if epoch is not None:
                _log.critical(
                    "set=%s event=etcd_set_back disk has seen epoch %d: %s", set_name, epoch, advice
                )

    async def survey(
        self, *, with_names: bool, fences: Sequence[tuple[SetName, Epoch]] = ()
    ) -> pb.SurveyResponse:
        """All sets of the disk, after these epochs were made durable there. Raises `Rejected`."""
        for set_name, epoch in fences:
            await self._call("Fence", pb.FenceRequest(resource_set=set_name, epoch=epoch), pb.FenceResponse)
        return await self._call("Survey", pb.SurveyRequest(with_names=with_names), pb.SurveyResponse)

    async def _call(self, method: str, request: Message, kind: type[_Response]) -> _Response:
        call: Any = self._channels.to(self._address).unary_unary(f"/lockstep.wire.v1.Store/{method}")
        try:
            data = await call(request.SerializeToString(), timeout=SURVEY_SECONDS)
        except grpc.aio.AioRpcError as error:
            # A fence may be repeated: what it did counts for nothing before the map has that epoch.
            raise error_from(error, is_read=True) from error
        return parse_answer(kind(), data, f"the store at {self._address}, asked for {method},", is_read=True)


def _is_used(one: pb.SurveyedSet) -> bool:
    return bool(one.set.highest_epoch or one.set.log_end or one.map_bytes or one.trouble or one.set.damage)
