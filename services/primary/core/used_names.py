"""Names of branches that cannot begin (any more): our coordinator gives a name once, and what is prepared under it again is
committed again, by a decision that the log keeps for another participant (DESIGN T3, T5).

Law: a name whose end the state knows, or may have forgotten, is refused. What it may have forgotten is told by one number, the
name horizon: a name says when its transaction was begun, and none that was forgotten was begun behind it. Other transaction
managers may use an xid again, and no log of ours ends what they prepare: their names are never refused for their age.
"""

from lockstep.core.branch_names import begun_ms_of, is_ours
from lockstep.core.decision_log import CLOCK_MS
from lockstep.core.ids import LogIndex
from lockstep.core.outcomes import BegunUpTo
from lockstep.core.xid import Xid
from services.primary.core.context import Context


def objection(context: Context, xid: bytes, *, has_ended: bool) -> str:
    """Why no branch of this name may begin; "": it may. `has_ended`: the state knows an outcome of it."""
    if has_ended and is_ours(Xid.decode(xid)):
        # It repeats work that was decided already.
        return "has ended, and our coordinator gives no name twice"
    if may_be_forgotten(context, xid):
        return "was begun when others were whose ends are forgotten here: it may have ended, too"
    return ""


def may_be_forgotten(context: Context, xid: bytes) -> bool:
    """Whether a branch of this name, of which the state knows nothing, may have ended here."""
    return 0 < begun_ms_of(xid) <= horizon_ms(context)


def horizon_ms(context: Context) -> int:
    """Up to when what was forgotten may have been begun, by the clocks of coordinators; 0: nothing was.

    One that lies further ahead than outcomes are kept was recorded by a clock that was far from right, and is not believed:
    nothing new could be begun for as long.
    """
    horizon = context.state.outcomes.name_horizon_ms
    return horizon if horizon <= context.now.wall_ms + context.settings.outcome_retention_ms else 0


def begun_up_to(context: Context, floor: LogIndex) -> BegunUpTo:
    """Of the branches that have ended at or below `floor`."""
    return context.state.outcomes.begun_up_to(floor, _latest_begun_ms(context), _ahead_ms(context))


def is_ahead(context: Context, xid: bytes) -> bool:
    """Whether its transaction was begun later than now, by a clock that is wrong: once forgotten, no horizon would tell of it."""
    return _latest_begun_ms(context) < begun_ms_of(xid) <= _ahead_ms(context)


def horizon_behind_heuristic(context: Context, xid: bytes) -> int:
    """What it will be when the outcome of this branch is."""
    begun_ms = begun_ms_of(xid)
    return max(horizon_ms(context), begun_ms if begun_ms <= _latest_begun_ms(context) else 0)


def _latest_begun_ms(context: Context) -> int:
    """No transaction can have been begun later, by any clock; this broker's may be behind those of its predecessors."""
    return max(context.now.wall_ms, context.state.time_ms) + CLOCK_MS


def _ahead_ms(context: Context) -> int:
    """Names of a later time are no clock's that was meant to be right."""
    return max(context.now.wall_ms, context.state.time_ms) + context.settings.outcome_retention_ms
