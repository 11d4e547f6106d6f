"""A stream, and calls that the same peer gives up on another connection, as two brokers have one connection for the log, and one
for what clients had one of them ask the other.

Law: who gives up more calls than it may is heard more slowly, on the connection on which it does. A primary takes a backup that
it does not hear for lost within a second.
"""

import asyncio
import time
from typing import Any

from lockstep.transport.intake import RESETS_A_SECOND, RESETS_BURST
from tests.unit.lockstep.transport.ends import Ends, within
from tests.unit.lockstep.transport.probe_service import Probe, path

GIVEN_UP = RESETS_BURST + 3 * RESETS_A_SECOND
AT_ONCE = 300
SILENT_SECONDS = 0.75
"""Heartbeats missing for which a backup counts as lost."""


@within(120)
async def test_a_stream_is_heard_while_calls_are_given_up_elsewhere(our_ends: Ends, probe: Probe) -> None:
    served = await our_ends.serve(probe.handlers())
    stream: Any = our_ends.open_channel(served.address).stream_stream(path("Converse"))()
    wait: Any = our_ends.open_channel(served.address).unary_unary(path("Wait"))
    worst, is_over = 0.0, False

    async def acknowledge() -> None:
        nonlocal worst
        while not is_over:
            begun = time.monotonic()
            await stream.write(b"so far")
            assert await stream.read() == b"so far"
            worst = max(worst, time.monotonic() - begun)
            await asyncio.sleep(0.05)

    acknowledging = asyncio.ensure_future(acknowledge())
    given_up = 0
    while given_up < GIVEN_UP:
        calls = [asyncio.ensure_future(_call(wait)) for _ in range(AT_ONCE)]
        await asyncio.sleep(0.5)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        given_up += AT_ONCE
    is_over = True
    await acknowledging
    assert worst < SILENT_SECONDS, f"the stream waited for {worst:.1f} s"


async def _call(wait: Any) -> None:
    await wait(b"", timeout=30)
