"""A cluster whose stores lie on file systems that can lose their power (`power_loss_fs.py`). A machine: broker, store, disk.

Law: at a power loss the disk stops, then the processes of the machine die, then what was not synced is forgotten; so nothing that
was lost was ever spoken of. etcd is elsewhere.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from lockstep.runtime.local_cluster import LocalCluster
from lockstep.runtime.supervisor import ChildProcess
from tests.integration.cluster import SETS, Deployment
from tests.integration.power_loss_fs import PowerLossFs
from tests.integration.volatile_disk import Loss, total

BROKERS = ("B1", "B2", "B3")
SEGMENT_BYTES = 256 << 10
"""Small: segments are created, consolidated and dropped while the tests run."""
RESERVE_BYTES = 8 << 20
SYNC_SECONDS = 0.005


class PowerLossCluster(LocalCluster):
    """`disks` must be mounted while it runs. Sets stay where a test has brought them."""

    def __init__(self, directory: Path, disks: dict[str, PowerLossFs]) -> None:
        super().__init__(
            directory, brokers=len(disks), first_port=0, broker_arguments=("--give-back-seconds", "0")
        )
        self.disks = disks
        self.losses: list[Loss] = []

    def _store(self, name: str, address: str) -> ChildProcess:
        command = (
            *(sys.executable, "-m", "services.store", "--listen", address),
            *("--data", str(self.disks[name].mountpoint / "store")),
            *("--segment-bytes", str(SEGMENT_BYTES), "--reserve-bytes", str(RESERVE_BYTES)),
        )
        return ChildProcess(f"store of {name}", command, self.directory / name / "store.log")

    async def use_spinning_disks(self, names: Iterable[str] = BROKERS) -> None:
        """A sync takes a while, as on a real disk, so that there is something not yet synced at any moment."""
        for name in names:
            await self.disks[name].command("slow", write=0.0, sync=SYNC_SECONDS)

    async def lose_power(self, names: Iterable[str], seed: int) -> Loss:
        """Of some machines, at the same moment. Every third seed keeps nothing that was not synced."""
        names = list(names)
        await asyncio.gather(*(self.disks[name].freeze() for name in names))
        children = [
            child for name in names for child in (self.brokers[name].store, self.brokers[name].broker)
        ]
        kills = [asyncio.create_task(child.kill()) for child in children]
        await asyncio.sleep(0)  # the signals are sent; a store that waits for its disk dies when that answers
        losses = await asyncio.gather(
            *(
                self.disks[name].lose_power(10 * seed + place, keeps_nothing=seed % 3 == 0)
                for place, name in enumerate(names)
            )
        )
        await asyncio.gather(*kills)
        loss = total(losses)
        self.losses.append(loss)
        return loss

    async def give_power(self, names: Iterable[str]) -> None:
        names = list(names)
        await asyncio.gather(*(self.disks[name].mount() for name in names))
        await self.use_spinning_disks(names)
        await asyncio.gather(*(self.start_store(name) for name in names))
        await asyncio.gather(*(self.start_broker(name) for name in names))


@contextlib.asynccontextmanager
async def deployed(directory: Path) -> AsyncIterator[tuple[Deployment, PowerLossCluster]]:
    """Its sets are served and in sync."""
    async with contextlib.AsyncExitStack() as stack:
        disks = {
            name: await stack.enter_async_context(PowerLossFs(directory / "disks" / name)) for name in BROKERS
        }
        cluster = PowerLossCluster(directory / "cluster", disks)
        try:
            await cluster.start()
            deployment = Deployment(cluster)
            async with deployment.client() as client:
                for name, members in SETS.items():
                    await client.administration.create_set(name, members)
            await deployment.until_in_sync(3)
            yield deployment, cluster
        finally:
            for disk in disks.values():
                with contextlib.suppress(OSError, AssertionError):
                    await disk.command("heal")
            await cluster.stop(1.0)
