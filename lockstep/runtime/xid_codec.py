"""Branch names on the wire.

Law: what is no xid is `Rejected`, whoever sent it.
"""

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.xid import Xid
from lockstep.wire.v1 import coordinator_pb2 as pb

SHOWN_CHARACTERS = 300
"""Of what is no xid: all of one that is only a little too long."""


def encode_xid(xid: Xid) -> pb.BranchXid:
    return pb.BranchXid(format_id=xid.format_id, global_id=xid.global_id, branch_id=xid.branch_id)


def decode_xid(message: pb.BranchXid) -> Xid:
    """Raises `Rejected` (INVALID_ARGUMENT) for ids that are too long, and a format id out of range."""
    xid = Xid(message.format_id, message.global_id, message.branch_id)
    try:
        return xid.check()
    except ValueError as error:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, str(error), xid=str(xid)[:SHOWN_CHARACTERS]) from error
