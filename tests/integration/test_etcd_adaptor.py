"""The etcd adaptor against a real etcd: what it answers, and what it says when it cannot know."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import grpc.aio
import pytest
from aetcd import rpc

from lockstep.runtime.etcd import (
    OPERATIONS_MAX,
    Absent,
    Compare,
    Delete,
    DeleteDone,
    DeleteEvent,
    Entry,
    EtcdClient,
    EtcdInDoubt,
    EtcdRejected,
    Get,
    GetDone,
    LeaseGone,
    ModRevisionEquals,
    Put,
    PutDone,
    PutEvent,
    Transact,
    TransactDone,
    ValueEquals,
    WatchBatch,
    WatchCompacted,
    WatchLost,
)
from lockstep.runtime.etcd_process import EtcdProcess
from lockstep.runtime.ports import choose_ports
from tests.integration.cuttable_link import CuttableLink
from tests.integration.hanging import hang


@pytest.fixture
async def own_etcd(tmp_path: Path) -> AsyncGenerator[EtcdProcess]:
    """A member that the test may stop and kill."""
    process = await EtcdProcess.start(tmp_path / "etcd")
    yield process
    await process.stop()


async def following(watching: AsyncGenerator[WatchBatch]) -> WatchBatch:
    async with asyncio.timeout(30):
        return await anext(watching)


async def read(client: EtcdClient, key: str) -> Entry | None:
    """As `get`, as soon as etcd can be reached."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(EtcdRejected):
                return await client.get(key)


# Reads and transactions


async def test_absent_key_is_none(client: EtcdClient, prefix: str) -> None:
    assert await client.get(prefix + "x") is None


async def test_transaction_executes_one_side_and_says_which(client: EtcdClient, prefix: str) -> None:
    key = prefix + "x"
    first = await client.transact([Absent(key)], [Put(key, b"1"), Get(key), Delete(prefix + "none")])
    entry = await client.get(key)
    assert entry is not None
    assert (entry.value, entry.create_revision, entry.mod_revision, entry.lease_id) == (
        *(b"1", first.revision, first.revision),
        0,
    )
    assert first.succeeded
    assert first.responses == (PutDone(), GetDone(entry), DeleteDone(was_present=False))

    second = await client.transact([Absent(key)], [Put(key, b"2")], [Get(key), Get(prefix + "none")])
    assert not second.succeeded
    assert second.responses == (GetDone(entry), GetDone(None))


async def test_transactions_inside_one_are_decided_each_by_itself(client: EtcdClient, prefix: str) -> None:
    """As many as a transaction may have; what is compared is what was there before all of them."""
    keys = [f"{prefix}{number}" for number in range(OPERATIONS_MAX)]
    await client.transact([], [Put(keys[1], b"theirs")])
    parts = [Transact([Absent(key)], [Put(key, b"ours")], [Get(key)]) for key in keys]
    result = await client.transact([ValueEquals(keys[1], b"theirs")], parts, [Get(key) for key in keys])
    taken = result.responses[1]
    assert isinstance(taken, TransactDone) and not taken.succeeded
    (found,) = taken.responses
    assert isinstance(found, GetDone) and found.entry is not None and found.entry.value == b"theirs"
    others = [one for number, one in enumerate(result.responses) if number != 1]
    assert others == [TransactDone(True, (PutDone(),))] * (OPERATIONS_MAX - 1)

    missed = await client.transact([Absent(keys[1])], parts, [Get(key) for key in keys])
    assert not missed.succeeded and all(isinstance(one, GetDone) for one in missed.responses)


async def test_many_keys_are_read_as_of_one_moment(client: EtcdClient, prefix: str) -> None:
    keys = [f"{prefix}{number}" for number in range(OPERATIONS_MAX)]
    await client.transact([], [Put(key, key.encode()) for key in keys[::2]])
    found = await client.get_many(keys)
    assert {key: entry.value for key, entry in found.items()} == {key: key.encode() for key in keys[::2]}


