"""The look for orphans: whom it reaches, what it presumes, and what it leaves to operators."""

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import cast

import pytest

from lockstep.core.branch_names import GenerationTag, GlobalId, ParticipantName, branch_xid, new_global_id
from lockstep.core.decision_log import LogView, OutcomeEntry, Verdict
from lockstep.core.errors import ErrorCode, InDoubt
from lockstep.core.postgres_gid import gid_of
from lockstep.runtime.decision_log import DecisionLogReader
from lockstep.runtime.etcd import EtcdClient
from services.coordinator.core.settings import CoordinatorLimits
from services.postgres_participant.database import Database, PreparedBranch
from services.postgres_participant.held_branch import BranchFacts, Connection, HeldBranch
from services.postgres_participant.orphan_watch import OrphanWatch
from services.postgres_participant.settings import ParticipantSettings

GENERATION = "12345678-and-so-on"
MINUTE = 60.0
DAY = 24 * 60 * MINUTE
SETTINGS = ParticipantSettings("db", "", "", "", "c", orphans_max=3)


def _gid(number: int, begun_seconds_ago: float, generation: str = GENERATION) -> str:
    begun_ms = int((time.time() - begun_seconds_ago) * 1000)
    global_id = new_global_id(begun_ms, number.to_bytes(10, "big"))
    return gid_of(branch_xid(global_id, 0, GenerationTag(generation[:8])))


class Rows(Database):
    """Prepared transactions in memory, and what was done to them."""

    def __init__(self, *branches: PreparedBranch) -> None:
        super().__init__("", 1, 1.0, SETTINGS.outcome_seconds)
        self.left = {branch.gid: branch for branch in branches}
        self.owners: dict[str, str] = {}
        self.failing: set[str] = set()
        self.repeated: set[str] = set()
        self.ended: dict[str, bool] = {}

    async def prepared(self) -> list[PreparedBranch]:
        return list(self.left.values())

    @contextlib.asynccontextmanager
    async def held(self, gid: str) -> AsyncIterator[HeldBranch]:
        yield Held(self, gid)


class Held(HeldBranch):
    def __init__(self, rows: Rows, gid: str) -> None:
        super().__init__(cast(Connection, None), gid, SETTINGS.outcome_seconds)
        self._rows = rows

    async def facts(self) -> BranchFacts:
        return BranchFacts(
            self._gid in self._rows.left,
            None,
            foreign_owner=self._rows.owners.get(self._gid, ""),
            is_repeated=self._gid in self._rows.repeated,
        )

    async def end(self, *, is_commit: bool) -> BranchFacts:
        if self._gid in self._rows.failing:
            raise InDoubt(ErrorCode.UNAVAILABLE, "busy")
        del self._rows.left[self._gid]
        self._rows.ended[self._gid] = is_commit
        return BranchFacts(False, is_commit)


class Log(DecisionLogReader):
    """Says the same of everything."""

    def __init__(self, view: LogView) -> None:
        super().__init__(cast(EtcdClient, None), "c")
        self._view = view

    async def read(self, global_id: GlobalId) -> LogView | None:
        return self._view


NOTHING = LogView(generation=GENERATION)


def _watch(rows: Rows, view: LogView = NOTHING) -> OrphanWatch:
    return OrphanWatch(SETTINGS, rows, Log(view))


@pytest.mark.parametrize("seconds", [-MINUTE / 2, MINUTE, 10 * MINUTE])
async def test_abort_is_presumed_while_the_log_would_still_have_a_commit(seconds: float) -> None:
    gid = _gid(1, seconds)
    rows = Rows(PreparedBranch(gid, MINUTE))
    await _watch(rows).look()
    assert rows.ended == {gid: False}


