"""Commits that did not end everywhere as decided: operators or databases ended branches by themselves (DESIGN T4).

Law: a commit returns only where everything happened, whoever did it; `Rejected` is raised only where nothing did. Where a part
happened, or a participant cannot say, somebody has to look: that is `InDoubt`, for what is done again may be done twice.
"""

from collections.abc import Sequence

from lockstep.client.outcome import Hazard, Outcome, OutcomeState
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.xa import XaStatus


class HeuristicallyRolledBack(Rejected):
    """Commit was decided, and all participants had been rolled back by somebody else: it did not happen."""

    heuristic = XaStatus.HEURRB

    def __init__(self, code: ErrorCode, message: str, **details: object) -> None:
        super().__init__(code, message, **details)
        self.hazards: tuple[Hazard, ...] = ()


class HeuristicHazard(InDoubt):
    """It happened in a part of its participants, or one cannot say. `heuristic`: which of both, HEURMIX or HEURHAZ; or HEURCOM,
    where rollback was decided and all had been committed."""

    def __init__(self, code: ErrorCode, message: str, **details: object) -> None:
        super().__init__(code, message, **details)
        self.heuristic = XaStatus.HEURHAZ
        self.hazards: tuple[Hazard, ...] = ()
        """Who ended how, as far as it is known."""


def check_committed(outcome: Outcome, pending: Sequence[str] = ()) -> None:
    """Returns if all of it happened. `pending`: participants that are still being told what was decided.

    Raises `Rejected` if nothing did, `HeuristicHazard` if a part did or nobody knows; `InDoubt` for an outcome that is none.
    """
    name, heuristic = outcome.transaction_id, outcome.heuristic
    match outcome.state:
        case OutcomeState.COMMITTED | OutcomeState.HEURISTICALLY_COMMITTED:
            if heuristic in (XaStatus.OK, XaStatus.HEURCOM):
                return
            if heuristic is XaStatus.HEURRB and not pending:
                raise _rolled_back_by_others(outcome)
        case OutcomeState.HEURISTICALLY_ROLLED_BACK:
            raise _rolled_back_by_others(outcome)
        case OutcomeState.ROLLED_BACK:
            if heuristic in (XaStatus.OK, XaStatus.HEURRB):
                raise Rejected(
                    ErrorCode.ROLLED_BACK, f"transaction {name} was rolled back", transaction_id=name
                )
        case _:
            raise _no_outcome(outcome)
    raise _hazard(outcome)


def check_rolled_back(outcome: Outcome, pending: Sequence[str] = ()) -> None:
    """Returns if nothing of it has happened. `pending`: as in `check_committed`, for what was decided.

    Raises `Rejected` if all of it has, `HeuristicHazard` if a part did or nobody knows; `InDoubt` for an outcome that is none.
    """
    name, heuristic = outcome.transaction_id, outcome.heuristic
    match outcome.state:
        case OutcomeState.ROLLED_BACK | OutcomeState.HEURISTICALLY_ROLLED_BACK:
            if heuristic in (XaStatus.OK, XaStatus.HEURRB):
                return
        case OutcomeState.COMMITTED | OutcomeState.HEURISTICALLY_COMMITTED:
            if heuristic is XaStatus.HEURRB and not pending:
                return
            if heuristic in (XaStatus.OK, XaStatus.HEURCOM):
                raise Rejected(
                    ErrorCode.TRANSACTION_FINISHED, f"transaction {name} is committed", transaction_id=name
                )
        case _:
            raise _no_outcome(outcome)
    raise _hazard(outcome)


def _no_outcome(outcome: Outcome) -> InDoubt:
    name = outcome.transaction_id
    text = f"the outcome of {name} is {outcome.state.name.lower()}"
    return InDoubt(ErrorCode.UNAVAILABLE, text, transaction_id=name)


def _hazard(outcome: Outcome) -> HeuristicHazard:
    name, heuristic = outcome.transaction_id, outcome.heuristic
    decided = outcome.state.name.lower().replace("_", " ")
    text = f"transaction {name} was {decided}, but not everywhere ({heuristic.name}): {_listed(outcome)}"
    hazard = HeuristicHazard(
        ErrorCode.ILLEGAL_STATE,
        text,
        transaction_id=name,
        heuristic=int(heuristic),
        hazards=[[one.participant, one.ended] for one in outcome.hazards],
    )
    hazard.heuristic, hazard.hazards = heuristic, outcome.hazards
    return hazard


def _rolled_back_by_others(outcome: Outcome) -> HeuristicallyRolledBack:
    name = outcome.transaction_id
    text = f"transaction {name} was rolled back by somebody else than its coordinator: {_listed(outcome)}"
    error = HeuristicallyRolledBack(ErrorCode.ROLLED_BACK, text, transaction_id=name)
    error.hazards = outcome.hazards
    return error


def _listed(outcome: Outcome) -> str:
    return ", ".join(f"{one.participant} {one.ended}" for one in outcome.hazards) or "nobody said more"
