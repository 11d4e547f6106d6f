"""Limits on what clients give as participants: how many, and how long their names."""

from lockstep.core.branch_names import ParticipantName
from lockstep.core.errors import ErrorCode
from services.coordinator.core.messages import Refusal, RequestId
from services.coordinator.core.settings import CoordinatorLimits


def refusal_of(
    request: RequestId, participants: tuple[ParticipantName, ...], limits: CoordinatorLimits, count: int = 0
) -> Refusal | None:
    """None: they may be. `count`: how many there are in all, if these are not all."""
    if max(count, len(participants)) > limits.participants_max:
        message = f"a transaction has at most {limits.participants_max} participants"
        return Refusal(request, ErrorCode.TOO_LARGE, message, "participants_max")
    if any(not 1 <= len(name.encode()) <= limits.name_bytes_max for name in participants):
        message = f"the name of a participant has 1 to {limits.name_bytes_max} bytes"
        return Refusal(request, ErrorCode.INVALID_ARGUMENT, message)
    return None
