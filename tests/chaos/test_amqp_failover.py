"""AMQP transactions through failovers: nothing lost, nothing torn, nothing twice but what nobody could tell; and work goes on.

Clients of both kinds move messages between queues in transactions, in one set and over two, while primaries, backups, stores,
proxies and coordinators are killed and stalled, up to two at a time. Each kind of harm once; `make test-full`: 5 minutes, and
51 times at least.
LOCKSTEP_CHAOS_SEED repeats the choices of a run.
"""

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.amqp_harm import ONCE, AmqpHarm
from tests.chaos.audited_workload import IMPATIENT
from tests.chaos.committed_logs import check_clients_of, read_journal
from tests.chaos.liveness import Liveness
from tests.chaos.mixed_workload import MixedWorkload
from tests.chaos.plain_workload import PlainWorkload
from tests.integration.cluster import Deployment, deployed

pytestmark = pytest.mark.slow

IS_FULL = os.environ.get("LOCKSTEP_TESTS", "") == "full"
ROUNDS, SECONDS, HARM_MIN = (3, 100.0, 17) if IS_FULL else (1, 0.0, 1)
"""Each round has a cluster of its own, whose log is read from its beginning."""
GO_ON_SECONDS = 30.0
"""Within so long after harm every client has got something done."""
SET, SECOND_SET = "east", "west"


async def test_nothing_is_lost_torn_or_doubled_whatever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("LOCKSTEP_CHAOS_SEED", "") or random.SystemRandom().randrange(1 << 32))
    print(f"seed {seed}")
    chance = random.Random(seed)
    totals, slowest = Counter[str](), dict[str, float]()
    for number in range(ROUNDS):
        async with deployed(tmp_path / f"{number}", coordinators=2, proxies=2) as deployment:
            totals += await _round(deployment, chance, slowest)
    print(f"totals of {ROUNDS} rounds: {', '.join(f'{count} {what}' for what, count in totals.items())}")
    print("slowest client, seconds:", ", ".join(f"{kind} {one:.1f}" for kind, one in slowest.items()))


async def _round(deployment: Deployment, chance: random.Random, slowest: dict[str, float]) -> "Counter[str]":
    """Harm under load, and the check of everything; returns what was counted."""
    proxies, liveness, harm = deployment.cluster.proxy_addresses, Liveness(), AmqpHarm(deployment, chance)
    stores = deployment.store_addresses(SET)
    async with deployment.client() as client:
        narrow = MixedWorkload(
            client, deployment.addresses, proxies, SET, liveness, name="one", patience=IMPATIENT
        )
        wide = MixedWorkload(
            client,
            deployment.addresses,
            proxies,
            SET,
            liveness,
            name="two",
            second_set=SECOND_SET,
            patience=IMPATIENT,
        )
        plain = PlainWorkload(client, proxies, SET, liveness)
        async with contextlib.AsyncExitStack() as stack:
            for workload in (narrow, wide, plain):
                await stack.enter_async_context(workload.running())
            await liveness.everybody_goes_on(GO_ON_SECONDS)
            began = time.monotonic()
            journals: dict[str, dict[int, bytes]] = {}
            steps = chance.sample(ONCE, len(ONCE))
            while steps or time.monotonic() - began < SECONDS or harm.done.total() < HARM_MIN:
                step = steps.pop() if steps else harm.any_step()
                set_name = SET if "stall primary" in step else chance.choice((SET, SECOND_SET))
                await deployment.until_in_sync(3)
                if "kill store" in step:
                    for name, address in stores.items():
                        journals[f"{name} at harm {harm.done.total()}"] = await read_journal(address, SET)
                await narrow.note_kill()
                what = " and ".join(step)
                print(f"{time.monotonic() - began:.1f} s: {what}, {set_name}", flush=True)
                going_on = asyncio.create_task(liveness.everybody_goes_on(GO_ON_SECONDS))
                await asyncio.gather(going_on, harm.do(step, set_name))
                slowest[what] = max(slowest.get(what, 0.0), going_on.result())
                await liveness.everybody_goes_on(GO_ON_SECONDS)
            await deployment.until_in_sync(3)
        await narrow.check()
        await wide.check()
        plain.check()
        model = await check_clients_of(SET, stores, narrow, journals)
        for set_name in (SET, SECOND_SET):
            assert len(set((await deployment.state_hashes(set_name)).values())) == 1
    print(f"{model.end} indexes checked in the log of {SET}", narrow.summary(), wide.summary(), sep="\n")
    return harm.done + narrow.counts() + wide.counts() + plain.counts()