async def test_every_compare_holds_and_fails_as_it_says(client: EtcdClient, prefix: str) -> None:
    key, none = prefix + "x", prefix + "none"
    revision = (await client.transact([], [Put(key, b"1")])).revision
    expected: list[tuple[Compare, bool]] = [
        (ModRevisionEquals(key, revision), True),
        (ModRevisionEquals(key, revision - 1), False),
        (ModRevisionEquals(key, 0), False),
        (ModRevisionEquals(none, 0), True),
        (ModRevisionEquals(none, revision), False),
        (Absent(key), False),
        (Absent(none), True),
        (ValueEquals(key, b"1"), True),
        (ValueEquals(key, b"2"), False),
        (ValueEquals(none, b""), False),
    ]
    for compare, holds in expected:
        assert (await client.transact([compare], [])).succeeded is holds, compare
    holding = [compare for compare, holds in expected if holds]
    assert (await client.transact(holding, [])).succeeded
    assert not (await client.transact([*holding, Absent(key)], [])).succeeded


async def test_of_concurrent_swaps_on_one_revision_one_succeeds(client: EtcdClient, prefix: str) -> None:
    key = prefix + "map"
    revision = (await client.transact([Absent(key)], [Put(key, b"")])).revision
    results = await asyncio.gather(
        *(client.transact([ModRevisionEquals(key, revision)], [Put(key, b"%d" % i)]) for i in range(20))
    )
    assert [result.succeeded for result in results].count(True) == 1


async def test_prefix_is_read_in_pages_at_one_revision(client: EtcdClient, prefix: str) -> None:
    keys = [f"{prefix}{i:05}" for i in range(2300)]
    for start in range(0, len(keys), 100):
        await client.transact([], [Put(key, b"v") for key in keys[start : start + 100]])
    await client.transact([], [Put(prefix.removesuffix("/") + "0", b"beside the prefix")])
    entries, revision = await client.get_prefix(prefix)
    assert [entry.key for entry in entries] == keys
    assert revision >= max(entry.mod_revision for entry in entries)


async def test_a_refused_transaction_is_rejected_and_changes_nothing(client: EtcdClient, prefix: str) -> None:
    key = prefix + "x"
    with pytest.raises(EtcdRejected, match="duplicate key"):
        await client.transact([], [Put(key, b"1"), Put(key, b"2")])
    with pytest.raises(EtcdRejected, match="too large"):
        await client.transact([], [Put(key, bytes(1_800_000))])
    with pytest.raises(EtcdRejected, match="larger than max"):
        await client.transact([], [Put(key, bytes(4_000_000))])
    assert await client.get(key) is None


# Leases


async def test_keys_go_with_their_lease(client: EtcdClient, prefix: str) -> None:
    key = prefix + "presence"
    lease = await client.lease_grant(30)
    assert lease.ttl_seconds == 30
    await client.transact([], [Put(key, b"", lease.lease_id)])
    entry = await client.get(key)
    assert entry is not None
    assert entry.lease_id == lease.lease_id
    assert await client.lease_renew(lease.lease_id) == 30

    await client.lease_revoke(lease.lease_id)
    await client.lease_revoke(lease.lease_id)
    assert await client.get(key) is None
    with pytest.raises(LeaseGone) as gone:
        await client.lease_renew(lease.lease_id)
    assert gone.value.lease_id == lease.lease_id


async def test_a_lease_ends_unless_it_is_renewed(client: EtcdClient, prefix: str) -> None:
    kept, left = await client.lease_grant(3), await client.lease_grant(3)
    await client.transact([], [Put(prefix + "kept", b"", kept.lease_id)])
    await client.transact([], [Put(prefix + "left", b"", left.lease_id)])
    deadline = time.monotonic() + 30
    while await client.get(prefix + "left") is not None:
        assert time.monotonic() < deadline
        await client.lease_renew(kept.lease_id)
        await asyncio.sleep(0.1)
    assert await client.get(prefix + "kept") is not None
    with pytest.raises(LeaseGone):
        await client.transact([], [Put(prefix + "left", b"", left.lease_id)])
    assert await client.get(prefix + "left") is None


async def test_a_lease_can_have_an_id_of_ones_own(client: EtcdClient, prefix: str) -> None:
    lease_id = 1 + hash(prefix) % 2**40
    assert (await client.lease_grant(30, lease_id)).lease_id == lease_id
    with pytest.raises(EtcdRejected, match="already exists"):
        await client.lease_grant(30, lease_id)
    await client.lease_revoke(lease_id)


