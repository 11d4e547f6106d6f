"""The end of a lease deletes the keys that were ever put under it, whoever holds them now (R6, history 27)."""

from tests.simulation.etcd import Etcd
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.world import World


class DeletingEtcd(Etcd):
    def revoke(self, lease: int) -> None:
        held = self.leases.pop(lease, None)
        for key in held.keys if held else ():
            self.delete(key)


def _exchange(world: World) -> None:
    world.etcd.__class__ = DeletingEtcd


MUTATION = Mutation(
    "R6: promotion before the lease ends needs the lease revoked by its id; a key is never deleted by name",
    lambda: Parts(prepare=_exchange),
    ("history_27_live_lease_dead_primary/old lease revoked",),
)
