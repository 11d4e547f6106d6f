"""Reflection: every service tells what it hosts, and the types of its messages can be found."""

import asyncio
import re
from pathlib import Path

import grpc.aio
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from lockstep.runtime.channels import make_server
from lockstep.runtime.health import Health
from lockstep.runtime.reflection import add_services
from lockstep.runtime.rpc import service
from lockstep.wire.v1 import store_pb2

SERVICES = Path(__file__).parents[4] / "services"


async def test_services_and_their_messages_are_told() -> None:

    server = make_server()
    add_services(server, (service("Store", {}), Health().handlers()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    def ask() -> tuple[set[str], list[str]]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            found = DescriptorPool(database).FindServiceByName("lockstep.wire.v1.Store")
            return set(database.get_services()), [method.name for method in found.methods]

    try:
        names, methods = await asyncio.to_thread(ask)
    finally:
        await server.stop(None)
    assert names == {
        "lockstep.wire.v1.Store",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert methods == [method.name for method in store_pb2.DESCRIPTOR.services_by_name["Store"].methods]


def test_every_server_hosts_health_and_what_it_hosts_can_be_found() -> None:
    servers = [path for path in SERVICES.rglob("*.py") if "make_server()" in path.read_text()]
    assert {path.parent.name for path in servers} == {
        *("backup", "broker", "coordinator", "postgres_participant", "proxy", "store"),
    }
    for path in servers:
        text = path.read_text()
        assert re.search(r"\badd_services\(", text) and "Health(" in text, path
        assert "add_generic_rpc_handlers" not in text, path