# Watches


async def test_watch_tells_all_from_its_revision_on(client: EtcdClient, prefix: str) -> None:
    _, revision = await client.get_prefix(prefix)
    lease = await client.lease_grant(30)
    missed = await client.transact([], [Put(prefix + "a", b"1", lease.lease_id), Put(prefix + "b", b"2")])
    async with contextlib.aclosing(client.watch_prefix(prefix, revision + 1)) as watching:
        batch = await following(watching)
        assert [event.entry.key for event in batch.events if isinstance(event, PutEvent)] == [
            prefix + "a",
            prefix + "b",
        ]
        assert batch.last_revision == missed.revision <= batch.header_revision

        await client.transact([], [Put(prefix.removesuffix("/"), b"not ours")])
        await client.lease_revoke(lease.lease_id)
        batch = await following(watching)
        assert batch.events == (DeleteEvent(prefix + "a", batch.last_revision),)

        await client.transact([], [Put(prefix + "c", b"3")])
        assert len((await following(watching)).events) == 1
    async with contextlib.aclosing(client.watch_prefix(prefix, batch.last_revision + 1)) as watching:
        (event,) = (await following(watching)).events
        assert isinstance(event, PutEvent)
        assert event.entry == await client.get(prefix + "c")


async def test_watch_from_a_compacted_revision_says_so(own_etcd: EtcdProcess) -> None:
    async with EtcdClient(own_etcd.endpoint) as client:
        for value in (b"1", b"2", b"3"):
            revision = (await client.transact([], [Put("/x", value)])).revision
        async with grpc.aio.insecure_channel(own_etcd.endpoint.removeprefix("http://")) as channel:
            await rpc.KVStub(channel).Compact(rpc.CompactionRequest(revision=revision))
        with pytest.raises(WatchCompacted) as compacted:
            await following(client.watch_prefix("/", 2))
        assert compacted.value.compact_revision == revision


async def test_watch_is_lost_when_etcd_is_killed(own_etcd: EtcdProcess) -> None:
    async with EtcdClient(own_etcd.endpoint) as client:
        watching = client.watch_prefix("/", 1)
        await client.transact([], [Put("/x", b"")])
        await following(watching)
        own_etcd.kill()
        with pytest.raises(WatchLost, match="UNAVAILABLE"):
            await following(watching)


async def test_watch_is_lost_when_etcd_hangs_but_not_when_nothing_happens(own_etcd: EtcdProcess) -> None:
    async with EtcdClient(own_etcd.endpoint, timeout_seconds=1) as client:
        watching = client.watch_prefix("/", 1)
        await client.transact([], [Put("/x", b"1")])
        await following(watching)
        quiet = asyncio.ensure_future(following(watching))
        await asyncio.sleep(4)
        await client.transact([], [Put("/x", b"2")])
        assert len((await quiet).events) == 1

        await hang(own_etcd.pid)
        stopped = time.monotonic()
        with pytest.raises(WatchLost, match="no sign of life"):
            await following(watching)
        assert time.monotonic() - stopped < 10


async def test_closing_the_client_ends_what_waits(own_etcd: EtcdProcess) -> None:
    async with EtcdClient(own_etcd.endpoint, timeout_seconds=20) as client:
        watching = client.watch_prefix("/", 1)
        await client.transact([], [Put("/x", b"1")])
        await following(watching)
        await hang(own_etcd.pid)
        waiting = [
            asyncio.ensure_future(following(watching)),
            asyncio.ensure_future(client.get("/x")),
            asyncio.ensure_future(client.transact([], [Put("/x", b"2")])),
            asyncio.ensure_future(client.lease_renew(1)),
        ]
        await asyncio.sleep(0.2)
    async with asyncio.timeout(10):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [WatchLost, EtcdRejected, EtcdInDoubt, EtcdInDoubt]
    with pytest.raises(EtcdRejected, match="closed"):
        await client.get("/x")


# Doubt, and several endpoints


