"""What became of a distributed transaction whose commit no coordinator has answered (DESIGN T5).

Law: its branches in sets are asked first, each with a fence: one that was rolled back, unless an operator did that, had not
been prepared, so no commit was or will be decided; and none can be decided behind a fence. That holds in the history of the
cluster in which it was begun: in another one the set may have lost what it had prepared, and voted for. What is prepared, or has
committed (as one without operations does when it is prepared), follows the decision: coordinators know that. Of one that lies in
a single set no log has it, and that set's word is the last one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from lockstep.client.outcome import Hazard, Outcome, OutcomeState
from lockstep.core.errors import InDoubt, LockstepError
from lockstep.core.ids import Epoch, LogIndex, TransactionKey
from lockstep.core.records import RollbackReason
from lockstep.core.wire_numbers import known
from lockstep.core.xa import XaStatus
from lockstep.wire.v1 import coordinator_pb2 as pb

_STATES = {
    pb.DISTRIBUTED_STATE_NOT_KNOWN: OutcomeState.UNKNOWN,
    pb.DISTRIBUTED_STATE_UNDECIDED: OutcomeState.PREPARED,
    pb.DISTRIBUTED_STATE_COMMITTED: OutcomeState.COMMITTED,
    pb.DISTRIBUTED_STATE_ROLLED_BACK: OutcomeState.ROLLED_BACK,
}
_FINAL = {OutcomeState.COMMITTED, OutcomeState.ROLLED_BACK}
_ENDED = {
    OutcomeState.COMMITTED,
    OutcomeState.HEURISTICALLY_COMMITTED,
    OutcomeState.HEURISTICALLY_ROLLED_BACK,
}
Ask = Callable[[str], Awaitable[Outcome]]
"""Asks for the outcome of a transaction by its name, with a fence."""


def outcome_of(
    transaction_id: str,
    answer: pb.CommitDistributedResponse | pb.RollbackDistributedResponse | pb.GetDistributedOutcomeResponse,
) -> Outcome:
    """What a coordinator has said. A heuristic of a later version is HEURHAZ: somebody has to look."""
    return Outcome(
        transaction_id,
        _STATES.get(answer.state, OutcomeState.OF_LATER_VERSION),
        0,
        Epoch(0),
        LogIndex(0),
        known(XaStatus, answer.heuristic, XaStatus.HEURHAZ),
        tuple([Hazard(one.participant, one.ended) for one in answer.hazards]),
    )


async def resolved(
    ask: Ask,
    transaction_id: str,
    generation: str,
    branches: Mapping[str, TransactionKey],
    is_in_sets_only: bool,
    doubt: InDoubt,
) -> Outcome:
    """The outcome of a transaction by its `transaction_id`, whose commit is in `doubt`. Raises `InDoubt`, which says whom to ask.

    `generation`: the tag of the cluster's, in which it was begun.
    `branches`: those in sets, by the names of their transactions there; `is_in_sets_only`: it has no other participants.
    """
    name = transaction_id
    if is_in_sets_only and len(branches) == 1:
        (name,) = branches
    answers = await asyncio.gather(*(_quietly(ask, one) for one in branches))
    told = [answer for answer in answers if isinstance(answer, Outcome)]
    why = next((answer.message for answer in answers if isinstance(answer, LockstepError)), doubt.message)
    for outcome in told:
        of_many = name == transaction_id
        if of_many and _may_have_lost_it(outcome, generation):
            continue
        if _was_rolled_back(outcome, of_many=of_many) or _was_dropped(outcome, branches):
            return Outcome(
                name, OutcomeState.ROLLED_BACK, outcome.reason, outcome.epoch, outcome.commit_index
            )
    if name != transaction_id:
        if told and told[0].state in _ENDED:
            return told[0]
    elif (
        is_in_sets_only
        and len(told) == len(branches)
        and all(outcome.state is OutcomeState.COMMITTED for outcome in told)
    ):
        return Outcome(name, OutcomeState.COMMITTED, 0, Epoch(0), LogIndex(0))
    else:
        decided = await _quietly(ask, transaction_id)
        if isinstance(decided, Outcome) and decided.state in _FINAL:
            return decided
        if isinstance(decided, LockstepError):
            why = decided.message
    text = f"nobody could tell the outcome of {name}: {why}"
    details = {**doubt.details, "transaction_id": name, "branches": list(branches)}
    raise InDoubt(doubt.code, text, **details) from doubt


async def _quietly(ask: Ask, name: str) -> Outcome | LockstepError:
    try:
        return await ask(name)
    except LockstepError as error:
        return error


def _may_have_lost_it(outcome: Outcome, generation: str) -> bool:
    """Whether data loss was accepted since it was begun: its set may have voted for it, and not know that any more."""
    return bool(outcome.generation) and not outcome.generation.startswith(generation)


def _was_rolled_back(outcome: Outcome, *, of_many: bool) -> bool:
    """Before it was prepared. What an operator rolled back, and another has made forgotten since, tells nothing of the others."""
    return outcome.state is OutcomeState.ROLLED_BACK and not (
        of_many and outcome.reason == RollbackReason.HEURISTIC
    )


def _was_dropped(outcome: Outcome, branches: Mapping[str, TransactionKey]) -> bool:
    """A later epoch whose log never had its begin: it was not, and will not be."""
    return outcome.state is OutcomeState.UNKNOWN and outcome.epoch > branches[outcome.transaction_id][1]
