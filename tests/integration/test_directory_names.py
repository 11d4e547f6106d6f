"""Names in the cluster's directory, on a real etcd: claimed by one set, given back only by the process that leads it."""

import asyncio

from lockstep.core.cluster_map import Keys
from lockstep.core.effects import ClaimName, ReleaseName
from lockstep.core.ids import Incarnation, SetName
from lockstep.core.inputs import AnyInput, NameClaimed, Verdict
from lockstep.runtime.etcd import EtcdClient, Put
from lockstep.runtime.name_changes import NameChanges

ORDERS, INVOICES = SetName("orders"), SetName("invoices")
LEADER, DEPOSED = Incarnation("leader"), Incarnation("deposed")


async def test_only_the_leading_process_gives_a_name_back(client: EtcdClient, prefix: str) -> None:
    keys = Keys(prefix.strip("/").replace("/", "-"))
    answers: asyncio.Queue[AnyInput] = asyncio.Queue()
    changes = NameChanges(client, keys, answers.put_nowait)

    async def claim(request: int, set_name: SetName) -> NameClaimed:
        changes.perform(ClaimName(set_name, request, "queue", "q", LEADER))
        async with asyncio.timeout(10):
            answer = await answers.get()
        assert isinstance(answer, NameClaimed) and answer.request == request
        return answer

    try:
        for set_name in (ORDERS, INVOICES):
            await client.transact([], [Put(keys.set_lease(set_name), LEADER.encode())])
        assert (await claim(1, ORDERS)).verdict is Verdict.DONE
        refused = await claim(2, INVOICES)
        assert (refused.verdict, refused.owner) == (Verdict.FAILED, ORDERS)
        changes.perform(ReleaseName(ORDERS, "queue", "q", DEPOSED))
        assert (await claim(3, ORDERS)).verdict is Verdict.DONE
        assert (await claim(4, INVOICES)).verdict is Verdict.FAILED
        changes.perform(ReleaseName(ORDERS, "queue", "q", LEADER))
        changes.perform(ReleaseName(ORDERS, "queue", "never claimed", LEADER))
        assert (await claim(5, ORDERS)).verdict is Verdict.DONE
        changes.perform(ReleaseName(ORDERS, "queue", "q", LEADER))
        while (await claim(6, INVOICES)).verdict is Verdict.FAILED:
            await asyncio.sleep(0.05)
    finally:
        await changes.close()
