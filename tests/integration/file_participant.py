"""A tiny Participant service for tests, as a process: its branches are lines of a file.

Law: a line is on the disk before it is answered. `python -m tests.integration.file_participant ADDRESS FILE`; the name of the
participant says how it behaves: "ok", "refuses", "readonly", "slow" (each answer takes a while), "held" (answers nothing while a
file says so, see `held`), "vanishes" (dies when it is first told to commit) or "contradicts" (votes yes, and rolls back when it
is told to commit).
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc

from lockstep.runtime.channels import make_server
from lockstep.runtime.process import set_up_logging
from lockstep.runtime.rpc import service, unary
from lockstep.runtime.xid_codec import decode_xid
from lockstep.wire.v1 import participant_pb2 as pb

DELAY_SECONDS = {"slow": 0.3}


class FileParticipant:
    """Lives as long as its process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._states = read_states(path)

    def handlers(self) -> grpc.GenericRpcHandler:
        return service(
            "Participant",
            {
                "Prepare": unary(pb.ParticipantPrepareRequest, self._prepare),
                "Commit": unary(pb.ParticipantCommitRequest, self._commit),
                "Rollback": unary(pb.ParticipantRollbackRequest, self._rollback),
            },
        )

    async def _prepare(self, request: pb.ParticipantPrepareRequest) -> pb.ParticipantPrepareResponse:
        await self._take_time(request.name)
        xid = str(decode_xid(request.xid))
        if request.name == "readonly":
            return pb.ParticipantPrepareResponse(vote=pb.PARTICIPANT_VOTE_READ_ONLY)
        state = self._states.get(xid)
        if state is None:
            state = "rolled-back" if request.name == "refuses" else "prepared"
            self._write(xid, state)
        votes = {"prepared": pb.PARTICIPANT_VOTE_OK, "committed": pb.PARTICIPANT_VOTE_COMMITTED}
        return pb.ParticipantPrepareResponse(
            vote=votes.get(state, pb.PARTICIPANT_VOTE_NO), reason="as its name says"
        )

    async def _commit(self, request: pb.ParticipantCommitRequest) -> pb.ParticipantCommitResponse:
        await self._take_time(request.name)
        xid = str(decode_xid(request.xid))
        if request.name == "contradicts":
            self._write(xid, "rolled-back")
        if request.name == "vanishes" and not self._path.with_suffix(".vanished").exists():
            self._path.with_suffix(".vanished").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._states.get(xid) == "prepared" or (request.one_phase and xid not in self._states):
            self._write(xid, "committed")
        return pb.ParticipantCommitResponse(end=self._end(xid))

    async def _rollback(self, request: pb.ParticipantRollbackRequest) -> pb.ParticipantRollbackResponse:
        await self._take_time(request.name)
        xid = str(decode_xid(request.xid))
        if self._states.get(xid) in (None, "prepared"):
            self._write(xid, "rolled-back")
        return pb.ParticipantRollbackResponse(end=self._end(xid))

    async def _take_time(self, name: str) -> None:
        await asyncio.sleep(DELAY_SECONDS.get(name, 0))
        while name == "held" and _hold_file(self._path).exists():
            await asyncio.sleep(0.01)

    def _end(self, xid: str) -> "pb.ParticipantEnd.ValueType":
        ends = {"committed": pb.PARTICIPANT_END_COMMITTED, "rolled-back": pb.PARTICIPANT_END_ROLLED_BACK}
        return ends.get(self._states.get(xid, ""), pb.PARTICIPANT_END_UNKNOWN_BRANCH)

    def _write(self, xid: str, state: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{xid} {state}\n")
            file.flush()
            os.fsync(file.fileno())
        self._states[xid] = state


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Inside the block the participant of this file answers nothing by the name "held"."""
    _hold_file(path).touch()
    try:
        yield
    finally:
        _hold_file(path).unlink()


def _hold_file(path: Path) -> Path:
    return path.with_suffix(".held")


def read_states(path: Path) -> dict[str, str]:
    """The last state of every branch: what the participant knows after a restart."""
    if not path.exists():
        return {}
    # The last line may be half of one.
    lines = path.read_text().split("\n")[:-1]
    return dict(line.split(" ", 1) for line in lines)


async def _serve(address: str, path: Path) -> None:
    server = make_server()
    server.add_generic_rpc_handlers((FileParticipant(path).handlers(),))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    set_up_logging()
    asyncio.run(_serve(sys.argv[1], Path(sys.argv[2])))
