"""Whether a participant service is there, before it takes part in anything."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from lockstep.core.branch_names import ParticipantName
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.channels import Channels
from lockstep.runtime.rpc import service, unary
from lockstep.wire.v1 import participant_pb2 as pb
from services.coordinator.participant_ports import GrpcParticipants


class Service:
    """A participant by the name of rows; `can_list` False: an older one, that does not serve Recover."""

    def __init__(self, *, can_list: bool = True) -> None:
        self.asked = 0
        self.is_silent = False
        self._can_list = can_list

    async def _recover(self, request: pb.ParticipantRecoverRequest) -> pb.ParticipantRecoverResponse:
        self.asked += 1
        if self.is_silent:
            await asyncio.sleep(60)
        if request.name != "rows":
            raise Rejected(ErrorCode.NOT_FOUND, f"this is rows, not {request.name}")
        return pb.ParticipantRecoverResponse()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        server = grpc.aio.server()
        verbs = {"Recover": unary(pb.ParticipantRecoverRequest, self._recover)} if self._can_list else {}
        server.add_generic_rpc_handlers((service("Participant", verbs),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"grpc://127.0.0.1:{port}"
        finally:
            await server.stop(0)


@pytest.fixture
async def participants() -> AsyncIterator[GrpcParticipants]:
    channels = Channels()
    yield GrpcParticipants(channels, 0.5, 4)
    await channels.close()


async def code_of(participants: GrpcParticipants, name: str) -> ErrorCode:
    try:
        await participants.check_there(ParticipantName(name))
    except Rejected as refused:
        return refused.code
    return ErrorCode.NONE


@pytest.mark.parametrize("can_list", [True, False])
async def test_one_that_answers_is_there_and_is_asked_once(
    participants: GrpcParticipants, can_list: bool
) -> None:
    rows = Service(can_list=can_list)
    async with rows.served() as address:
        codes = await asyncio.gather(*(code_of(participants, f"{address}/rows") for _ in range(20)))
        assert [*codes, await code_of(participants, f"{address}/rows")] == [ErrorCode.NONE] * 21
    assert rows.asked == int(can_list)
    assert await code_of(participants, f"{address}/rows") is ErrorCode.NONE, "it is away, and comes back"


async def test_one_of_another_name_is_not_there(participants: GrpcParticipants) -> None:
    async with Service().served() as address:
        for _ in range(2):
            assert await code_of(participants, f"{address}/orders") is ErrorCode.INVALID_ARGUMENT


async def test_one_that_was_never_reached_takes_part_in_nothing_until_it_is(
    participants: GrpcParticipants,
) -> None:
    assert await code_of(participants, "grpc://127.0.0.1:1/rows") is ErrorCode.ILLEGAL_STATE
    rows = Service()
    async with rows.served() as address:
        rows.is_silent = True
        assert await code_of(participants, f"{address}/rows") is ErrorCode.ILLEGAL_STATE
        rows.is_silent = False
        assert await code_of(participants, f"{address}/rows") is ErrorCode.NONE
