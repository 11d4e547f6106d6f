"""rhea, the AMQP client of Node.js, against the proxy: the checks of rhea/checks.js."""

import shutil
from pathlib import Path

import pytest

from tests.conformance.amqp.cluster import AmqpCluster
from tests.conformance.amqp.foreign_checks import prepare, run_checks, sentences

FOLDER = Path(__file__).with_name("rhea")
SOURCE = FOLDER / "checks.js"
INSTALLED = FOLDER / "node_modules" / ".package-lock.json"


@pytest.fixture(scope="module")
def found(amqp: AmqpCluster) -> dict[str, str]:
    """What the checks found."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node.js and npm are not installed (Debian's packages nodejs and npm)")
    if not INSTALLED.exists() or INSTALLED.stat().st_mtime < (FOLDER / "package-lock.json").stat().st_mtime:
        prepare((npm, "ci", "--prefer-offline", "--no-audit", "--no-fund"), FOLDER)
    return run_checks(amqp, (node, str(SOURCE)), "rhea-")


@pytest.mark.parametrize("sentence", sentences(SOURCE))
def test_rhea(found: dict[str, str], sentence: str) -> None:
    assert found.get(sentence, "the program did not come to it") == ""
