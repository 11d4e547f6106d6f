"""The decision log in a real etcd: each compare that T3 rests on, and what a refusal says."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from lockstep.core.branch_names import GlobalId, ParticipantName, generation_tag, new_global_id
from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import (
    DecisionKeys,
    ListRead,
    LogView,
    OutcomeEntry,
    ParticipantsEntry,
    Verdict,
)
from lockstep.core.ids import Incarnation
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.decision_log import DecisionLogReader
from lockstep.runtime.etcd import Delete, EtcdClient, Put
from lockstep.runtime.etcd_process import EtcdProcess
from services.coordinator.core.messages import (
    Decide,
    DeleteTransaction,
    ListLog,
    LogInDoubt,
    LogListed,
    LogRefused,
    LogWritten,
    Ticket,
    WriteParticipants,
)
from services.coordinator.log_changes import AnyLogAnswer, AnyLogEffect
from services.coordinator.log_port import LogPort
from services.coordinator.presence import Presence

CLUSTER = "log"
T = Ticket(1)
ME = Incarnation("me")
_ids = iter(range(1_000))


class Log:
    """A registered coordinator's log."""

    def __init__(self, etcd: EtcdClient) -> None:
        self.etcd = etcd
        self.presence = Presence(etcd, CLUSTER, ME, "here:1", 5)
        self.port = LogPort(etcd, CLUSTER, self.presence, 60_000)
        self.keys = DecisionKeys(CLUSTER)

    async def perform(self, effect: AnyLogEffect) -> AnyLogAnswer:
        return await self.port.perform(effect, boottime_ms())

    def entry(self, *, is_closed: bool = False) -> ParticipantsEntry:
        assert self.presence.generation is not None
        return ParticipantsEntry((ParticipantName("set:a"),), self.presence.generation, ME, 1, is_closed)

    async def write(self, global_id: GlobalId, *, is_closed: bool = False) -> ListRead:
        entry = self.entry(is_closed=is_closed)
        done = await self.perform(WriteParticipants(T, global_id, entry))
        assert isinstance(done, LogWritten)
        return ListRead(done.revision, entry.encode())

    def decide(self, global_id: GlobalId, expected: ListRead, verdict: Verdict) -> Decide:
        assert self.presence.generation is not None
        return Decide(T, global_id, expected, verdict, self.presence.generation)

    async def view(self, global_id: GlobalId) -> LogView:
        view = await DecisionLogReader(self.etcd, CLUSTER).read(global_id)
        assert view is not None
        return view


@pytest.fixture
async def log(client: EtcdClient) -> AsyncGenerator[Log]:
    log = Log(client)
    running = asyncio.ensure_future(log.presence.run())
    await log.presence.registered()
    yield log
    running.cancel()
    await log.presence.end()


@pytest.fixture
def global_id() -> GlobalId:
    return new_global_id(next(_ids), bytes(10))


async def test_participants_decision_and_outcome_follow_each_other(log: Log, global_id: GlobalId) -> None:
    listed = await log.write(global_id)
    view = await log.view(global_id)
    assert (view.participants, view.list_read, view.decision) == (log.entry(), listed, None)
    assert isinstance(await log.perform(log.decide(global_id, listed, Verdict.COMMIT)), LogWritten)
    outcome = OutcomeEntry(Verdict.COMMIT)
    done = await log.perform(DeleteTransaction(T, global_id, listed, Verdict.COMMIT, outcome))
    assert isinstance(done, LogWritten)
    view = await log.view(global_id)
    assert (view.participants, view.decision, view.outcome) == (None, None, outcome)
    kept = await log.etcd.get(log.keys.outcome(global_id))
    assert kept is not None and kept.lease_id != 0


async def test_the_first_decision_stays(log: Log, global_id: GlobalId) -> None:
    listed = await log.write(global_id)
    await log.perform(log.decide(global_id, listed, Verdict.ABORT))
    refused = await log.perform(log.decide(global_id, listed, Verdict.COMMIT))
    assert isinstance(refused, LogRefused) and refused.view.decision is Verdict.ABORT


async def test_history_5_a_decision_needs_the_very_entry_that_was_written(
    log: Log, global_id: GlobalId
) -> None:
    listed = await log.write(global_id)
    await log.perform(DeleteTransaction(T, global_id, listed, None, None))
    refused = await log.perform(log.decide(global_id, listed, Verdict.COMMIT))
    assert isinstance(refused, LogRefused) and refused.view.participants is None
    again = await log.write(global_id)
    refused = await log.perform(log.decide(global_id, listed, Verdict.COMMIT))
    assert isinstance(refused, LogRefused) and refused.view.list_read == again


async def test_what_has_an_outcome_is_not_begun_again(log: Log, global_id: GlobalId) -> None:
    listed = await log.write(global_id)
    outcome = OutcomeEntry(Verdict.ABORT)
    await log.perform(DeleteTransaction(T, global_id, listed, None, outcome))
    refused = await log.perform(WriteParticipants(T, global_id, log.entry()))
    assert isinstance(refused, LogRefused) and refused.view.outcome == outcome