async def test_nothing_reachable_is_a_definite_no() -> None:
    (port,) = choose_ports(1)
    async with EtcdClient(f"127.0.0.1:{port}", timeout_seconds=0.3) as client:
        started = time.monotonic()
        with pytest.raises(EtcdRejected, match="no etcd endpoint can be reached"):
            await client.transact([], [Put("/x", b"")])
        assert time.monotonic() - started < 5


async def test_a_hung_etcd_leaves_a_transaction_in_doubt_and_executes_it_at_most_once(
    own_etcd: EtcdProcess,
) -> None:
    async with EtcdClient(own_etcd.endpoint, timeout_seconds=1.5) as client:
        before = await client.transact([], [Put("/x", b"0")])
        await hang(own_etcd.pid)
        with pytest.raises(EtcdInDoubt, match="DEADLINE_EXCEEDED"):
            await client.transact([], [Put("/x", b"1")])
        with pytest.raises(EtcdInDoubt):
            await client.lease_renew(1)
        with pytest.raises(EtcdRejected):
            await client.get("/x")
        os.kill(own_etcd.pid, signal.SIGCONT)
        entry = await read(client, "/x")
        assert entry is not None
        assert entry.mod_revision - before.revision <= 1


async def test_an_answer_lost_on_the_way_is_in_doubt_though_it_was_executed_once(
    etcd: EtcdProcess, prefix: str
) -> None:
    async with CuttableLink(etcd.endpoint) as link, EtcdClient(link.endpoint, timeout_seconds=20) as client:
        before = await client.transact([], [Put(prefix + "x", b"0")])
        link.swallow_answers()
        sending = asyncio.ensure_future(client.transact([], [Put(prefix + "x", b"1")]))
        async with EtcdClient(etcd.endpoint) as other:
            while (entry := await other.get(prefix + "x")) is None or entry.value != b"1":
                assert not sending.done()
                await asyncio.sleep(0.01)
        link.cut()
        with pytest.raises(EtcdInDoubt):
            await sending
        entry = await client.get(prefix + "x")
        assert entry is not None
        assert (entry.value, entry.mod_revision) == (b"1", before.revision + 1)


async def test_another_endpoint_is_used_when_one_is_dead_or_silent(etcd: EtcdProcess, prefix: str) -> None:
    (dead,) = choose_ports(1)
    async with CuttableLink(etcd.endpoint) as silent:
        silent.swallow_answers()
        endpoints = f"http://127.0.0.1:{dead},{silent.endpoint},{etcd.endpoint}"
        async with EtcdClient(endpoints, timeout_seconds=10) as client:
            for value in (b"1", b"2", b"3"):
                assert (await client.transact([], [Put(prefix + "x", value)])).succeeded


async def test_calls_move_on_when_the_endpoint_in_use_dies_or_hangs(etcd: EtcdProcess, prefix: str) -> None:
    async with (
        CuttableLink(etcd.endpoint) as first,
        CuttableLink(etcd.endpoint) as second,
        EtcdClient([first.endpoint, second.endpoint], timeout_seconds=5) as client,
    ):
        await client.transact([], [Put(prefix + "x", b"1")])
        for link in (first, second):
            link.swallow_answers()
        with pytest.raises(EtcdInDoubt):
            await client.transact([], [Put(prefix + "x", b"2")])
        second.heal()
        assert await client.get(prefix + "x") is not None
        await second.close()
        first.heal()
        entry = await client.get(prefix + "x")
        assert entry is not None
        assert (await client.transact([ValueEquals(prefix + "x", entry.value)], [])).succeeded


async def test_a_restarted_etcd_is_found_again_quickly(own_etcd: EtcdProcess) -> None:
    async with EtcdClient(own_etcd.endpoint, timeout_seconds=2) as client:
        await client.transact([], [Put("/x", b"1")])
        # As in `test_etcd_process`: this etcd may lose what it answered in the 0.1 s before a kill.
        await asyncio.sleep(0.5)
        own_etcd.kill()
        with pytest.raises(EtcdRejected):
            await client.get("/x")
        restarted = await own_etcd.restart()
        try:
            assert restarted.endpoint == own_etcd.endpoint
            ready = time.monotonic()
            entry = await read(client, "/x")
            assert time.monotonic() - ready < 10
            assert entry is not None
            assert entry.value == b"1"
        finally:
            await restarted.stop()
