"""One cluster for all AMQP clients of this folder, and names of a test's own."""

from collections.abc import Iterator

import pytest

from tests.conformance.amqp.cluster import AmqpCluster, running
from tests.conformance.amqp.proton_client import ProtonClient
from tests.conformance.process_rig import BackgroundLoop


@pytest.fixture(scope="session")
def amqp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmqpCluster]:
    """Running as long as the tests of this folder."""
    loop = BackgroundLoop()
    context = running(tmp_path_factory.mktemp("amqp"), loop)
    yield loop.run(context.__aenter__())
    loop.run(context.__aexit__(None, None, None))
    loop.stop()


@pytest.fixture
def client(amqp: AmqpCluster) -> Iterator[ProtonClient]:
    """A connection to the proxy that makes what is not there."""
    with ProtonClient(amqp.port) as client:
        yield client


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The name of a queue that no other test uses."""
    return str(request.node.name).removeprefix("test_")
