"""Names of branches, the log's entries, PostgreSQL's gids, and what a prepared branch concludes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.branch_names import (
    FORMAT_ID,
    PARTICIPANTS_MAX,
    BranchName,
    GlobalId,
    ParticipantName,
    begun_ms,
    branch_encodings,
    branch_name,
    branch_xid,
    generation_tag,
    is_ours,
    new_global_id,
    parse_global_id,
)
from lockstep.core.decision_log import (
    CLOCK_MS,
    DecisionKeys,
    Fate,
    LogView,
    OutcomeEntry,
    ParticipantsEntry,
    Verdict,
    fate,
)
from lockstep.core.ids import Incarnation
from lockstep.core.postgres_gid import GID_BYTES_MAX, gid_of, xid_of
from lockstep.core.xid import Xid

GENERATION = "0f4c6a2e-3c54-4d5b-9f0e-111111111111"
TAG = generation_tag(GENERATION)
ID = new_global_id(1_700_000_000_000, b"0123456789")
ENTRY = ParticipantsEntry((ParticipantName("set:a"), ParticipantName("")), TAG, Incarnation("c"), 7, True)

BRANCH = BranchName(ID, 0, TAG)
SETS = ParticipantName("set:a"), ParticipantName("set:b")

xids = st.builds(Xid, st.integers(0, 2**31 - 1), st.binary(min_size=1, max_size=64), st.binary(max_size=64))


def test_a_global_id_says_when_it_was_begun() -> None:
    assert begun_ms(ID) == 1_700_000_000_000
    assert parse_global_id(ID.hex()) == ID
    assert sorted([new_global_id(2, bytes(10)), new_global_id(1, b"\xff" * 10)])[0][:6] == b"\0\0\0\0\0\1"


@pytest.mark.parametrize("text", ["", "00", "z" * 32, "0" * 31, "0" * 33, "ä" * 32])
def test_what_is_no_global_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_global_id(text)


def test_a_branch_says_its_transaction_its_place_and_its_history() -> None:
    xid = branch_xid(ID, 12, TAG)
    assert list(branch_encodings(ID, TAG))[12] == xid.encode()
    assert len(list(branch_encodings(ID, TAG))) == PARTICIPANTS_MAX
    assert xid == Xid(FORMAT_ID, ID, b"12:0f4c6a2e")
    assert is_ours(xid)
    assert branch_name(xid) == BranchName(ID, 12, TAG)


@pytest.mark.parametrize(
    "xid",
    [
        Xid(1, ID, b"0:0f4c6a2e"),
        Xid(FORMAT_ID, b"short", b"0:0f4c6a2e"),
        Xid(FORMAT_ID, ID, b""),
        Xid(FORMAT_ID, ID, b"x:0f4c6a2e"),
        Xid(FORMAT_ID, ID, b"00:0f4c6a2e"),
        Xid(FORMAT_ID, ID, b"-1:0f4c6a2e"),
        Xid(FORMAT_ID, ID, b"0:0f4c6a2"),
        Xid(FORMAT_ID, ID, b"\xff:0f4c6a2e"),
    ],
    ids=str,
)
def test_branches_of_others_have_no_name_of_ours(xid: Xid) -> None:
    with pytest.raises(ValueError):
        branch_name(xid)


@given(xids)
def test_a_gid_is_its_xid_and_fits(xid: Xid) -> None:
    gid = gid_of(xid)
    assert len(gid.encode()) <= GID_BYTES_MAX and "'" not in gid
    assert xid_of(gid) == xid


@given(st.text() | st.builds("lockstep:{}:{}:{}".format, st.text(), st.text(), st.text()))
def test_a_gid_of_others_is_left_alone(gid: str) -> None:
    xid = xid_of(gid)
    assert xid is None or gid_of(xid) == gid


def test_entries_read_back_as_written() -> None:
    assert ParticipantsEntry.decode(ENTRY.encode()) == ENTRY
    for outcome in (
        OutcomeEntry(Verdict.ABORT, ((ParticipantName("set:a"), "unknown branch"),), ended_ms=7),
        OutcomeEntry(Verdict.COMMIT, participants=SETS),
        OutcomeEntry(Verdict.ABORT, is_known=False),
    ):
        assert OutcomeEntry.decode(outcome.encode()) == outcome


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff", b'{"participants": 1}', b'"x"'])
@pytest.mark.parametrize("kind", [ParticipantsEntry, OutcomeEntry])
def test_what_is_no_entry_is_refused(kind: type[ParticipantsEntry | OutcomeEntry], data: bytes) -> None:
    with pytest.raises(ValueError):
        kind.decode(data)


COMMITTED, ABORTED = OutcomeEntry(Verdict.COMMIT), OutcomeEntry(Verdict.ABORT)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (LogView(GENERATION, ENTRY, 5, Verdict.COMMIT), Fate.COMMIT),
        (LogView(GENERATION, ENTRY, 5, Verdict.ABORT), Fate.ROLL_BACK),
        (LogView(GENERATION, ENTRY, 5), Fate.WAIT),
        (LogView("", ENTRY, 5), Fate.WAIT),
        (LogView(GENERATION), Fate.ROLL_BACK),
        (LogView("another-history"), Fate.ASK_AN_OPERATOR),
        (LogView(""), Fate.ASK_AN_OPERATOR),
        (LogView(GENERATION, outcome=COMMITTED), Fate.COMMIT),
        (LogView(GENERATION, outcome=ABORTED), Fate.ROLL_BACK),
        (LogView("another-history", outcome=COMMITTED), Fate.COMMIT),
        (LogView("another-history", ENTRY, 5, Verdict.COMMIT), Fate.COMMIT),
    ],
)
def test_abort_is_presumed_only_where_nothing_is_left_in_the_same_history(
    view: LogView, expected: Fate
) -> None:
    """DESIGN T3, histories 6 and 26."""
    assert fate(view, BRANCH, is_a) is expected


def is_a(participant: ParticipantName) -> bool:
    return participant == "set:a"


@pytest.mark.parametrize(
    ("branch", "expected"),
    [
        (BRANCH, Fate.COMMIT),
        (BRANCH._replace(number=1), Fate.ROLL_BACK),
        (BRANCH._replace(number=2), Fate.ROLL_BACK),
        (BRANCH._replace(number=63), Fate.ROLL_BACK),
    ],
    ids=["its own", "another's", "behind the list", "far behind it"],
)
def test_a_commit_is_of_those_alone_that_it_was_decided_for(branch: BranchName, expected: Fate) -> None:
    listed = ParticipantsEntry(SETS, TAG, Incarnation("c"), 7)
    decided = LogView(GENERATION, listed, 5, Verdict.COMMIT)
    ended = LogView(GENERATION, outcome=OutcomeEntry(Verdict.COMMIT, participants=SETS))
    for view in (decided, ended, replace(decided, generation="x"), replace(ended, generation="x")):
        assert fate(view, branch, is_a) is expected
    assert fate(LogView(GENERATION, listed, 5), branch, is_a) is Fate.WAIT, "it is not decided yet"


def test_an_outcome_of_an_earlier_version_reads_without_its_time() -> None:
    data = b'{"hazards": [], "heuristic": 0, "verdict": "commit"}'
    assert OutcomeEntry.decode(data) == OutcomeEntry(Verdict.COMMIT)


@pytest.mark.parametrize(
    ("ended_ms", "prepared_ms", "expected"),
    [
        (1_000_000, 900_000, Fate.COMMIT),
        (1_000_000, 1_000_000 + CLOCK_MS, Fate.COMMIT),
        (1_000_000, 1_000_001 + CLOCK_MS, Fate.ROLL_BACK),
        (1_000_000, 0, Fate.COMMIT),
        (0, 9_000_000, Fate.COMMIT),
    ],
    ids=["it voted", "by clocks that differ", "behind the end", "not known when", "an older entry"],
)
def test_an_outcome_commits_what_voted_before_it(ended_ms: int, prepared_ms: int, expected: Fate) -> None:
    view = LogView(GENERATION, outcome=OutcomeEntry(Verdict.COMMIT, ended_ms=ended_ms))
    assert fate(view, BRANCH, is_a, prepared_ms) is expected


def test_a_vote_that_accepted_loss_has_brought_back_is_not_rolled_back_by_clocks() -> None:
    view = LogView("another-history", outcome=OutcomeEntry(Verdict.COMMIT, ended_ms=1_000_000))
    assert fate(view, BRANCH, is_a, 1_000_000) is Fate.COMMIT
    assert fate(view, BRANCH, is_a, 1_000_001 + CLOCK_MS) is Fate.ASK_AN_OPERATOR


def test_keys_of_transactions_are_not_among_those_that_brokers_watch() -> None:
    keys = DecisionKeys("c")
    for key in (
        keys.participants(ID),
        keys.decision(ID),
        keys.outcome(ID),
        keys.coordinator(Incarnation("x")),
    ):
        assert not key.startswith("/lockstep/")
    assert keys.global_id(keys.participants(ID)) == keys.global_id(keys.decision(ID)) == GlobalId(ID)
    assert not keys.outcome(ID).startswith(keys.prefix)
