"""A proxy at its start: it waits for a broker as long as it was told to."""

import asyncio

import pytest

from lockstep.core.errors import Rejected
from services.proxy.settings import ProxySettings, parse_arguments
from services.proxy.worker import Worker

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize("seconds", [0.2, 1.5])
async def test_a_broker_is_waited_for_as_long_as_is_said(seconds: float) -> None:
    worker = Worker(ProxySettings(brokers=(NOBODY,), start_seconds=seconds), None)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(Rejected):
        await worker.start()
    assert seconds <= loop.time() - began < seconds + 10
    await worker.stop()


def test_it_is_said_on_the_command_line() -> None:
    assert parse_arguments(["--brokers", NOBODY, "--start-seconds", "1740"]).start_seconds == 1740
    assert parse_arguments(["--brokers", NOBODY]) == ProxySettings(brokers=(NOBODY,))
