"""What a failed call to etcd says about its effect.

Law: only a refusal in etcd's own words, known to come before execution, is `EtcdRejected`. Its "request timed out", "leader
changed" and "server stopped" can come after it, and a broken connection says nothing: `EtcdInDoubt`.
"""

import grpc
import grpc.aio

from lockstep.core.errors import ErrorCode
from lockstep.runtime.etcd_values import EtcdInDoubt, EtcdRejected, LeaseGone

_NO_LEADER = "etcdserver: no leader"
_CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: ErrorCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION: ErrorCode.ILLEGAL_STATE,
    grpc.StatusCode.OUT_OF_RANGE: ErrorCode.EXPIRED,
    grpc.StatusCode.NOT_FOUND: ErrorCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: ErrorCode.ALREADY_EXISTS,
    grpc.StatusCode.PERMISSION_DENIED: ErrorCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED: ErrorCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ErrorCode.UNAVAILABLE,
}
_BEFORE_EXECUTION = ("etcdserver: ", "grpc: received message larger than max")
"""How refusals begin that etcd, or the gRPC library inside it, gives to a request. Others may be about the answer."""


def refusal(error: grpc.aio.AioRpcError | grpc.Call, lease_id: int) -> EtcdRejected | None:
    """The definite refusal that this is, or None; `lease_id` is the lease that the call was about, or 0."""
    details = error.details() or ""
    if details == _NO_LEADER:
        return EtcdRejected(ErrorCode.UNAVAILABLE, details)
    code = _CODES.get(error.code())
    if code is None or not details.startswith(_BEFORE_EXECUTION):
        return None
    if lease_id and code is ErrorCode.NOT_FOUND:
        return LeaseGone(lease_id)
    return EtcdRejected(code, details)


def doubt(call: str, address: str, reason: object) -> EtcdInDoubt:
    """A change that was sent to this endpoint, with no answer that says what became of it."""
    return EtcdInDoubt(ErrorCode.UNAVAILABLE, f"no answer to a change: {reason}", call=call, endpoint=address)


def describe(error: grpc.aio.AioRpcError | grpc.Call) -> str:
    """Code and details in one line."""
    return f"{error.code().name}: {error.details()}"
