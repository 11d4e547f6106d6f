"""What processes say to etcd of their leases goes on connections of its own, seen on the wire (DESIGN R6, T4).

Whoever gives up many calls, or asks for much, is heard more slowly with all that is on his connection. Two clients of one process
may share a connection without a word of it in their code.
"""

from collections import defaultdict
from pathlib import Path

from lockstep.client.client import connect
from lockstep.core.cluster_map import Keys
from lockstep.runtime.etcd_process import EtcdProcess
from tests.integration.cluster import deployed
from tests.integration.coordination import until
from tests.integration.cuttable_link import CuttableLink

LEASES = (b"/etcdserverpb.Lease/LeaseKeepAlive", f"{Keys('local').prefix}running/".encode())
"""A renewal, and the key that a broker has under its lease."""
SHARED = "names of queues, or a transaction, are on a connection of a lease"
SETS = {"east": ["B1"], "west": ["B1"]}


class OverheardLink(CuttableLink):
    """Keeps what clients send, by connection."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.said: defaultdict[object, bytearray] = defaultdict(bytearray)

    def overhear(self, connection: object, data: bytes) -> None:
        self.said[connection] += data


async def test_leases_share_no_connection_with_the_work_of_clients(tmp_path: Path) -> None:
    etcd = await EtcdProcess.start(tmp_path / "etcd")
    try:
        async with (
            OverheardLink(etcd.endpoint) as link,
            deployed(
                tmp_path / "cluster", sets=SETS, brokers=1, coordinators=1, etcd_endpoints=link.endpoint
            ) as deployment,
            await connect(deployment.addresses) as client,
            client.session() as session,
        ):
            for name in SETS:
                await session.declare_queue(f"queue-in-{name}", set_name=name)
            async with session.transaction() as transaction:
                for name in SETS:
                    await transaction.publish(f"queue-in-{name}", b"x")
            assert transaction.id is not None
            words = [*(f"queue-in-{name}".encode() for name in SETS), transaction.id.encode()]
            of_clients = [said for said in link.said.values() if any(word in said for word in words)]

            async def of_leases() -> list[bytearray]:
                return [said for said in link.said.values() if any(word in said for word in LEASES)]

            assert len(of_clients) == 2, "names, by a broker; a decision, by a coordinator"
            assert not [said for said in await of_leases() if said in of_clients], SHARED
            await until(
                "a broker's lease, its renewals, a coordinator's", of_leases, lambda found: len(found) == 3
            )
            assert not [said for said in await of_leases() if said in of_clients], SHARED
    finally:
        await etcd.stop()
