"""Which connections a broker has: those that carry the log carry nothing else (DESIGN 3, R3).

What clients have a broker ask another one is given up as they like, and whoever gives up many calls is heard more slowly, with
all that is on that connection. Acknowledgements would be, too, and the backup would be taken for lost.
"""

from lockstep.runtime.etcd import EtcdClient
from services.broker.server import Broker
from services.broker.settings import parse_arguments

ETCD = "127.0.0.1:1"
OTHER = "127.0.0.1:2"


async def test_the_log_has_connections_of_its_own() -> None:
    arguments = ["--id", "B1", "--listen", "127.0.0.1:0", "--store", "unix:/nowhere", "--cluster", "c"]
    settings = parse_arguments([*arguments, "--etcd", ETCD])
    broker = Broker(settings, EtcdClient(ETCD), EtcdClient(ETCD))
    asked = broker._channels.to(OTHER)
    assert broker._subscriber._channels.to(OTHER) is not asked, "acknowledgements"
    assert broker._store._channels.to(settings.store) is not broker._channels.to(settings.store), "frames"
    await broker._replication.close()
    await broker._channels.close()
    await broker._renewals.close()
