"""A broker that is asked for the outcome of a prepared branch answers the decision when there is one; no coordinator runs."""

import secrets
import time
from pathlib import Path

from lockstep.client.client import connect
from lockstep.client.outcome import OutcomeState
from lockstep.core.branch_names import (
    RANDOM_BYTES,
    ParticipantName,
    branch_xid,
    generation_tag,
    new_global_id,
)
from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import DecisionKeys, ParticipantsEntry, Verdict
from lockstep.core.ids import Incarnation
from lockstep.core.xa import XaStatus
from lockstep.runtime.etcd import EtcdClient, Put
from tests.integration.cluster import deployed

CLUSTER = "local"
keys = DecisionKeys(CLUSTER)


async def test_the_answer_of_a_prepared_branch_is_the_decision(tmp_path: Path) -> None:
    async with deployed(tmp_path, sets={"east": ["B1"]}, brokers=1) as deployment:
        assert deployment.cluster.etcd is not None
        async with (
            EtcdClient(deployment.cluster.etcd.endpoint) as etcd,
            await connect(deployment.addresses) as client,
            client.session() as session,
        ):
            generation = await etcd.get(Keys(CLUSTER).generation)
            assert generation is not None
            tag = generation_tag(generation.value.decode())
            await session.declare_queue("q", set_name="east")
            manager = await session.resource_manager("east")
            await manager.select()
            for verdict, state in (
                (Verdict.COMMIT, OutcomeState.COMMITTED),
                (Verdict.ABORT, OutcomeState.ROLLED_BACK),
            ):
                global_id = new_global_id(time.time_ns() // 1_000_000, secrets.token_bytes(RANDOM_BYTES))
                names = (ParticipantName("set:east"), ParticipantName("set:west"))
                entry = ParticipantsEntry(names, tag, Incarnation("gone"), 0)
                await etcd.transact([], [Put(keys.participants(global_id), entry.encode())])
                xid = branch_xid(global_id, 0, tag)
                branch = await manager.start(xid)
                await branch.publish("q", [verdict.encode()])
                assert await manager.end(xid) is XaStatus.OK
                assert await manager.prepare(xid) is XaStatus.OK
                (described,) = await manager.recover()
                name = f"east/{described.transaction[0]}.{described.transaction[1]}"
                for fence in (False, True):
                    outcome = await client.get_outcome(name, fence=fence)
                    assert outcome.state is OutcomeState.PREPARED, "undecided"
                await etcd.transact([], [Put(keys.decision(global_id), verdict.encode())])
                assert (await client.get_outcome(name)).state is state
                assert await manager.recover() == [], "it is done, not only told"
            assert [message.body async for message in session.browse("q")] == [b"commit"]
