"""go-amqp, the AMQP client of Go, against the proxy: the checks of go/main.go."""

from pathlib import Path

import pytest

from tests.conformance.amqp.cluster import AmqpCluster
from tests.conformance.amqp.foreign_checks import prepare, run_checks, sentences
from tests.programs import find_program

FOLDER = Path(__file__).with_name("go")
SOURCE = FOLDER / "main.go"


@pytest.fixture(scope="module")
def found(amqp: AmqpCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the checks found."""
    go = find_program("go")
    if go is None:
        pytest.skip("Go is not installed (scripts/setup.sh installs it)")
    program = tmp_path_factory.mktemp("go") / "checks"
    prepare((go, "build", "-o", str(program), "."), FOLDER)
    return run_checks(amqp, (str(program),), "go-")


@pytest.mark.parametrize("sentence", sentences(SOURCE))
def test_go_amqp(found: dict[str, str], sentence: str) -> None:
    assert found.get(sentence, "the program did not come to it") == ""
