"""What a world is built of. A mutation is a world with one part exchanged, nothing else (tests/simulation/mutations)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.roll_call import RollCall
from lockstep.runtime.etcd_values import Compare, ValueEquals
from services.broker.core.lease_keeper import LeaseKeeper, LeaseSettings
from services.broker.core.replica import Replica
from services.broker.core.settings import ReplicaSettings
from services.broker.core.witness import WitnessKeeper
from services.coordinator.core.coordinator import Coordinator
from services.coordinator.core.settings import CoordinatorLimits
from services.store.core.limits import StoreLimits
from services.store.core.store_core import StoreCore
from tests.simulation.disk import VirtualDisk

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(slots=True)
class Parts:
    """Factories of the real cores, and the checks that the drivers make."""

    make_replica: Callable[[SetName, BrokerId, Incarnation, ReplicaSettings], Replica] = Replica
    make_store_core: Callable[[StoreLimits], StoreCore] = StoreCore
    make_lease_keeper: Callable[[LeaseSettings], LeaseKeeper] = LeaseKeeper
    make_witness: Callable[[BrokerId, Incarnation], WitnessKeeper] = WitnessKeeper
    make_roll_call: Callable[[str], RollCall] = RollCall
    make_coordinator: Callable[[Incarnation, CoordinatorLimits], Coordinator] = Coordinator
    make_disk: Callable[..., VirtualDisk] = VirtualDisk
    is_lease_checked: bool = True
    """The driver drops what it would tell a client after the lease's end (DESIGN R6)."""
    is_lease_key_compared: bool = True
    """A promotion's transaction compares that the lease key is absent (DESIGN R5)."""
    is_mark_compared: bool = True
    """What may be done only in an etcd that was not set back compares that it does not say so, in its transaction (DESIGN R1)."""
    are_values_compared: bool = True
    """What is written to etcd in the place of what was read there compares that by value, too (DESIGN R1)."""
    prepare: Callable[["World"], None] | None = None
    """Called with the world before anything happens in it."""

    def compared(self, compares: Sequence[Compare]) -> Sequence[Compare]:
        """What of these compares etcd is asked for."""
        return [one for one in compares if self.are_values_compared or not isinstance(one, ValueEquals)]
