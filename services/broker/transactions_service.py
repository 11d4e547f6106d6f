"""The Transactions service: outcomes, for whoever holds no session stream (DESIGN T5).

Law: only the primary of the set that the id names answers; every other broker forwards once, and what was forwarded is not
forwarded again.
"""

import grpc

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SetName, TransactionKey, parse_transaction_id
from lockstep.runtime.rpc import service, unary
from lockstep.wire.v1 import transactions_pb2 as pb
from services.broker.forwarding import Forwarding
from services.broker.set_queries import SetQueries


class TransactionsService:
    """Lives as long as the process; hosted by its gRPC server."""

    def __init__(self, queries: SetQueries, forwarding: Forwarding) -> None:
        self._queries = queries
        self._forwarding = forwarding

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""
        return service("Transactions", {"GetOutcome": unary(pb.GetOutcomeRequest, self._get_outcome)})

    async def _get_outcome(self, request: pb.GetOutcomeRequest) -> pb.GetOutcomeResponse:
        set_name, key = _parse(request.transaction_id)
        if not self._forwarding.is_here(set_name):
            forwarded = pb.GetOutcomeRequest()
            forwarded.CopyFrom(request)
            forwarded.is_forwarded = True
            return await self._forwarding.to_primary(
                set_name,
                "Transactions/GetOutcome",
                forwarded,
                pb.GetOutcomeResponse,
                is_forwarded=request.is_forwarded,
                is_read=not request.fence,
            )
        answer = await self._queries.outcome(set_name, key, request.fence)
        return pb.GetOutcomeResponse(
            resource_set=set_name,
            epoch=answer.epoch,
            commit_index=answer.commit_index,
            transaction_id=request.transaction_id,
            state=pb.OutcomeState.ValueType(answer.state),
            reason=answer.reason,
        )


def _parse(transaction_id: str) -> tuple[SetName, TransactionKey]:
    try:
        return parse_transaction_id(transaction_id)
    except ValueError as error:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, str(error), transaction=transaction_id[:80]) from error
