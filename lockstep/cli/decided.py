"""What a coordinator knows of distributed transactions, as `lockstep tx` shows it: what is not over, and what ended mixed."""

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from lockstep.client import Client
from lockstep.core.branch_names import GLOBAL_ID_BYTES
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.xa import XaStatus
from lockstep.wire.v1 import coordinator_pb2 as pb

CALL_SECONDS = 5.0
_STATES = {
    int(number): name.removeprefix("DISTRIBUTED_STATE_").lower().replace("_", " ")
    for name, number in pb.DistributedState.items()
}
LATE_MS = 60_000
"""A transaction that is not over since: what is younger ends by itself, as coordinators' warnings have it (`in_doubt_ms`)."""
_HEURISTIC: dict[int, str] = {
    XaStatus.HEURHAZ: "heuristic hazard",
    XaStatus.HEURCOM: "heuristically committed",
    XaStatus.HEURRB: "heuristically rolled back",
    XaStatus.HEURMIX: "heuristic mixed",
}


@dataclass(slots=True)
class Decided:
    """One answer of a coordinator, by global id; nothing, if the cluster has none."""

    transactions: dict[bytes, pb.ListDistributedResponse.Transaction] = field(default_factory=dict)
    heuristics: dict[bytes, pb.ListDistributedResponse.Heuristic] = field(default_factory=dict)
    silence: str = ""
    """Why no coordinator has answered; "": one has, or there is none."""

    def decision(self, global_id: bytes) -> str:
        """What was decided, in words; "": a coordinator knows nothing."""
        entry = self.transactions.get(global_id) or self.heuristics.get(global_id)
        return state_name(entry.state) if entry is not None else ""

    def without_branches(
        self, seen: Set[bytes], age_ms_min: int
    ) -> list[pb.ListDistributedResponse.Transaction]:
        """Those that are not over and have no branch in a set, so that no set shows them: somebody else is waited for. `seen`:
        those of which there is a branch; `age_ms_min`: since their begin.
        """
        return [
            one
            for global_id, one in self.transactions.items()
            if global_id not in seen and one.age_ms >= age_ms_min
        ]

    def check(self) -> None:
        """Raises `Rejected` (UNAVAILABLE) where no coordinator has answered. What is known without that is shown before."""
        if self.silence:
            raise Rejected(ErrorCode.UNAVAILABLE, self.silence)


async def decided(client: Client) -> Decided:
    if not await client.coordinators.are_known():
        return Decided()
    found, token = Decided(), b""
    while True:
        request = pb.ListDistributedRequest(page_token=token)
        try:
            page = await client.coordinators.call("List", request, pb.ListDistributedResponse(), CALL_SECONDS)
        except LockstepError as error:
            return Decided(silence=error.message)
        found.transactions.update({one.transaction_id: one for one in page.transactions})
        found.heuristics.update({one.transaction_id: one for one in page.heuristics})
        token = page.next_page_token
        if not token:
            return found


async def forget(client: Client, global_id: bytes) -> None:
    """Raises `Rejected` NOT_FOUND where nothing is kept."""
    request = pb.ForgetDistributedRequest(transaction_id=global_id)
    await client.coordinators.call("Forget", request, pb.ForgetDistributedResponse(), CALL_SECONDS)


async def give_up(client: Client, global_id: bytes, participant: str) -> str:
    """Every coordinator that ends the transaction tells this participant no more; returns what was decided, in a word. Raises
    what they say where none does; and where one did not answer, for it may tell on: that is to be repeated.
    """
    request = pb.GiveUpParticipantRequest(transaction_id=global_id, participant=participant)
    answers = await client.coordinators.call_each(
        "GiveUp", request, pb.GiveUpParticipantResponse, CALL_SECONDS
    )
    states = [one.state for one in answers.values() if not isinstance(one, LockstepError)]
    errors = [one for one in answers.values() if isinstance(one, LockstepError)]
    silent = [error for error in errors if isinstance(error, InDoubt) or error.code is ErrorCode.UNAVAILABLE]
    refused = [error for error in errors if error.code is not ErrorCode.NOT_FOUND]
    if silent or (errors and not states):
        raise (silent or refused or errors)[0]
    return state_name(states[0])


def unended_as_json(one: pb.ListDistributedResponse.Transaction) -> dict[str, Any]:
    return {
        "xid": "",
        "set": "",
        "state": one.phase or "in the log",
        "age_seconds": round(one.age_ms / 1000, 1),
        "distributed_transaction": one.transaction_id.hex(),
        "decision": state_name(one.state),
        "participants": participants_as_json(one),
    }


def participants_as_json(one: pb.ListDistributedResponse.Transaction) -> list[dict[str, str]]:
    return [
        {"participant": each.participant, "vote": each.vote, "ended": each.ended} for each in one.branches
    ]


def heuristic_as_json(one: pb.ListDistributedResponse.Heuristic) -> dict[str, Any]:
    return {
        "xid": "",
        "set": "",
        "state": _HEURISTIC.get(one.heuristic, "heuristic"),
        "age_seconds": round(one.age_ms / 1000, 1),
        "distributed_transaction": one.transaction_id.hex(),
        "decision": state_name(one.state),
        "participants": [
            {"participant": hazard.participant, "vote": "", "ended": hazard.ended} for hazard in one.hazards
        ],
    }


def state_name(state: "pb.DistributedState.ValueType") -> str:
    """A word; of a state that is not known here its number."""
    return _STATES.get(state, str(state))


def parse_global_id(text: str) -> bytes | None:
    """A distributed transaction's id; None: it is none, so perhaps an xid."""
    try:
        global_id = bytes.fromhex(text)
    except ValueError:
        return None
    return global_id if len(global_id) == GLOBAL_ID_BYTES else None
