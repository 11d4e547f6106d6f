"""What results of etcd mean to the coordinator's core."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from lockstep.core.branch_names import BranchName, GenerationTag, GlobalId, ParticipantName, new_global_id
from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import (
    DecisionKeys,
    Fate,
    ListRead,
    OutcomeEntry,
    ParticipantsEntry,
    SetBackWatch,
    Verdict,
    fate,
)
from lockstep.core.ids import BrokerId, Incarnation
from lockstep.core.stamps import NO_STAMPS, Stamps
from lockstep.core.xa import XaStatus
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.decision_log import DecisionLogReader
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.etcd_values import Entry, GetDone, TransactionResult
from services.coordinator.core.messages import (
    Decide,
    DeleteTransaction,
    KeepCommitted,
    LogInDoubt,
    LogRead,
    LogRefused,
    LogWritten,
    ReadLog,
    Ticket,
    WriteParticipants,
)
from services.coordinator.log_changes import AGE_MS_MAX, AnyLogChange, LogChanges
from services.coordinator.log_port import LogPort
from services.coordinator.presence import Presence
from tests.unit.services.etcd_in_memory import EtcdInMemory

TAG = GenerationTag("12345678")
ID = GlobalId(new_global_id(1, bytes(10)))
BRANCH = BranchName(ID, 0, TAG)
TICKET = Ticket(1)
READ = ReadLog(TICKET, ID)
WRITE = WriteParticipants(
    TICKET, ID, ParticipantsEntry((ParticipantName("set:a"),), TAG, Incarnation("me"), 1)
)
LISTED = ListRead(5, b"list")
DECIDE = Decide(TICKET, ID, LISTED, Verdict.ABORT, TAG)
DELETE = DeleteTransaction(TICKET, ID, LISTED, Verdict.COMMIT, OutcomeEntry(Verdict.COMMIT))


class Registration:
    """Of a coordinator that is there."""

    key = "/me"
    revision = 1
    generation: GenerationTag | None = TAG
    generation_value = b"12345678-"


def view_at(revision: int, generation: bytes = Registration.generation_value) -> TransactionResult:
    """Nothing of the transaction is there."""
    entry = Entry("generation", generation, 1, 1, 0)
    return TransactionResult(True, revision, [GetDone(entry), *[GetDone(None)] * 5])


def set_back() -> LogChanges:
    changes = LogChanges("c", Registration())
    changes.read(READ, view_at(7), changes.revision_seen, 0)
    changes.read(READ, view_at(6), changes.revision_seen, 0)
    return changes


def test_an_answer_that_was_overtaken_by_a_later_one_is_no_sign_of_an_etcd_set_back() -> None:
    changes = LogChanges("c", Registration())
    changes.read(READ, view_at(5), changes.revision_seen, 0)
    seen = changes.revision_seen
    assert isinstance(changes.read(READ, view_at(7), seen, 0), LogRead)
    assert isinstance(changes.read(READ, view_at(6), seen, 0), LogRead)
    assert isinstance(changes.read(READ, view_at(7), changes.revision_seen, 0), LogRead)


def test_an_answer_from_before_what_was_known_when_it_was_asked_for_is_in_doubt() -> None:
    changes = LogChanges("c", Registration())
    first = changes.revision_seen
    changes.read(READ, view_at(7), first, 0)
    changes.read(READ, view_at(6), first, 0)
    assert changes.read(READ, view_at(6), changes.revision_seen, 0) == LogInDoubt(TICKET)


def test_an_etcd_that_was_set_back_is_not_believed_when_its_revision_has_passed_what_was_seen() -> None:
    changes = set_back()
    for revision in (7, 8, 100):
        assert changes.read(READ, view_at(revision), changes.revision_seen, 0) == LogInDoubt(TICKET)
    assert isinstance(changes.read(READ, view_at(3, b"87654321-"), changes.revision_seen, 0), LogRead)


def test_an_etcd_that_was_set_back_is_written_no_list_and_no_decision() -> None:
    """Their compares would take what it lacks for something that never was."""
    changes = set_back()
    assert changes.change(WRITE, 0, 0) is None and changes.change(DECIDE, 0, 0) is None
    assert changes.change(DELETE, 0, 0) is not None, "of which every participant has acknowledged the end"


@pytest.mark.parametrize("effect", [WRITE, DECIDE])
def test_a_change_that_was_made_tells_of_an_etcd_set_back_too(effect: WriteParticipants | Decide) -> None:
    changes = LogChanges("c", Registration())
    for revision in (7, 6):
        done = changes.changed(effect, TransactionResult(True, revision, []), changes.revision_seen, 0)
        assert done == LogWritten(TICKET, revision), "made is made"
    assert changes.change(WRITE, 0, 0) is None


def test_an_operator_is_told_once_of_an_etcd_that_was_set_back(caplog: pytest.LogCaptureFixture) -> None:
    changes = set_back()
    changes.read(READ, view_at(8), changes.revision_seen, 0)
    (told,) = caplog.records
    assert told.levelno == logging.ERROR
    assert told.getMessage().startswith("event=log_set_back revision=6 generation=12345678- seen=7 ")


async def test_nothing_is_decided_in_an_etcd_of_which_a_disk_has_seen_more() -> None:
    etcd = EtcdInMemory()
    presence = Presence(cast(EtcdClient, etcd), "c", Incarnation("me"), "here:1", 5)
    port = LogPort(cast(EtcdClient, etcd), "c", presence, 60_000)
    etcd.put(Keys("c").generation, Registration.generation_value)
    etcd.put(presence.key, b"")
    presence.revision, presence.generation = etcd.revision, TAG
    presence.generation_value = Registration.generation_value
    written = await port.perform(WRITE, boottime_ms())
    assert isinstance(written, LogWritten)
    etcd.put(Keys("c").set_back, b"the disk d of b1 has seen revision 900, etcd is at 100")
    listed = ListRead(written.revision, WRITE.entry.encode())
    decide = Decide(TICKET, WRITE.global_id, listed, Verdict.ABORT, TAG)
    assert await port.perform(decide, boottime_ms()) == LogInDoubt(TICKET)
    assert await port.perform(READ, boottime_ms()) == LogInDoubt(TICKET)
    del etcd.entries[Keys("c").set_back]
    assert isinstance(await port.perform(decide, boottime_ms()), LogWritten)


async def test_a_change_that_was_asked_for_before_a_sleep_does_not_leave_behind_it() -> None:
    """Another may have decided meanwhile, and etcd have been set back behind that: the list stands as it was read."""
    etcd = EtcdInMemory()
    port, written = await with_list(etcd)
    decide = Decide(TICKET, ID, ListRead(written.revision, WRITE.entry.encode()), Verdict.COMMIT, TAG)
    assert await port.perform(decide, boottime_ms() - AGE_MS_MAX - 1) == LogInDoubt(TICKET)
    assert DecisionKeys("c").decision(ID) not in etcd.entries
    assert isinstance(await port.perform(decide, boottime_ms()), LogWritten)


async def test_what_the_presence_has_seen_counts_for_the_log_too() -> None:
    etcd = EtcdInMemory()
    presence = Presence(cast(EtcdClient, etcd), "c", Incarnation("me"), "here:1", 5)
    port = LogPort(cast(EtcdClient, etcd), "c", presence, 60_000)
    etcd.put(Keys("c").generation, Registration.generation_value)
    assert isinstance(await port.perform(READ, boottime_ms()), LogRead)
    presence.watch.take(etcd.revision + 5, TAG, presence.watch.seen)
    assert await port.perform(READ, boottime_ms()) == LogInDoubt(TICKET)


async def with_list(etcd: EtcdInMemory) -> tuple[LogPort, LogWritten]:
    """A port of a registered coordinator that has written its list."""
    presence = cast(Presence, Registration())
    presence.watch = SetBackWatch()
    port = LogPort(cast(EtcdClient, etcd), "c", presence, 60_000)
    etcd.put(Keys("c").generation, Registration.generation_value)
    etcd.put(presence.key, b"")
    presence.revision = etcd.entries[presence.key].mod_revision
    written = await port.perform(WRITE, boottime_ms())
    assert isinstance(written, LogWritten)
    return port, written


async def test_a_decision_may_change_the_list_and_who_deletes_it_knows_that() -> None:
    etcd, keys = EtcdInMemory(), DecisionKeys("c")
    port, written = await with_list(etcd)
    finished = replace(WRITE.entry, finished=(0,))
    listed = ListRead(written.revision, WRITE.entry.encode())
    decided = await port.perform(
        Decide(TICKET, ID, listed, Verdict.COMMIT, TAG, entry=finished), boottime_ms()
    )
    assert isinstance(decided, LogWritten)
    entry = etcd.entries[keys.participants(ID)]
    assert ParticipantsEntry.decode(entry.value) == finished and entry.mod_revision == decided.revision


async def test_hazards_without_an_outcome_stay_until_they_are_forgotten_and_leave_none() -> None:
    etcd, keys = EtcdInMemory(), DecisionKeys("c")
    port, written = await with_list(etcd)
    listed = ListRead(written.revision, WRITE.entry.encode())
    hazards = ((ParticipantName("set:b"), "heuristically committed"),)
    kept = OutcomeEntry(Verdict.ABORT, hazards, XaStatus.HEURMIX, is_known=False)
    deletion = DeleteTransaction(TICKET, ID, listed, None, kept)
    assert isinstance(await port.perform(deletion, boottime_ms()), LogWritten)
    entry = etcd.entries[keys.heuristic(ID)]
    assert OutcomeEntry.decode(entry.value) == kept and entry.lease_id == 0
    assert keys.outcome(ID) not in etcd.entries
    assert await port.forget(ID)
    assert not {keys.heuristic(ID), keys.outcome(ID)} & etcd.entries.keys()


async def test_an_outcome_with_hazards_stays_as_these_do_and_goes_like_others_when_they_are_forgotten() -> (
    None
):
    etcd, keys = EtcdInMemory(), DecisionKeys("c")
    port, written = await with_list(etcd)
    listed = ListRead(written.revision, WRITE.entry.encode())
    hazards = ((ParticipantName("set:b"), "heuristically committed"),)
    kept = OutcomeEntry(Verdict.ABORT, hazards, XaStatus.HEURMIX)
    deletion = DeleteTransaction(TICKET, ID, listed, None, kept)
    assert isinstance(await port.perform(deletion, boottime_ms()), LogWritten)
    entries = [etcd.entries[key(ID)] for key in (keys.heuristic, keys.outcome)]
    assert [(OutcomeEntry.decode(entry.value), entry.lease_id) for entry in entries] == [(kept, 0)] * 2
    assert await port.forget(ID)
    assert keys.heuristic(ID) not in etcd.entries and etcd.entries[keys.outcome(ID)].lease_id


def test_a_list_of_an_older_version_has_nobody_finished() -> None:
    encoded = WRITE.entry.encode().replace(b'"finished":[],', b"")
    assert b"finished" not in encoded and ParticipantsEntry.decode(encoded) == WRITE.entry


# Revisions that are given once more


OTHERS = ParticipantsEntry(WRITE.entry.participants, TAG, Incarnation("another"), 2)
COMMITTED = replace(WRITE.entry, committed=(0,))
CHANGES: dict[str, Callable[[ListRead], AnyLogChange]] = {
    "decide": lambda listed: Decide(TICKET, ID, listed, Verdict.ABORT, TAG),
    "decide, and say who is finished": lambda listed: Decide(
        TICKET, ID, listed, Verdict.ABORT, TAG, entry=replace(WRITE.entry, finished=(0,))
    ),
    "sign": lambda listed: replace(WRITE, replaces=listed),
    "delete what needs no decision": lambda listed: DeleteTransaction(TICKET, ID, listed, None, None),
    "delete": lambda listed: DeleteTransaction(TICKET, ID, listed, Verdict.COMMIT, DELETE.outcome),
    "keep": lambda listed: KeepCommitted(TICKET, ID, listed, COMMITTED),
}


@pytest.mark.parametrize("what", CHANGES)
async def test_a_change_does_not_fall_on_what_another_wrote_at_the_same_revision(what: str) -> None:
    """etcd comes back from a backup, and gives a revision once more; nobody has noticed yet."""
    etcd, keys = EtcdInMemory(), DecisionKeys("c")
    port, written = await with_list(etcd)
    change = CHANGES[what](ListRead(written.revision, WRITE.entry.encode()))
    etcd.revision = written.revision - 1
    etcd.put(keys.participants(ID), OTHERS.encode())
    if what in ("delete", "keep"):
        etcd.put(keys.decision(ID), Verdict.COMMIT.encode())
    before = dict(etcd.entries)
    assert before[keys.participants(ID)].mod_revision == written.revision
    assert isinstance(await port.perform(change, boottime_ms()), LogRefused)
    assert etcd.entries == before


# Roll calls


class Left:
    """An etcd in which a coordinator that is gone has left a list undecided, or a branch nothing, and a broker is a witness."""

    def __init__(self) -> None:
        self.etcd, self.keys = EtcdInMemory(), Keys("c")
        self.etcd.put(self.keys.generation, b"12345678-0000")
        self.stamp(NO_STAMPS.answered(BrokerId("b"), "b/1"))

    def list_of(self, owner: str) -> None:
        entry = ParticipantsEntry((ParticipantName("set:a"),), TAG, Incarnation(owner), 1)
        self.etcd.put(DecisionKeys("c").participants(ID), entry.encode())

    def stamp(self, stamps: Stamps) -> None:
        self.etcd.put(self.keys.stamps, stamps.encode())

    @property
    def stamps(self) -> Stamps:
        return Stamps.decode(self.etcd.entries[self.keys.stamps].value)


@pytest.mark.parametrize(("owner", "is_asked"), [("gone", True), ("me", False)])
async def test_the_roll_is_called_for_what_another_has_left_undecided(owner: str, is_asked: bool) -> None:
    left = Left()
    left.list_of(owner)
    etcd = cast(EtcdClient, left.etcd)
    port = LogPort(etcd, "c", Presence(etcd, "c", Incarnation("me"), "", 1), 1_000)

    async def is_unattested() -> bool:
        answer = await port.perform(READ, boottime_ms())
        assert isinstance(answer, LogRead)
        return answer.view.is_unattested

    assert await is_unattested()
    assert left.stamps.silent == (("b",) if is_asked else ())
    assert await is_unattested(), "nobody has answered yet"
    left.stamp(left.stamps.answered(BrokerId("b"), "b/1"))
    assert await is_unattested() is not is_asked


async def test_the_roll_is_called_for_a_decision_that_needs_it_whoever_has_the_list() -> None:
    left = Left()
    left.list_of("me")
    etcd, keys = cast(EtcdClient, left.etcd), DecisionKeys("c")
    presence = cast(Presence, Registration())
    presence.watch = SetBackWatch()
    port = LogPort(etcd, "c", presence, 1_000)
    left.etcd.put(left.keys.generation, Registration.generation_value)
    found = left.etcd.entries[keys.participants(ID)]
    listed = ListRead(found.mod_revision, found.value)
    decide = Decide(TICKET, ID, listed, Verdict.ABORT, TAG, needs_roll=True)
    assert await port.perform(decide, boottime_ms()) == LogInDoubt(TICKET)
    assert left.stamps.silent == ("b",)
    assert await port.perform(decide, boottime_ms()) == LogInDoubt(TICKET), "nobody has answered yet"
    assert keys.decision(ID) not in left.etcd.entries
    left.stamp(left.stamps.answered(BrokerId("b"), "b/1"))
    assert isinstance(await port.perform(decide, boottime_ms()), LogWritten)
    assert left.etcd.entries[keys.decision(ID)].value == Verdict.ABORT.encode()


async def test_the_roll_is_called_for_an_abort_that_needs_it_where_nothing_is_written() -> None:
    left = Left()
    etcd, keys = cast(EtcdClient, left.etcd), DecisionKeys("c")
    presence = cast(Presence, Registration())
    presence.watch = SetBackWatch()
    port = LogPort(etcd, "c", presence, 1_000)
    left.etcd.put(left.keys.generation, Registration.generation_value)
    left.etcd.put(Registration.key, b"")
    presence.revision = left.etcd.entries[Registration.key].mod_revision
    write = replace(WRITE, decision=Verdict.ABORT, needs_roll=True)
    for _ in range(2):
        assert await port.perform(write, boottime_ms()) == LogInDoubt(TICKET), "nobody has answered yet"
        assert left.stamps.silent == ("b",) and keys.participants(ID) not in left.etcd.entries
    left.stamp(left.stamps.answered(BrokerId("b"), "b/1"))
    assert isinstance(await port.perform(write, boottime_ms()), LogWritten)
    assert left.etcd.entries[keys.decision(ID)].value == Verdict.ABORT.encode()


async def test_a_branch_that_finds_nothing_presumes_only_when_the_roll_was_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    left = Left()
    reader = DecisionLogReader(cast(EtcdClient, left.etcd), "c")
    view = await reader.read(ID)
    assert (
        view is not None and fate(view, BRANCH, "set:a".__eq__) is Fate.WAIT and left.stamps.silent == ("b",)
    )
    (told,) = caplog.records
    assert told.getMessage().startswith("event=roll_call_unanswered silent=b: ")
    left.stamp(left.stamps.answered(BrokerId("b"), "b/2"))
    view = await reader.read(ID)
    assert view is not None and fate(view, BRANCH, "set:a".__eq__) is Fate.ROLL_BACK
    left.stamp(NO_STAMPS.answered(BrokerId("b"), "b/1"))
    view = await DecisionLogReader(cast(EtcdClient, left.etcd), "c").read(ID)
    assert view is not None and fate(view, BRANCH, "set:a".__eq__) is Fate.WAIT, (
        "another process calls for itself"
    )


async def test_without_witnesses_nobody_is_asked() -> None:
    left = Left()
    del left.etcd.entries[left.keys.stamps]
    view = await DecisionLogReader(cast(EtcdClient, left.etcd), "c").read(ID)
    assert view is not None and fate(view, BRANCH, "set:a".__eq__) is Fate.ROLL_BACK
