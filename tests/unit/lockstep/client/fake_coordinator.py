"""A coordinator of one process on a real port, which keeps nothing and agrees to everything."""

import asyncio
from typing import Any

import grpc

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from lockstep.runtime.channels import make_server
from lockstep.runtime.rpc import service, unary
from lockstep.runtime.xid_codec import encode_xid
from lockstep.wire.v1 import coordinator_pb2 as pb


class FakeCoordinator:
    """Commits what it is asked to commit; `asked` has what it heard, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.timeouts_ms: list[int] = []
        """Of the transactions that were begun."""
        self.is_old = False
        """It enlists only one by one."""
        self.enlists_max: int | None = None
        """Further ones are refused."""
        self.silent = ""
        """What is never answered."""
        self.state: int = pb.DISTRIBUTED_STATE_COMMITTED
        """Of every transaction."""
        self.heuristic = XaStatus.OK
        self.hazards: dict[str, str] = {}
        """Participant -> how it ended."""
        self.answers = asyncio.Event()
        """Nothing is answered before this is set."""
        self.answers.set()
        self._server = make_server()
        self._server.add_generic_rpc_handlers([self._handlers()])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def __aenter__(self) -> "FakeCoordinator":
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    def _handlers(self) -> grpc.GenericRpcHandler:
        answers: dict[str, tuple[Any, Any]] = {
            "Begin": (pb.BeginDistributedRequest, pb.BeginDistributedResponse(transaction_id=b"t" * 16)),
            "Enlist": (
                pb.EnlistParticipantRequest,
                pb.EnlistParticipantResponse(xid=encode_xid(Xid(1, b"t", b"0"))),
            ),
            "Close": (pb.CloseDistributedRequest, pb.CloseDistributedResponse()),
            "Commit": (pb.CommitDistributedRequest, pb.CommitDistributedResponse()),
            "Rollback": (pb.RollbackDistributedRequest, pb.RollbackDistributedResponse()),
            "GetOutcome": (pb.GetDistributedOutcomeRequest, pb.GetDistributedOutcomeResponse()),
        }
        return service(
            "Coordinator",
            {
                method: unary(asked, self._answering(method, answer))
                for method, (asked, answer) in answers.items()
            },
        )

    def _answering(self, method: str, answer: Any) -> Any:
        async def answering(request: Any) -> Any:
            self.asked.append(method)
            await self.answers.wait()
            if method == self.silent:
                await asyncio.sleep(60)
            if method == "Begin":
                self.timeouts_ms.append(request.timeout_ms)
            if method == "Begin" and not self.is_old:
                numbers = range(len(request.participants))
                xids = [encode_xid(Xid(1, b"t", b"%d" % number)) for number in numbers]
                return pb.BeginDistributedResponse(transaction_id=b"t" * 16, xids=xids)
            if method == "Enlist" and self.enlists_max is not None:
                self.enlists_max -= 1
                if self.enlists_max < 0:
                    raise Rejected(ErrorCode.ILLEGAL_STATE, "no more")
            if method in ("Commit", "GetOutcome"):
                hazards = [pb.Hazard(participant=name, ended=how) for name, how in self.hazards.items()]
                return type(answer)(state=self.state, heuristic=self.heuristic, hazards=hazards)
            return answer

        return answering
