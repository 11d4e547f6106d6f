"""Coordinators, participants and the database killed at random under load: every transaction ends alike everywhere, and as it
was told."""

import asyncio
import os
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from lockstep.core.errors import LockstepError
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.etcd_process import EtcdProcess
from lockstep.wire.v1 import coordinator_pb2 as pb
from tests.integration.coordination import (
    COMMITTED,
    ROLLED_BACK,
    ClientTransaction,
    CoordinationRig,
    CoordinatorClient,
    until,
)
from tests.integration.postgres_process import PostgresProcess, find_postgres, running_postgres

SECONDS = float(os.environ.get("LOCKSTEP_CHAOS_SECONDS", "20"))
KILLS_MIN, COMMITTED_MIN = SECONDS / 4, 20
"""A slow machine gets up to `SECONDS_MORE` for them."""
SECONDS_MORE = 120.0
CLIENTS = 4
SETTLE_SECONDS = 30.0


@pytest.fixture
def postgres() -> Generator[PostgresProcess]:
    binaries = find_postgres()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian's package postgresql)")
    with running_postgres(binaries) as process:
        yield process


@dataclass
class Wish:
    """A row, the transaction that inserts it, and what its client was told; None: nothing definite."""

    row: int
    transaction: ClientTransaction | None = None
    told: "pb.DistributedState.ValueType | None" = None


async def _end_one(
    rig: CoordinationRig, coordinators: list[CoordinatorClient], wish: Wish, chance: random.Random
) -> None:
    """As a client does: begin, insert, close, prepare, commit; whatever fails is in doubt."""
    first, second = chance.sample(coordinators, 2)
    names = [rig.participant("one"), rig.participant("two"), rig.participant("database")]
    transaction = wish.transaction = await ClientTransaction.begin(first, names)
    connection = await rig.insert(wish.row, transaction.xids[2])
    try:
        await transaction.close(first)
        await rig.prepare_row(connection, transaction.xids[2])
    finally:
        await connection.close()
    end = transaction.rollback if chance.random() < 0.2 else transaction.commit
    wish.told = (await end(chance.choice([first, second]))).state


async def _work(
    rig: CoordinationRig,
    coordinators: list[CoordinatorClient],
    wishes: list[Wish],
    chance: random.Random,
    is_over: Callable[[], bool],
) -> None:
    while not is_over():
        wish = Wish(len(wishes))
        wishes.append(wish)
        try:
            await asyncio.wait_for(_end_one(rig, coordinators, wish, chance), 15)
        except (LockstepError, psycopg.Error, TimeoutError):
            await asyncio.sleep(0.05)


async def _kill(
    rig: CoordinationRig,
    coordinators: list[CoordinatorClient],
    postgres: PostgresProcess,
    chance: random.Random,
    is_over: Callable[[], bool],
    kills: list[str],
) -> None:
    while not is_over():
        await asyncio.sleep(chance.uniform(0.2, 1.2))
        victim = chance.choice([*(one.address for one in coordinators), "one", "two", "database", "postgres"])
        kills.append(victim)
        if victim == "postgres":
            await postgres.crash()
            await asyncio.sleep(chance.uniform(0, 1))
            await postgres.start()
        else:
            await rig.child(victim).kill()
            await asyncio.sleep(chance.uniform(0, 1))
            await rig.child(victim).start()


async def test_everything_ends_alike_and_as_it_was_told(tmp_path: Path, postgres: PostgresProcess) -> None:
    seed = int(os.environ.get("LOCKSTEP_CHAOS_SEED", "1"))
    chance = random.Random(seed)
    etcd = await EtcdProcess.start(tmp_path / "etcd")
    async with EtcdClient(etcd.endpoint) as client:
        rig = CoordinationRig(tmp_path, client, etcd.endpoint, "chaos", postgres.dsn)
        try:
            async with await rig.connect() as connection:
                await connection.execute("create table tokens (id int primary key)")
            await rig.start_participants()
            coordinators = [
                await rig.start_coordinator(arguments=("--closed-ms", "3000", "--prepare-ms", "3000"))
                for _ in range(2)
            ]
            wishes: list[Wish] = []
            kills: list[str] = []
            began = time.monotonic()

            def is_over() -> bool:
                seconds = time.monotonic() - began
                committed = sum(wish.told == COMMITTED for wish in wishes)
                is_enough = len(kills) >= KILLS_MIN and committed > COMMITTED_MIN
                return seconds > SECONDS + SECONDS_MORE or (seconds > SECONDS and is_enough)

            clients = [
                asyncio.ensure_future(_work(rig, coordinators, wishes, chance, is_over))
                for _ in range(CLIENTS)
            ]
            await _kill(rig, coordinators, postgres, chance, is_over, kills)
            await asyncio.gather(*clients)
            await until("the log is empty", rig.logged, lambda keys: not keys, SETTLE_SECONDS)
            await until("nothing is prepared", rig.prepared_gids, lambda gids: not gids, SETTLE_SECONDS)
            for coordinator in coordinators:
                await rig.until_reached(coordinator)
            rows = set(await rig.rows())
            told = {COMMITTED: 0, ROLLED_BACK: 0}
            for wish in wishes:
                transaction = wish.transaction
                if transaction is None or len(transaction.xids) < 3:
                    assert wish.row not in rows
                    continue
                ends = {rig.ended("one", transaction.xids[0]), rig.ended("two", transaction.xids[1])}
                is_committed = wish.row in rows
                assert ends <= ({"committed"} if is_committed else {"rolled-back", ""}), (seed, wish, ends)
                if wish.told is not None:
                    told[wish.told] += 1
                    assert (wish.told == COMMITTED) == is_committed, (seed, wish)
                outcome = await coordinators[0].outcome(transaction, fence=True)
                if outcome in (COMMITTED, ROLLED_BACK):
                    assert (outcome == COMMITTED) == is_committed, (seed, wish)
            print(f"kills={len(kills)} transactions={len(wishes)} told={told}")
            assert len(kills) >= KILLS_MIN and told[COMMITTED] > COMMITTED_MIN
        finally:
            await rig.stop()
            await etcd.stop()
