"""The play: load, move, kill the primary in the middle, bring it back, and count.

load -> move -> (a third is moved) kill the primary -> go on -> (two thirds) start it again -> all moved, in sync -> count
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.cli.demo.account import Account, balance, count
from lockstep.cli.demo.data import load_rows
from lockstep.cli.demo.movers import Tally, run_movers
from lockstep.cli.up import wait_until_led
from lockstep.client import Client, ErrorCode, Rejected
from lockstep.runtime.local_cluster import LocalCluster

SET, SOURCE, TARGETS = "demo", "readings", ["ledger", "analytics"]
STALLED_SECONDS = 20.0
"""Without a commit for so long the demo gives up."""
SETTLE_SECONDS = 20.0
"""For the broker that was dead to be in sync, and for all replicas to have applied the same."""
PUBLISH_BATCH = 500


@dataclass(frozen=True, slots=True)
class Result:
    """What the table at the end says."""

    account: Account
    tally: Tally
    in_flight_at_kill: int
    in_doubt_at_kill: int
    """Of these, told to commit and not answered: in doubt until the session was resumed on the promoted broker."""
    failover_seconds: float
    back_seconds: float
    """From starting the dead broker until it was in sync again."""
    moving_seconds: float
    killed: str
    promoted: str
    hashes: dict[str, tuple[int, str]]
    """Broker -> (index, state hash)."""

    @property
    def is_clean(self) -> bool:
        return (
            self.account.is_clean
            and not self.account.left
            and not self.tally.unresolved
            and len(set(self.hashes.values())) == 1
        )


class Play:
    """One run on a started cluster; `say` tells people what happens, `show` how many messages are moved."""

    def __init__(
        self,
        cluster: LocalCluster,
        client: Client,
        say: Callable[[str], None],
        show: Callable[[str, int, int], None],
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._say = say
        self._show = show
        self._killed = ""
        self._killed_at = 0.0
        self._in_flight_at_kill = 0
        self._in_doubt_at_kill = 0
        self._epoch_at_kill = 0

    async def run(self, messages: int, movers: int, batch: int) -> Result:
        await self._client.administration.create_set(SET, list(self._cluster.brokers))
        await wait_until_led(self._client, expected=1)
        bodies = load_rows(messages)
        await self._load(bodies)
        tally = Tally(len(bodies))
        started = time.monotonic()
        tally.last_progress = started
        moving = asyncio.ensure_future(
            run_movers(movers, self._cluster.addresses, SOURCE, TARGETS, batch, tally)
        )
        try:
            back_seconds = await self._disturb(tally, moving)
            await self._until(lambda: tally.is_done, tally, moving)
            moving_seconds = time.monotonic() - started
            await moving
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
        back = await back_seconds
        self._show("Counting", len(bodies), len(bodies))
        hashes = await self._hashes()
        async with self._client.session() as session:
            counts = [await count(session, queue) for queue in (SOURCE, *TARGETS)]
        first = min(
            (at for epoch, at in tally.first_commit.items() if epoch > self._epoch_at_kill), default=0.0
        )
        status = await self._client.administration.status()
        return Result(
            balance(len(bodies), counts[0], counts[1:]),
            tally,
            self._in_flight_at_kill,
            self._in_doubt_at_kill,
            first - self._killed_at,
            back,
            moving_seconds,
            self._killed,
            status.view.sets[0].primary,
            hashes,
        )

    async def _load(self, bodies: list[bytes]) -> None:
        started = time.monotonic()
        async with self._client.session() as session:
            for queue in (SOURCE, *TARGETS):
                await session.declare_queue(queue, set_name=SET)
            sent = []
            for at in range(0, len(bodies), PUBLISH_BATCH):
                sent.append(await session.publish_soon(SOURCE, bodies[at : at + PUBLISH_BATCH]))
                self._show("Loading", at, len(bodies))
            await asyncio.gather(*sent)
        seconds = time.monotonic() - started
        self._say(f"{len(bodies):,} durable messages loaded into queue {SOURCE} in {seconds:.1f} s")

    async def _disturb(self, tally: Tally, moving: "asyncio.Future[None]") -> "asyncio.Future[float]":
        """Kills the primary at a third, starts it again at two thirds; the result is when it was in sync again."""
        await self._until(lambda: tally.moved.messages * 3 >= tally.wanted, tally, moving)
        entry = (await self._client.administration.status()).view.sets[0]
        self._killed, self._epoch_at_kill = entry.primary, entry.epoch
        local = self._cluster.brokers[self._killed]
        self._in_flight_at_kill, self._in_doubt_at_kill = len(tally.moved.under_way), tally.in_doubt
        self._killed_at = time.monotonic()
        await local.broker.kill()
        self._say(
            f"{self._killed}, the primary, killed (SIGKILL) after {tally.moved.messages:,} messages,"
            f" {self._in_flight_at_kill} transactions under way,"
            f" {self._in_doubt_at_kill} of them without the answer to their commit"
        )
        await self._until(lambda: any(e > self._epoch_at_kill for e in tally.first_commit), tally, moving)
        self._say(
            f"The first transaction in the new epoch was committed {tally.last_progress - self._killed_at:.2f} s later"
        )
        await self._until(lambda: tally.moved.messages * 3 >= 2 * tally.wanted, tally, moving)
        self._say(f"{self._killed} started again")
        return asyncio.ensure_future(self._bring_back())

    async def _bring_back(self) -> float:
        started = time.monotonic()
        await self._cluster.start_broker(self._killed)
        while True:
            entry = (await self._client.administration.status()).view.sets[0]
            if self._killed in entry.in_sync and entry.is_led:
                break
            if time.monotonic() - started > SETTLE_SECONDS:
                raise Rejected(
                    ErrorCode.UNAVAILABLE, f"{self._killed} is not in sync after {SETTLE_SECONDS:g} s"
                )
            await asyncio.sleep(0.1)
        seconds = time.monotonic() - started
        self._say(f"{self._killed} is in sync again after {seconds:.1f} s")
        return seconds

    async def _until(self, is_true: Callable[[], bool], tally: Tally, moving: "asyncio.Future[None]") -> None:
        while not is_true():
            self._show("Moving", tally.moved.messages, tally.wanted)
            if moving.done():
                moving.result()
                return
            if time.monotonic() - tally.last_progress > STALLED_SECONDS:
                raise Rejected(
                    ErrorCode.UNAVAILABLE,
                    f"nothing was committed for {STALLED_SECONDS:g} s, after {tally.moved.messages} messages",
                )
            await asyncio.sleep(0.02)

    async def _hashes(self) -> dict[str, tuple[int, str]]:
        """State hash of every broker, once all have applied the same; as they are if that takes too long."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            status = await self._client.administration.status(with_state_hash=True)
            hashes = {
                name: (replica.state_index, replica.state_hash)
                for name in self._cluster.brokers
                if (replica := status.replica(name, SET)) is not None
            }
            is_settled = len(hashes) == len(self._cluster.brokers) and len(set(hashes.values())) == 1
            if is_settled or time.monotonic() > deadline:
                return hashes
            await asyncio.sleep(0.2)
