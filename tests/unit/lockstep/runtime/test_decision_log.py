"""Reads of the decision log, and what is believed of an etcd that was set back."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from lockstep.core.branch_names import BranchName, ParticipantName, generation_tag, new_global_id
from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import (
    DecisionKeys,
    Fate,
    LoggedParticipants,
    ParticipantsEntry,
    RevisionSeen,
    SetBackWatch,
    Verdict,
    fate,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Incarnation
from lockstep.runtime.decision_log import LISTED_AT_ONCE, LISTED_MAX, DecisionLogReader
from lockstep.runtime.etcd import EtcdClient, EtcdRejected
from lockstep.runtime.etcd_values import Compare, Entry, Get, GetDone, TransactionResult

FIRST, SECOND = "aaaaaaaa-1", "bbbbbbbb-2"
ID = new_global_id(1, bytes(10))
BRANCH = BranchName(ID, 0, generation_tag(FIRST))


class Etcd:
    """Answers reads as the test says."""

    def __init__(self) -> None:
        self.revision = 100
        self.generation = FIRST
        self.values: dict[str, bytes] = {}

    async def transact(self, _: Sequence[Compare], reads: Sequence[Get]) -> TransactionResult:
        values = {**self.values, Keys("c").generation: self.generation.encode()}
        found = [
            GetDone(Entry(one.key, values[one.key], 1, 1, 0) if one.key in values else None) for one in reads
        ]
        return TransactionResult(True, self.revision, found)


def committed() -> dict[str, bytes]:
    keys, names = DecisionKeys("c"), (ParticipantName("set:a"), ParticipantName("set:b"))
    entry = ParticipantsEntry(names, generation_tag(FIRST), Incarnation("me"), 1)
    return {keys.participants(ID): entry.encode(), keys.decision(ID): Verdict.COMMIT.encode()}


async def test_histories_13_and_26_what_an_etcd_lacks_that_was_set_back_is_never_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not either when its revision has passed what was seen: that branch's decision was COMMIT."""
    etcd = Etcd()
    reader = DecisionLogReader(cast(EtcdClient, etcd), "c")
    etcd.values = committed()
    view = await reader.read(ID)
    assert view is not None and fate(view, BRANCH, "set:a".__eq__) is Fate.COMMIT
    etcd.values = {}
    for revision in (90, 95, 100, 101, 1_000):
        etcd.revision = revision
        assert await reader.read(ID) is None
    (told,) = caplog.records
    assert told.levelno == logging.ERROR and "event=log_set_back revision=90" in told.getMessage()
    etcd.generation = SECOND
    view = await reader.read(ID)
    assert view is not None and fate(view, BRANCH, "set:a".__eq__) is Fate.ASK_AN_OPERATOR


async def test_a_new_etcd_with_a_new_generation_is_believed_from_its_first_revision() -> None:
    etcd = Etcd()
    reader = DecisionLogReader(cast(EtcdClient, etcd), "c")
    await reader.read(ID)
    etcd.revision, etcd.generation = 3, SECOND
    view = await reader.read(ID)
    assert view is not None and view.revision == 3


async def test_nothing_is_concluded_from_an_etcd_of_which_a_disk_has_seen_more() -> None:
    """This process has seen nothing; the disk's has had etcd say so."""
    etcd = Etcd()
    reader = DecisionLogReader(cast(EtcdClient, etcd), "c")
    etcd.values = {Keys("c").set_back: b"the disk d of b1 has seen revision 900, etcd is at 100"}
    assert await reader.read(ID) is None
    etcd.values, etcd.generation = {}, SECOND
    view = await reader.read(ID)
    assert view is not None and fate(view, BRANCH, "set:a".__eq__) is Fate.ASK_AN_OPERATOR


# Lists


class Pages:
    """Of participants, as etcd gives them."""

    def __init__(self, count: int) -> None:
        keys, names = DecisionKeys("c"), (ParticipantName("set:a"),)
        value = ParticipantsEntry(names, generation_tag(FIRST), Incarnation("me"), 1).encode()
        ids = [new_global_id(number, bytes(10)) for number in range(count)]
        self.entries = [Entry(keys.participants(one), value, 1, 1, 0) for one in ids]
        self.asked = 0
        self.is_away = False

    async def get_page(self, prefix: str, after: str, limit: int) -> list[Entry]:
        if self.is_away:
            raise EtcdRejected(ErrorCode.UNAVAILABLE, "away")
        self.asked += 1
        return [one for one in self.entries if one.key > prefix + after][:limit]


OWN = ParticipantName("set:a")
LATER_MS = 1_000_000


