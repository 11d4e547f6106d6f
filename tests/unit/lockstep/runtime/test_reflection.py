"""Reflection: every service tells what it hosts, and the types of its messages can be found."""

import asyncio
import re
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2 as pb
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from lockstep.runtime.channels import make_server
from lockstep.runtime.health import Health
from lockstep.runtime.reflection import STABLE_NAME, add_services
from lockstep.runtime.rpc import service
from lockstep.wire.v1 import store_pb2

SERVICES = Path(__file__).parents[4] / "services"


async def test_services_and_their_messages_are_told() -> None:

    server = make_server()
    add_services(server, (service("Store", {}),), Health())
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
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert methods == [method.name for method in store_pb2.DESCRIPTOR.services_by_name["Store"].methods]


async def test_version_1_says_what_version_1alpha_says() -> None:
    """Newer tools ask for that alone; to their bytes both are the same."""
    server = make_server()
    add_services(server, (service("Store", {}),), Health())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    asked = [
        pb.ServerReflectionRequest(list_services=""),
        pb.ServerReflectionRequest(file_containing_symbol="lockstep.wire.v1.Store"),
        pb.ServerReflectionRequest(file_containing_symbol=STABLE_NAME),
    ]
    answers: dict[str, list[bytes]] = {}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for version in ("v1", "v1alpha"):
            ask: Any = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                request_serializer=pb.ServerReflectionRequest.SerializeToString,
            )
            answers[version] = [answer async for answer in ask(iter(asked))]
    await server.stop(None)
    assert answers["v1"] == answers["v1alpha"]
    files = pb.ServerReflectionResponse.FromString(answers["v1"][2]).file_descriptor_response
    described = FileDescriptorProto.FromString(files.file_descriptor_proto[0])
    assert described.package == "grpc.reflection.v1"
    assert described.service[0].method[0].input_type == ".grpc.reflection.v1.ServerReflectionRequest"


def test_every_server_hosts_health_and_what_it_hosts_can_be_found() -> None:
    servers = [path for path in SERVICES.rglob("*.py") if "make_server()" in path.read_text()]
    assert {path.parent.name for path in servers} == {
        *("backup", "broker", "coordinator", "postgres_participant", "proxy", "store"),
    }
    for path in servers:
        text = path.read_text()
        assert re.search(r"\badd_services\(", text) and "Health(" in text, path
        assert "add_generic_rpc_handlers" not in text, path
