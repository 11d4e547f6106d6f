"""How transactions over several sets stand in each of them, as their primaries say."""

from collections.abc import Iterable, Mapping

from lockstep.core.branch_names import GlobalId
from lockstep.core.ids import SetName
from services.broker.core.events.first_cut import BranchStands
from services.broker.events.sources import EventSources

ASKED_MAX = 500
"""Transactions in one question to a primary: more would stop its other work for too long."""


async def ask_stands(
    sources: EventSources, names: Iterable[SetName], xids: Mapping[GlobalId, bytes]
) -> dict[GlobalId, dict[SetName, BranchStands]]:
    """Of each transaction, in each of these sets. Raises what the primaries say."""
    found: dict[GlobalId, dict[SetName, BranchStands]] = {global_id: {} for global_id in xids}
    by_xid = list(xids.items())
    for name in names if xids else ():
        for first in range(0, len(by_xid), ASKED_MAX):
            asked = by_xid[first : first + ASKED_MAX]
            stands, _, _ = await sources.stands(name, [xid for _, xid in asked])
            for (global_id, _), stand in zip(asked, stands, strict=True):
                found[global_id][name] = stand
    return found