@pytest.mark.parametrize("count", [0, 1, 2 * LISTED_AT_ONCE, LISTED_MAX + 1])
async def test_what_is_not_over_is_listed_the_oldest_first_and_not_without_end(count: int) -> None:
    pages = Pages(count)
    found = await DecisionLogReader(cast(EtcdClient, pages), "c").list(OWN, LATER_MS)
    assert found is not None and len(found.lists) == min(count, LISTED_MAX)
    assert [global_id for global_id, _ in found.lists] == [
        new_global_id(one, bytes(10)) for one in range(len(found.lists))
    ]
    # Others may have been begun in the millisecond of the last one.
    assert found.seen_up_to_ms == (None if count <= LISTED_MAX else LISTED_MAX - 2)
    assert pages.asked <= LISTED_MAX // LISTED_AT_ONCE


async def test_whoever_is_awaited_is_listed_behind_thousands_of_others() -> None:
    pages, names = Pages(5_000), (ParticipantName("set:b"), OWN, ParticipantName("set:c"))
    tag, keys = generation_tag(FIRST), DecisionKeys("c")
    values = [
        ParticipantsEntry((names[0],), tag, Incarnation("me"), 1),
        ParticipantsEntry(names, tag, Incarnation("me"), 1, committed=(1,)),
        ParticipantsEntry(names, tag, Incarnation("me"), 1, finished=(1,)),
    ]
    for number, entry in enumerate(pages.entries):
        pages.entries[number] = replace(entry, value=values[number % 3].encode())
    awaiting = ParticipantsEntry(names, tag, Incarnation("me"), 1, committed=(0, 2))
    last = new_global_id(5_000, bytes(10))
    pages.entries.append(Entry(keys.participants(last), awaiting.encode(), 1, 1, 0))
    found = await DecisionLogReader(cast(EtcdClient, pages), "c").list(OWN, LATER_MS)
    assert found == LoggedParticipants(((last, awaiting),))


async def test_what_was_begun_later_than_anybody_wants_to_know_of_is_not_read() -> None:
    pages = Pages(10 * LISTED_AT_ONCE)
    found = await DecisionLogReader(cast(EtcdClient, pages), "c").list(OWN, LISTED_AT_ONCE)
    assert found is not None and len(found.lists) == LISTED_AT_ONCE + 1 and found.seen_up_to_ms is None
    assert pages.asked == 2


async def test_a_list_passes_by_what_nobody_understands_and_is_none_without_etcd() -> None:
    pages = Pages(2)
    pages.entries.insert(1, Entry(f"{DecisionKeys('c').all_participants}x", b"?", 1, 1, 0))
    reader = DecisionLogReader(cast(EtcdClient, pages), "c")
    found = await reader.list(OWN, LATER_MS)
    assert found is not None and len(found.lists) == 2
    pages.is_away = True
    assert await reader.list(OWN, LATER_MS) is None


# The watch


def seen(*answers: tuple[int, str]) -> SetBackWatch:
    """Each asked when the one before was answered."""
    watch = SetBackWatch()
    for revision, generation in answers:
        watch.take(revision, generation, watch.seen)
    return watch


def test_a_revision_that_stays_or_grows_is_believed() -> None:
    watch = seen((5, FIRST), (5, FIRST), (7, FIRST))
    assert not watch.is_set_back and watch.seen == RevisionSeen(7, generation_tag(FIRST))


def test_answers_that_overtook_each_other_are_believed() -> None:
    watch = SetBackWatch()
    asked = watch.seen
    assert all(watch.take(revision, FIRST, asked) for revision in (7, 5, 6))
    assert watch.take(7, FIRST, watch.seen)


def test_a_generation_of_before_is_set_back_even_at_a_higher_revision() -> None:
    """A backup of before the map was rebuilt: what was begun in that generation is not to be presumed aborted again."""
    watch = seen((5, FIRST), (7, SECOND), (9, FIRST))
    assert watch.is_set_back
    assert not watch.take(10, SECOND, watch.seen), "what it got meanwhile is not known"
    assert watch.take(1, "cccccccc-3", watch.seen)


def test_an_etcd_that_has_lost_its_generation_gets_a_new_one() -> None:
    watch = seen((5, FIRST), (1, ""))
    assert watch.take(2, SECOND, watch.seen)
    assert not watch.take(20, FIRST, watch.seen)


@pytest.mark.parametrize("revision", [6, 600])
def test_an_answer_that_a_change_of_the_generation_overtook_says_nothing(revision: int) -> None:
    watch = seen((5, FIRST))
    asked = watch.seen
    assert watch.take(3, SECOND, asked)
    assert not watch.take(revision, FIRST, asked)
    assert not watch.is_set_back and watch.take(3, SECOND, watch.seen)


def test_an_answer_of_another_etcd_than_it_was_asked_for_is_not_compared_with_what_was_known_then() -> None:
    watch = seen((500, FIRST))
    asked = watch.seen
    assert watch.take(3, SECOND, asked) and watch.take(8, SECOND, watch.seen)
    assert watch.take(4, SECOND, asked) and not watch.is_set_back