@pytest.mark.parametrize(
    ("seconds", "prepared_seconds"),
    [(12 * MINUTE, MINUTE), (3 * DAY, 3 * DAY), (MINUTE, 12 * MINUTE), (-2 * MINUTE, MINUTE)],
    ids=["a restored one", "a very old one", "by the database's clock", "by clocks that are wrong"],
)
async def test_nothing_is_presumed_of_what_the_log_may_have_forgotten(
    seconds: float, prepared_seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    gid = _gid(1, seconds)
    rows = Rows(PreparedBranch(gid, prepared_seconds))
    watch = _watch(rows)
    with caplog.at_level(logging.ERROR, "lockstep.postgres"):
        for _ in range(3):
            await watch.look()
    assert rows.ended == {}
    (said,) = caplog.messages
    assert "event=orphan_too_old" in said and gid in said


@pytest.mark.parametrize("verdict", Verdict)
async def test_what_the_log_says_is_done_however_old_the_branch_is(verdict: Verdict) -> None:
    gid = _gid(1, 3 * DAY)
    for view in (
        LogView(generation=GENERATION, decision=verdict),
        LogView(generation=GENERATION, outcome=OutcomeEntry(verdict)),
    ):
        rows = Rows(PreparedBranch(gid, 3 * DAY))
        await _watch(rows, view).look()
        assert rows.ended == {gid: verdict is Verdict.COMMIT}


@pytest.mark.parametrize(
    ("ended_seconds_ago", "is_commit"), [(MINUTE, True), (4 * MINUTE, False)], ids=["it voted", "repeated"]
)
async def test_what_was_prepared_behind_the_end_of_its_transaction_is_not_committed(
    ended_seconds_ago: float, is_commit: bool
) -> None:
    """A client prepared under the same name again: its first work is committed already."""
    gid = _gid(1, 5 * MINUTE)
    rows = Rows(PreparedBranch(gid, 2 * MINUTE))
    ended_ms = int((time.time() - ended_seconds_ago) * 1000)
    outcome = OutcomeEntry(Verdict.COMMIT, ended_ms=ended_ms)
    await _watch(rows, LogView(generation=GENERATION, outcome=outcome)).look()
    assert rows.ended == {gid: is_commit}


@pytest.mark.parametrize(
    ("names", "is_commit"),
    [
        (["grpc://h:1/db", "set:a"], True),
        (["grpc://h:1/as-it-was-named-before", "set:a"], True),
        (["set:a", "set:b"], False),
    ],
    ids=["its own", "under another name", "a set's"],
)
async def test_a_commit_that_was_decided_for_others_is_not_followed(
    names: list[str], is_commit: bool
) -> None:
    gid = _gid(1, MINUTE)
    rows = Rows(PreparedBranch(gid, MINUTE))
    outcome = OutcomeEntry(Verdict.COMMIT, participants=tuple(map(ParticipantName, names)))
    await _watch(rows, LogView(generation=GENERATION, outcome=outcome)).look()
    assert rows.ended == {gid: is_commit}


async def test_what_was_prepared_again_behind_its_commit_is_rolled_back_whatever_the_log_says() -> None:
    gid = _gid(1, MINUTE)
    rows = Rows(PreparedBranch(gid, MINUTE))
    rows.repeated = {gid}
    view = LogView(generation=GENERATION, outcome=OutcomeEntry(Verdict.COMMIT, ended_ms=0))
    await _watch(rows, view).look()
    assert rows.ended == {gid: False}


def test_the_participant_and_the_coordinators_have_the_same_times() -> None:
    limits = CoordinatorLimits()
    assert limits.outcome_ms == 1000 * SETTINGS.log_outcome_seconds
    assert limits.clock_ms == 1000 * SETTINGS.clock_seconds


async def test_those_that_wait_for_an_operator_do_not_keep_others_from_their_end() -> None:
    waiting = [_gid(number, MINUTE, "87654321") for number in range(3)]
    ours = [_gid(number, MINUTE) for number in range(3, 5)]
    rows = Rows(*(PreparedBranch(gid, MINUTE) for gid in [*waiting, *ours]))
    watch = _watch(rows)
    for _ in range(2):
        await watch.look()
    assert set(rows.ended) == set(ours)


async def test_one_that_waits_is_looked_at_again_while_others_come() -> None:
    first = _gid(0, MINUTE)
    rows = Rows(PreparedBranch(first, MINUTE))
    rows.failing = {first}
    watch = _watch(rows)
    with pytest.raises(InDoubt):
        await watch.look()
    rows.failing.clear()
    rows.left |= {
        gid: PreparedBranch(gid, MINUTE) for gid in (_gid(number, MINUTE) for number in range(1, 3))
    }
    await watch.look()
    assert rows.left == {}


async def test_one_that_fails_does_not_keep_others_from_their_end() -> None:
    gids = [_gid(number, MINUTE) for number in range(3)]
    rows = Rows(*(PreparedBranch(gid, MINUTE) for gid in gids))
    rows.failing = {gids[0]}
    watch = _watch(rows)
    with pytest.raises(InDoubt):
        await watch.look()
    with pytest.raises(InDoubt):
        await watch.look()
    assert list(rows.ended) == gids[1:]


async def test_those_of_other_transaction_managers_are_not_counted() -> None:
    gid = _gid(9, MINUTE)
    others = [PreparedBranch(f"lockstep:1:{number}:", DAY) for number in range(9)]
    rows = Rows(*others, PreparedBranch(gid, MINUTE))
    await _watch(rows).look()
    assert list(rows.ended) == [gid]


async def test_one_of_another_user_is_told_to_operators_once(caplog: pytest.LogCaptureFixture) -> None:
    gid = _gid(1, MINUTE)
    rows = Rows(PreparedBranch(gid, MINUTE))
    rows.owners[gid] = "application"
    watch = _watch(rows)
    with caplog.at_level(logging.ERROR, "lockstep.postgres"):
        for _ in range(3):
            await watch.look()
    assert rows.ended == {}
    (said,) = caplog.messages
    assert "event=orphan_of_another_user" in said and "application" in said
