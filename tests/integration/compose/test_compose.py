"""`docker compose up`, as a user has it: a cluster in containers, clients of its proxies' ports, and harm by the engine's means.

The primary's container is killed, the network of the next one is cut, and everything is killed and started again. Then each
attempt's client is asked what it heard, and the simulator's checkers read the committed log. `make compose-test`.
"""

import asyncio
import time

import pytest

from lockstep.core.frames import check_frame
from tests.chaos.committed_logs import check_against_clients, one_log
from tests.chaos.liveness import Liveness
from tests.integration.compose.engine import Engine
from tests.integration.compose.proxy_workload import ProxyWorkload
from tests.integration.compose.stack import BROKERS, SET, Stack, service_of

pytestmark = pytest.mark.slow

GO_ON_SECONDS = 60.0
"""Within so long after harm every client has got something done: a lease has to end first, and processes start slowly here."""
COMMITS = 20
"""Before each harm, and after it."""
CUT_SECONDS = 5.0


async def test_nothing_is_lost_torn_or_doubled_in_containers(images: Engine) -> None:
    stack = Stack(images)
    began = time.monotonic()
    with stack.running():
        try:
            await _harm_under_load(stack, began)
        except BaseException:
            print(stack.logs())
            raise


async def _harm_under_load(stack: Stack, began: float) -> None:
    liveness = Liveness()
    print(f"{time.monotonic() - began:.1f} s: started")
    workload = ProxyWorkload(stack.proxies, SET, liveness, stack.length, name="compose")
    async with workload.running():
        await workload.committed_since(1, 120)
        print(f"{time.monotonic() - began:.1f} s: the first transaction has committed")
        # A group's events are kept: so the logs can be read from their beginning after any restart.
        await asyncio.to_thread(stack.lockstep, "events", "open", "checkers", "--earliest")
        await liveness.everybody_goes_on(GO_ON_SECONDS)
        for harm in (_kill_the_primary, _cut_off_the_primary, _kill_everything):
            await asyncio.to_thread(stack.until_in_sync)
            await workload.committed_since(COMMITS)
            await workload.note_kill()
            print(f"{time.monotonic() - began:.1f} s: {harm.__name__.strip('_')}")
            said = await harm(stack, liveness)
            print(f"{time.monotonic() - began:.1f} s: {said}")
            await workload.committed_since(COMMITS)
        status = await asyncio.to_thread(stack.until_in_sync)
    await workload.check()
    print(f"{time.monotonic() - began:.1f} s: checked what clients heard; {workload.summary()}")
    journals: dict[str, dict[int, bytes]] = {
        broker: {check_frame(frame).first: frame for frame in stack.journal(broker)} for broker in BROKERS
    }
    model = check_against_clients(SET, one_log(journals), workload)
    committed = sum(life.is_committed for life in model.transactions.values())
    assert committed >= workload.report.committed
    status = await asyncio.to_thread(stack.until_in_sync)
    assert len({one["state_hash"] for one in status["replicas"]}) == 1, status
    print(
        f"{time.monotonic() - began:.1f} s: checked {model.end} indexes with {committed} committed transactions "
        f"and {len(model.epochs)} epochs"
    )
    assert len(model.epochs) >= 4, "each harm takes a primary away"
    # A one-shot is done, everything else is well.
    everything = [service for service in stack.services() if service != "sets"]
    await asyncio.to_thread(stack.until_healthy, *everything)
    assert stack.inspect("sets")["State"]["ExitCode"] == 0


async def _kill_the_primary(stack: Stack, liveness: Liveness) -> str:
    primary = service_of(stack.status()["primary"])
    await asyncio.to_thread(stack.kill, primary)
    seconds = await liveness.everybody_goes_on(GO_ON_SECONDS)
    await asyncio.to_thread(stack.start, primary)
    return f"{primary} was killed; everybody went on within {seconds:.1f} s"


async def _cut_off_the_primary(stack: Stack, liveness: Liveness) -> str:
    """Its processes go on, and its store can be reached by it; it must fall silent by itself."""
    primary = service_of(stack.status()["primary"])
    await asyncio.to_thread(stack.cut_off, primary)
    seconds = await liveness.everybody_goes_on(GO_ON_SECONDS)
    await asyncio.sleep(CUT_SECONDS)
    await asyncio.to_thread(stack.connect, primary)
    return f"{primary} lost its network; everybody went on within {seconds:.1f} s"


async def _kill_everything(stack: Stack, liveness: Liveness) -> str:
    await asyncio.to_thread(stack.kill_everything)
    began = time.monotonic()
    await asyncio.to_thread(stack.up)
    started = time.monotonic() - began
    seconds = await liveness.everybody_goes_on(2 * GO_ON_SECONDS)
    return (
        f"everything was killed; it was up after {started:.1f} s, and everybody went on {seconds:.1f} s later"
    )
