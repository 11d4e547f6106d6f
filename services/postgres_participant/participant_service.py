"""The Participant service over one database (DESIGN T4).

Law: the client prepares its transaction itself, under the gid of its branch; a vote is only a look whether that was done. What
the database does not answer is an error, never a vote.
"""

import grpc

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.postgres_gid import gid_of, xid_of
from lockstep.runtime.rpc import service, unary
from lockstep.runtime.xid_codec import decode_xid, encode_xid
from lockstep.wire.v1 import participant_pb2 as pb
from services.postgres_participant.database import Database
from services.postgres_participant.held_branch import BranchFacts


class ParticipantService:
    """Lives as long as the process; hosted by its gRPC server."""

    def __init__(self, name: str, database: Database) -> None:
        self._name = name
        self._database = database

    def handlers(self) -> grpc.GenericRpcHandler:
        return service(
            "Participant",
            {
                "Prepare": unary(pb.ParticipantPrepareRequest, self._prepare),
                "Commit": unary(pb.ParticipantCommitRequest, self._commit),
                "Rollback": unary(pb.ParticipantRollbackRequest, self._rollback),
                "Recover": unary(pb.ParticipantRecoverRequest, self._recover),
            },
        )

    async def _prepare(self, request: pb.ParticipantPrepareRequest) -> pb.ParticipantPrepareResponse:
        gid = gid_of(decode_xid(request.xid))
        if request.name != self._name:
            # Nothing was ever prepared under that name: the transaction can be rolled back at once.
            return pb.ParticipantPrepareResponse(
                vote=pb.PARTICIPANT_VOTE_NO, reason=f"this is {self._name}, not {request.name[:80]}"
            )
        facts = await self._database.facts(gid)
        if facts.foreign_owner:
            # Once it was decided it could not be ended, and the transaction would be under way for ever.
            return pb.ParticipantPrepareResponse(
                vote=pb.PARTICIPANT_VOTE_NO,
                reason=f"prepared by the user {facts.foreign_owner}: only that one or a superuser may end it",
            )
        if facts.is_repeated:
            # It is not what the transaction is about, and the orphan watch rolls it back.
            return pb.ParticipantPrepareResponse(
                vote=pb.PARTICIPANT_VOTE_COMMITTED, reason="it has ended, and was prepared again"
            )
        if facts.is_late:
            # It may have ended before, and nobody knows that any more. The orphan watch rolls it back.
            return pb.ParticipantPrepareResponse(
                vote=pb.PARTICIPANT_VOTE_NO, reason="prepared long after its transaction was begun"
            )
        if facts.is_prepared:
            return pb.ParticipantPrepareResponse(vote=pb.PARTICIPANT_VOTE_OK)
        if facts.is_commit is None:
            return pb.ParticipantPrepareResponse(
                vote=pb.PARTICIPANT_VOTE_UNKNOWN_BRANCH,
                reason="its client has not prepared it in this database",
            )
        vote = pb.PARTICIPANT_VOTE_COMMITTED if facts.is_commit else pb.PARTICIPANT_VOTE_NO
        return pb.ParticipantPrepareResponse(vote=vote, reason="it has ended")

    async def _commit(self, request: pb.ParticipantCommitRequest) -> pb.ParticipantCommitResponse:
        gid = gid_of(decode_xid(request.xid))
        if request.name != self._name:
            # Acknowledging would lose the commit of a participant that was given another name.
            raise Rejected(ErrorCode.NOT_FOUND, f"this is {self._name}, not {request.name[:80]}")
        return pb.ParticipantCommitResponse(end=_end_of(await self._database.end(gid, is_commit=True)))

    async def _rollback(self, request: pb.ParticipantRollbackRequest) -> pb.ParticipantRollbackResponse:
        gid = gid_of(decode_xid(request.xid))
        if request.name != self._name:
            return pb.ParticipantRollbackResponse(end=pb.PARTICIPANT_END_UNKNOWN_BRANCH)
        return pb.ParticipantRollbackResponse(end=_end_of(await self._database.end(gid, is_commit=False)))

    async def _recover(self, request: pb.ParticipantRecoverRequest) -> pb.ParticipantRecoverResponse:
        if request.name != self._name:
            raise Rejected(ErrorCode.NOT_FOUND, f"this is {self._name}, not {request.name[:80]}")
        response = pb.ParticipantRecoverResponse()
        for branch in await self._database.prepared():
            xid = xid_of(branch.gid)
            if xid is not None:
                response.branches.add(xid=encode_xid(xid), age_ms=max(0, int(branch.age_seconds * 1000)))
        return response


def _end_of(facts: BranchFacts) -> "pb.ParticipantEnd.ValueType":
    if facts.is_prepared:
        raise Rejected(ErrorCode.UNAVAILABLE, "it is still prepared: try again")
    match facts.is_commit, facts.is_heuristic:
        case True, False:
            return pb.PARTICIPANT_END_COMMITTED
        case False, False:
            return pb.PARTICIPANT_END_ROLLED_BACK
        case True, True:
            return pb.PARTICIPANT_END_HEURISTICALLY_COMMITTED
        case False, True:
            return pb.PARTICIPANT_END_HEURISTICALLY_ROLLED_BACK
        case _:
            return pb.PARTICIPANT_END_UNKNOWN_BRANCH