async def test_participants_are_written_once(log: Log, global_id: GlobalId) -> None:
    listed = await log.write(global_id)
    refused = await log.perform(WriteParticipants(T, global_id, log.entry()))
    assert isinstance(refused, LogRefused) and refused.view.list_read == listed


async def test_a_closed_list_is_signed_by_one_coordinator(log: Log, global_id: GlobalId) -> None:
    closed = await log.write(global_id, is_closed=True)
    first = await log.perform(WriteParticipants(T, global_id, log.entry(), replaces=closed))
    second = await log.perform(WriteParticipants(T, global_id, log.entry(), replaces=closed))
    assert isinstance(first, LogWritten) and isinstance(second, LogRefused)
    assert isinstance(await log.perform(log.decide(global_id, closed, Verdict.ABORT)), LogRefused)


async def test_an_abort_is_written_with_its_participants(log: Log, global_id: GlobalId) -> None:
    done = await log.perform(WriteParticipants(T, global_id, log.entry(), decision=Verdict.ABORT))
    assert isinstance(done, LogWritten)
    view = await log.view(global_id)
    assert (view.participants_revision, view.decision) == (done.revision, Verdict.ABORT)


async def test_whoever_lost_its_presence_begins_nothing(log: Log, global_id: GlobalId) -> None:
    await log.etcd.transact([], [Delete(log.presence.key)])
    refused = await log.perform(WriteParticipants(T, global_id, log.entry()))
    assert isinstance(refused, LogRefused) and refused.view.participants is None


async def test_nothing_is_begun_or_decided_in_another_history(log: Log, global_id: GlobalId) -> None:
    entry, key = log.entry(), Keys(CLUSTER).generation
    begun = new_global_id(next(_ids), bytes(10))
    listed = await log.write(begun)
    decide = log.decide(begun, listed, Verdict.ABORT)
    kept = await log.etcd.get(key)
    assert kept is not None
    try:
        await log.etcd.transact([], [Put(key, b"another-history")])
        refused = await log.perform(WriteParticipants(T, global_id, entry))
        assert isinstance(refused, LogRefused)
        assert generation_tag(refused.view.generation) != entry.generation
        refused = await log.perform(decide)
        assert isinstance(refused, LogRefused) and refused.view.decision is None
    finally:
        await log.etcd.transact([], [Put(key, kept.value)])


async def test_only_what_stands_as_it_was_is_deleted(log: Log, global_id: GlobalId) -> None:
    listed = await log.write(global_id)
    await log.perform(log.decide(global_id, listed, Verdict.COMMIT))
    for wrong in (None, Verdict.ABORT):
        refused = await log.perform(DeleteTransaction(T, global_id, listed, wrong, None))
        assert isinstance(refused, LogRefused) and refused.view.decision is Verdict.COMMIT


async def test_a_listing_shows_all_but_what_it_cannot_read(log: Log, global_id: GlobalId) -> None:
    written = await log.write(global_id)
    await log.perform(log.decide(global_id, written, Verdict.COMMIT))
    strange = new_global_id(next(_ids), b"strange---")
    await log.etcd.transact(
        [], [Put(log.keys.participants(strange), b"?"), Put(log.keys.all_decisions + "x", b"")]
    )
    listed = await log.perform(ListLog(T))
    assert isinstance(listed, LogListed)
    shown = {one.global_id: one for one in listed.transactions}
    assert (shown[global_id].read, shown[global_id].decision) == (written, Verdict.COMMIT)
    assert strange not in shown and ME in listed.owners
    assert isinstance(await log.perform(log.decide(strange, ListRead(1, b"?"), Verdict.ABORT)), LogInDoubt)
    assert await DecisionLogReader(log.etcd, CLUSTER).read(strange) is None


async def test_an_etcd_that_is_gone_leaves_everything_in_doubt(global_id: GlobalId) -> None:
    async with EtcdClient("http://127.0.0.1:1", 0.2) as nowhere:
        log = Log(nowhere)
        log.presence.revision, log.presence.generation = 1, generation_tag("0" * 8)
        effects = (
            WriteParticipants(T, global_id, log.entry()),
            log.decide(global_id, ListRead(1), Verdict.COMMIT),
            DeleteTransaction(T, global_id, ListRead(1), None, OutcomeEntry(Verdict.COMMIT)),
            ListLog(T),
        )
        assert {type(await log.perform(effect)) for effect in effects} == {LogInDoubt}
        assert await DecisionLogReader(nowhere, CLUSTER).read(global_id) is None


async def test_presence_is_renewed_and_comes_back(etcd: EtcdProcess) -> None:
    async with EtcdClient(etcd.endpoint) as client:
        presence = Presence(client, "presence", ME, "here:1", 4)
        running = asyncio.ensure_future(presence.run())
        await presence.registered()
        first = presence.revision
        await asyncio.sleep(4.5)
        assert presence.revision == first and await client.get(presence.key) is not None
        entry = await client.get(presence.key)
        assert entry is not None and entry.value == b"here:1"
        await client.lease_revoke(entry.lease_id)
        while presence.revision in (0, first):
            await asyncio.sleep(0.05)
        running.cancel()
        await presence.end()
        assert await client.get(presence.key) is None
