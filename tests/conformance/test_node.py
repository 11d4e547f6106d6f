"""A client in another language, made from protos/ alone: the checks of node/checks.js, with gRPC for Node.js."""

import json
import shutil
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance.amqp.foreign_checks import prepare, sentences
from tests.integration.cluster import deployed

pytestmark = pytest.mark.asyncio(loop_scope="module")
FOLDER = Path(__file__).with_name("node")
SOURCE = FOLDER / "checks.js"
PROTOS = Path(__file__).parents[2] / "protos"
RUN_SECONDS = 120.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def found(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[dict[str, str]]:
    """What the checks found: check -> "" or what went wrong."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node.js and npm are not installed (Debian's packages nodejs and npm)")
    home = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json", SOURCE.name):
        shutil.copy(FOLDER / name, home)
    prepare((npm, "ci", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts"), home)
    async with deployed(
        tmp_path_factory.mktemp("cluster"), brokers=2, sets={"east": ["B1", "B2"]}
    ) as cluster:
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
        yield {line["check"]: line["error"] for line in lines}


@pytest.mark.parametrize("sentence", sentences(SOURCE))
async def test_a_client_in_node(found: dict[str, str], sentence: str) -> None:
    assert found.get(sentence, "the program did not come to it") == ""
