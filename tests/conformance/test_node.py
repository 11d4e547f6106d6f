"""A client in another language, made from protos/ alone: the checks of node/checks.js, with gRPC for Node.js. And what tools find
without protos/, by reflection.
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.conformance.amqp.foreign_checks import prepare, sentences
from tests.integration.cluster import Deployment, deployed

pytestmark = pytest.mark.asyncio(loop_scope="module")
FOLDER = Path(__file__).with_name("node")
SOURCE = FOLDER / "checks.js"
PROTOS = Path(__file__).parents[2] / "protos"
PACKAGE = "lockstep.wire.v1."
RUN_SECONDS = 120.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Deployment]:
    sets = {"east": ["B1", "B2"]}
    async with deployed(tmp_path_factory.mktemp("cluster"), brokers=2, coordinators=1, sets=sets) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def found(cluster: Deployment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the checks found: check -> "" or what went wrong."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node.js and npm are not installed (Debian's packages nodejs and npm)")
    home = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json", SOURCE.name):
        shutil.copy(FOLDER / name, home)
    prepare((npm, "ci", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts"), home)
    told = {"protos": str(PROTOS), "addresses": cluster.addresses[::-1], "set": "east"}
    done = subprocess.run(
        (node, SOURCE.name, json.dumps(told)),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and lines, f"node ended with {done.returncode}: {done.stderr[-2000:]}"
    return {line["check"]: line["error"] for line in lines}


@pytest.mark.parametrize("sentence", sentences(SOURCE))
async def test_a_client_in_node(found: dict[str, str], sentence: str) -> None:
    assert found.get(sentence, "the program did not come to it") == ""


async def test_reflection_tells_what_protos_tells(cluster: Deployment) -> None:
    (local, *_), (coordinator,) = cluster.cluster.brokers.values(), cluster.cluster.coordinators.values()
    for address, hosted in (
        (
            local.address,
            {"Cluster", "Events", "Primary", "ResourceManager", "Resources", "Sessions", "Transactions"},
        ),
        (local.store.command[-1], {"Store"}),
        (coordinator.command[-1], {"Coordinator"}),
    ):
        told = await asyncio.to_thread(reflected, address)
        assert {name.removeprefix(PACKAGE) for name in told if name.startswith(PACKAGE)} == hosted
        assert "grpc.health.v1.Health" in told


def reflected(address: str) -> list[str]:
    """Names of the services there; fails where the messages of a method cannot be found."""
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        names = [str(name) for name in database.get_services()]
        pool = DescriptorPool(database)
        for name in names:
            methods = pool.FindServiceByName(name).methods
            assert methods
            assert all(method.input_type.full_name and method.output_type.full_name for method in methods)
        return names
