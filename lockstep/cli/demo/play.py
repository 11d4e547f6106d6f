"""The play: load, move, kill a primary in the middle, bring it back, and count.

load -> move -> (a third is moved) kill a primary -> go on -> (two thirds) start it again -> all moved, in sync -> count
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.cli.demo.account import Account, balance, count
from lockstep.cli.demo.data import load_rows
from lockstep.cli.demo.movers import run_movers
from lockstep.cli.demo.pipeline import open_group
from lockstep.cli.demo.routes import Route, plan_routes
from lockstep.cli.up import wait_until_led
from lockstep.client import Client, ErrorCode, Rejected
from lockstep.core.counted import counted
from lockstep.runtime.local_cluster import LocalCluster
from lockstep.wire.v1 import cluster_pb2 as pb

STALLED_SECONDS = 20.0
"""Without a commit for so long the demo gives up."""
SETTLE_SECONDS = 20.0
"""For the broker that was dead to be in sync, and for all replicas to have applied the same."""
PUBLISH_BATCH = 500
Hashes = dict[str, dict[str, tuple[int, str]]]
"""Set -> broker -> (index, state hash)."""


@dataclass(frozen=True, slots=True)
class Killing:
    """What was going on when the primary was killed."""

    broker: str
    at: float
    """Monotonic seconds."""
    led: dict[str, int]
    """Sets that it led, and in which epoch."""
    in_flight: int
    in_doubt: int
    """Of these, told to commit and not answered: in doubt until the session was resumed on the promoted broker."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the table at the end says."""

    account: Account
    committed: int
    rolled_back: int
    resolved: int
    """Commits whose outcome was asked for."""
    unresolved: int
    killing: Killing
    failover_seconds: float
    """To the first commit of the set that waited longest for one."""
    back_seconds: float
    """From starting the dead broker until it was in sync again everywhere."""
    moving_seconds: float
    promoted: list[str]
    """Who leads the sets that the killed broker led."""
    hashes: Hashes

    @property
    def are_hashes_equal(self) -> bool:
        return all(len(set(of_set.values())) == 1 for of_set in self.hashes.values())

    @property
    def is_clean(self) -> bool:
        is_settled = self.are_hashes_equal and not self.unresolved
        return self.account.is_clean and not self.account.left and is_settled


