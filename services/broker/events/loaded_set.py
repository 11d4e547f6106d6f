"""What this broker has in memory of a resource set, in whichever role."""

from typing import NamedTuple

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.set_state import SetState
from lockstep.runtime.driver import Driver
from services.broker.core.replica import Replica


class LoadedSet(NamedTuple):
    """At one moment."""

    state: SetState
    """It has applied at least what is committed here."""
    commit_index: LogIndex
    """As far as it is known and applied here."""
    epoch: Epoch


def loaded_set(driver: Driver, set_name: SetName) -> LoadedSet:
    """Raises `Rejected` UNAVAILABLE while this broker has no memory of the set."""
    core = driver.core(set_name)
    if isinstance(core, Replica):
        if core.primary is not None:
            return LoadedSet(core.primary.context.state, core.primary.commit_index, core.primary.epoch)
        if core.backup is not None and core.backup.copy is not None:
            copy = core.backup.copy
            commit_index = min(copy.commit_index, copy.state.applied)
            return LoadedSet(copy.state, commit_index, core.backup.epoch)
    raise Rejected(ErrorCode.UNAVAILABLE, f"no replica of {set_name} is loaded here", set_name=set_name)
