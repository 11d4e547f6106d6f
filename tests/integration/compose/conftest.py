"""The engine and the images, made once for all tests of this folder."""

import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.integration.compose.engine import Engine, engine, reason_to_skip
from tests.integration.compose.stack import REPOSITORY

BUILD_SECONDS = 1800


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[Engine]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with engine() as found:
        yield found


@pytest.fixture(scope="session")
def images(docker_engine: Engine) -> Engine:
    """The engine, with the images that compose.yaml names; made of this checkout."""
    began = time.monotonic()
    command = [str(REPOSITORY / "deploy" / "build-images.sh")]
    built = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=dict(docker_engine.environment),
        timeout=BUILD_SECONDS,
    )
    assert built.returncode == 0, f"{built.stdout[-4000:]}\n{built.stderr[-8000:]}"
    print(f"images built in {time.monotonic() - began:.0f} s")
    return docker_engine