class Play:
    """One run on a started cluster; `say` tells people what happens, `show` how many messages are moved."""

    def __init__(
        self,
        cluster: LocalCluster,
        client: Client,
        say: Callable[[str], None],
        show: Callable[[str, int, int], None],
        is_audited: bool = False,
    ) -> None:
        """`is_audited`: events are kept for the pipeline, from before the first message."""
        self._cluster = cluster
        self._client = client
        self._say = say
        self._show = show
        self._is_audited = is_audited
        self._routes: list[Route] = []

    async def run(self, messages: int, movers: int, batch: int) -> Result:
        """`movers`: clients in each set."""
        self._routes = routes = plan_routes(list(self._cluster.brokers), load_rows(messages))
        for route in routes:
            await self._client.administration.create_set(route.set_name, route.brokers)
        await wait_until_led(self._client, expected=len(routes))
        self._say(", ".join(f"{route.brokers[0]} leads set {route.set_name}" for route in routes))
        if self._is_audited:
            await open_group(self._cluster.addresses)
        await self._load()
        started = time.monotonic()
        moving = asyncio.ensure_future(self._move(movers, batch, started))
        try:
            killing = await self._kill(moving)
            back_seconds = await self._start_again(killing, moving)
            await self._until(lambda: all(route.tally.is_done for route in routes), moving)
            moving_seconds = time.monotonic() - started
            await moving
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
        back = await back_seconds
        self._show("Counting", self._wanted, self._wanted)
        hashes = await self._hashes()
        account = await self._account()
        entries = await self._entries()
        return Result(
            account,
            sum(route.tally.moved.committed for route in routes),
            sum(route.tally.moved.rolled_back for route in routes),
            sum(route.tally.moved.resolved for route in routes),
            sum(route.tally.unresolved for route in routes),
            killing,
            max((at - killing.at for at in self._first_commits(killing).values()), default=0.0),
            back,
            moving_seconds,
            sorted({entries[set_name].primary for set_name in killing.led}),
            hashes,
        )

    @property
    def _wanted(self) -> int:
        return sum(route.tally.wanted for route in self._routes)

    @property
    def _moved(self) -> int:
        return sum(route.tally.moved.messages for route in self._routes)

    async def _load(self) -> None:
        started = time.monotonic()
        async with self._client.session() as session:
            sent = []
            for route in self._routes:
                for queue in (route.source, *route.targets):
                    await session.declare_queue(queue, set_name=route.set_name)
                for at in range(0, len(route.bodies), PUBLISH_BATCH):
                    sent.append(
                        await session.publish_soon(route.source, route.bodies[at : at + PUBLISH_BATCH])
                    )
                    self._show("Loading", len(sent) * PUBLISH_BATCH, self._wanted)
            await asyncio.gather(*sent)
        seconds = time.monotonic() - started
        sources = ", ".join(route.source for route in self._routes)
        self._say(f"{counted(self._wanted, 'durable message')} loaded into {sources} in {seconds:.1f} s")

    async def _move(self, movers: int, batch: int, started: float) -> None:
        async with asyncio.TaskGroup() as group:
            for route in self._routes:
                route.tally.last_progress = started
                group.create_task(
                    run_movers(
                        movers, self._cluster.addresses, route.source, route.targets, batch, route.tally
                    )
                )

    # --- the killed primary -------------------------------------------------------------------------------------------

    async def _kill(self, moving: "asyncio.Future[None]") -> Killing:
        """Kills, at a third, who leads the first set; returns when all sets that it led have committed again."""
        await self._until(lambda: self._moved * 3 >= self._wanted, moving)
        entries = await self._entries()
        broker = entries[self._routes[0].set_name].primary
        led = {name: entry.epoch for name, entry in entries.items() if entry.primary == broker}
        in_flight = sum(len(route.tally.moved.under_way) for route in self._routes if route.set_name in led)
        in_doubt = sum(route.tally.in_doubt for route in self._routes if route.set_name in led)
        killing = Killing(broker, time.monotonic(), led, in_flight, in_doubt)
        await self._cluster.brokers[broker].broker.kill()
        self._say(
            f"{broker}, the primary of {', '.join(led)}, killed (SIGKILL) after {counted(self._moved, 'message')},"
            f" {counted(in_flight, 'transaction')} under way, {in_doubt} of them without the answer to their commit"
        )
        await self._until(lambda: len(self._first_commits(killing)) == len(led), moving)
        for set_name, at in self._first_commits(killing).items():
            self._say(
                f"The first transaction in the new epoch of {set_name} was committed {at - killing.at:.2f} s later"
            )
        return killing

    def _first_commits(self, killing: Killing) -> dict[str, float]:
        """When each set that the killed broker led had its first commit in a later epoch; those that had one."""
        found = {}
        for route in self._routes:
            epoch = killing.led.get(route.set_name)
            if epoch is not None:
                times = [at for later, at in route.tally.first_commit.items() if later > epoch]
                if times:
                    found[route.set_name] = min(times)
        return found

    async def _start_again(self, killing: Killing, moving: "asyncio.Future[None]") -> "asyncio.Future[float]":
        """Starts the killed broker at two thirds; the result is when it was in sync again."""
        await self._until(lambda: self._moved * 3 >= 2 * self._wanted, moving)
        self._say(f"{killing.broker} started again")
        return asyncio.ensure_future(self._bring_back(killing.broker))

    async def _bring_back(self, broker: str) -> float:
        started = time.monotonic()
        await self._cluster.start_broker(broker)
        while True:
            entries = await self._entries()
            if all(broker in entry.in_sync and entry.is_led for entry in entries.values()):
                break
            if time.monotonic() - started > SETTLE_SECONDS:
                raise Rejected(ErrorCode.UNAVAILABLE, f"{broker} is not in sync after {SETTLE_SECONDS:g} s")
            await asyncio.sleep(0.1)
        seconds = time.monotonic() - started
        self._say(f"{broker} is in sync again, in all sets, after {seconds:.1f} s")
        return seconds

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _entries(self) -> dict[str, pb.GetClusterStatusResponse.ResourceSet]:
        status = await self._client.administration.status()
        return {entry.name: entry for entry in status.view.sets}

    async def _until(self, is_true: Callable[[], bool], moving: "asyncio.Future[None]") -> None:
        while not is_true():
            self._show("Moving", self._moved, self._wanted)
            if moving.done():
                moving.result()
                return
            waiting = [route.tally.last_progress for route in self._routes if not route.tally.is_done]
            if waiting and time.monotonic() - min(waiting) > STALLED_SECONDS:
                raise Rejected(
                    ErrorCode.UNAVAILABLE,
                    f"nothing was committed for {STALLED_SECONDS:g} s, after {counted(self._moved, 'message')}",
                )
            await asyncio.sleep(0.02)

    async def _account(self) -> Account:
        total = Account(0, 0, 0, 0, 0, 0)
        async with self._client.session() as session:
            for route in self._routes:
                counts = [await count(session, queue) for queue in (route.source, *route.targets)]
                total += balance(route.ids, counts[0], counts[1:])
        return total

    async def _hashes(self) -> Hashes:
        """State hash of every replica, once those of a set have applied the same; as they are if that takes too long."""
        deadline = time.monotonic() + SETTLE_SECONDS
        names = list(self._cluster.brokers)
        while True:
            status = await self._client.administration.status(with_state_hash=True)
            hashes = {
                route.set_name: {
                    name: (replica.state_index, replica.state_hash)
                    for name in names
                    if (replica := status.replica(name, route.set_name)) is not None
                }
                for route in self._routes
            }
            is_settled = all(
                len(of_set) == len(names) and len(set(of_set.values())) == 1 for of_set in hashes.values()
            )
            if is_settled or time.monotonic() > deadline:
                return hashes
            await asyncio.sleep(0.2)
