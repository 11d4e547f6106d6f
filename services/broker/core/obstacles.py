"""What stands against stopping a broker: of one resource set, what would be less than it has to be (DESIGN R3, R4, T2).

Law: whoever stops leaves at least `min_in_sync` others in sync that run, or all others where a set has not so many; and never
takes the only memory of a prepared branch with it. A broker that is not in sync holds nothing that another lacks.
"""

from collections.abc import Collection

from lockstep.core.cluster_map import SetMap
from lockstep.core.ids import BrokerId


def obstacle(set_map: SetMap, broker: BrokerId, whole: Collection[BrokerId], prepared: int) -> str:
    """Why `broker` should not stop yet, as far as this set goes, in words; "": it may.

    `whole`: brokers that run and are in sync with their memory; `prepared`: branches that this broker's replica has prepared.
    """
    if set_map.member(broker) is None:
        return ""
    others = [one for one in set_map.brokers if one != broker]
    staying = [one for one in others if one in whole]
    needed = min(set_map.min_in_sync, len(others))
    if len(staying) < needed:
        return f"{len(staying)} others are in sync, and {needed} have to be"
    if prepared and not staying:
        return f"nobody else has its {prepared} prepared transactions"
    return ""
