"""Where a new group begins: the lowest closed cut at or above its floors (DESIGN 7).

Law: of a transaction of our coordinator that has ended at or below the cut in one set, everything has. What a set has forgotten
lies at or below its floor, for the log shows all that has committed behind that.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lockstep.core.branch_names import GlobalId
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.server_messages import BranchEnd
from services.broker.core.events.planning import JointCommit, Offset


class BranchStands(NamedTuple):
    """How a transaction's branches in one set stand, and the epoch of the record that ended the last of them."""

    end: BranchEnd
    epoch: Epoch


Stands = Mapping[GlobalId, Mapping[SetName, BranchStands]]
"""Of each transaction, in all sets."""
Commits = Mapping[GlobalId, Mapping[SetName, Sequence[JointCommit]]]
"""Behind the floors, as the logs show them: absent: none."""
_FOREVER = 1 << 62
_NOWHERE = Offset(LogIndex(0), Epoch(0))


def perhaps_halves(stands: Stands) -> list[GlobalId]:
    """Transactions that are prepared in a set, and as old as others whose outcomes are forgotten, there or in another one: the
    decision log knows whether anything of them can have been committed.
    """
    return [
        global_id
        for global_id, branches in stands.items()
        if any(stand.end.is_prepared for stand in branches.values())
        and any(stand.end.may_be_forgotten for stand in branches.values())
    ]


def first_cut(
    floors: Mapping[SetName, Offset], stands: Stands, commits: Commits | None = None
) -> dict[SetName, Offset] | None:
    """None while a transaction that lies partly below the cut is still to end.

    `stands`: of every transaction of our coordinator that is prepared in a set, or has ended behind a floor.
    """
    cut = dict(floors)
    spans = [_spans(branches, (commits or {}).get(global_id, {})) for global_id, branches in stands.items()]
    is_changed = True
    while is_changed:
        is_changed = False
        for found in spans:
            if not any(span.first <= cut[name].index for name, span in found.items()):
                continue
            for name, span in found.items():
                if span.is_prepared:
                    return None
                if span.last.index > cut[name].index:
                    cut[name], is_changed = span.last, True
    return cut


class _Span(NamedTuple):
    """The records that have ended a transaction's branches in one set."""

    first: int
    """0: one that is forgotten; _FOREVER: there is none."""
    last: Offset
    is_prepared: bool


def _spans(
    branches: Mapping[SetName, BranchStands], commits: Mapping[SetName, Sequence[JointCommit]]
) -> dict[SetName, _Span]:
    # As in plans, what is forgotten counts only where the transaction says its sets.
    named = next(
        (one.resource_sets for joints in commits.values() for one in joints if one.resource_sets), ()
    )
    return {
        name: _span(stand, commits.get(name, ()), named.count(name), bool(commits))
        for name, stand in branches.items()
    }


def _span(stand: BranchStands, commits: Iterable[JointCommit], many: int, is_committed: bool) -> _Span:
    """`many`: branches here, as the transaction says; `is_committed`: it has, in some set, so that none was left out."""
    end = stand.end
    offsets = [Offset(joint.index, joint.before.epoch) for joint in commits]
    if end.index:
        offsets.append(Offset(end.index, stand.epoch))
    last = max(offsets, key=lambda offset: offset.index, default=_NOWHERE)
    indexes = {offset.index for offset in offsets} | ({end.first_index} if end.first_index else set())
    is_forgotten = is_committed and len(indexes) < many and (end.may_be_forgotten or end.forgotten_up_to > 0)
    return _Span(0 if is_forgotten else min(indexes, default=_FOREVER), last, end.is_prepared)
