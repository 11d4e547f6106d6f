"""Each role's service as a process of its own: a primary that only leads, and a backup that only follows, are a cluster."""

import sys
from pathlib import Path

import pytest

from lockstep.client.client import connect
from lockstep.core.commands import QueueOptions
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.etcd_process import EtcdProcess
from lockstep.runtime.local_sockets import socket_address
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from lockstep.wire.v1 import cluster_pb2 as pb
from tests.integration.cluster import until

SET = "alone"


async def test_a_primary_and_a_backup_alone_commit_together(tmp_path: Path) -> None:
    etcd = await EtcdProcess.start(tmp_path / "etcd")
    (port,) = choose_ports(1)
    stores = [socket_address(tmp_path / f"{name}.sock") for name in ("S1", "S2")]
    address = f"127.0.0.1:{port}"
    shared = ("--etcd", etcd.endpoint, "--cluster", "alone")
    python = (sys.executable, "-m")
    children = [
        *(
            ChildProcess(
                f"store {name}",
                (*python, "services.store", "--data", str(tmp_path / name), "--listen", store),
                tmp_path / f"{name}.log",
            )
            for name, store in zip(("S1", "S2"), stores, strict=True)
        ),
        ChildProcess(
            "primary",
            (*python, "services.primary", "--id", "P", "--listen", address, "--store", stores[0], *shared),
            tmp_path / "primary.log",
        ),
        ChildProcess(
            "backup",
            (*python, "services.backup", "--id", "B", "--store", stores[1], *shared),
            tmp_path / "backup.log",
        ),
    ]
    store_1, store_2, primary, backup = children
    try:
        for child, store in ((store_1, stores[0]), (store_2, stores[1])):
            await child.start()
            await wait_for_port(child, store)
        await primary.start()
        await wait_for_port(primary, address)
        await backup.start()
        client = await connect(address)
        try:
            await until(
                "the backup is registered",
                client.administration.status,
                lambda status: len(status.view.members) == 2,
            )
            await client.administration.create_set(SET, ["P", "B"], 2)
            await until(
                "both are in sync",
                client.administration.status,
                lambda status: any(len(one.in_sync) == 2 for one in status.view.sets),
            )
            async with client.session() as session:
                await session.declare_queue("q", QueueOptions(), set_name=SET)
                async with session.transaction() as transaction:
                    await transaction.publish("q", [b"a", b"b"])
                status = await client.administration.status()
                replica = status.replica("P", SET)
                assert replica is not None and replica.role == pb.ROLE_PRIMARY
                # A backup alone never stands: the primary goes on.
                with pytest.raises(Rejected) as refused:
                    await client.administration.promote(SET, "B")
                assert refused.value.code is ErrorCode.ILLEGAL_STATE
                # min_in_sync is 2: without the backup nothing completes.
                await backup.kill()
                late = await session.publish_soon("q", b"c")
                await backup.start()
                await late
                assert [message.body async for message in session.browse("q")] == [b"a", b"b", b"c"]
        finally:
            await client.close()
    finally:
        for child in reversed(children):
            await child.stop()
        await etcd.stop()
