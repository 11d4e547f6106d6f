"""Outcomes, and what a state answers when it is asked for one (DESIGN T5)."""

import msgspec
import pytest

from lockstep.core.branch_names import RANDOM_BYTES, GenerationTag, branch_xid, new_global_id
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.items import META_KEY, Changes
from lockstep.core.outcome_pages import PAGE_BITS, CapturedOutcomes
from lockstep.core.outcomes import Outcome, Outcomes
from lockstep.core.records import Commit, ForgetHeuristic, ForgetOutcomes, RollbackReason
from lockstep.core.set_state import SetState
from lockstep.core.transaction_states import TransactionState
from lockstep.core.xid import Xid
from tests.counted_work import CountedCalls
from tests.unit.lockstep.core.history import Log


def test_open_and_prepared_are_answered_before_there_is_an_outcome() -> None:
    log = Log()
    tx, dtx = log.begin(), log.begin(b"branch")
    log.prepare(dtx, b"branch")
    assert log.state.outcome(tx).state is TransactionState.OPEN
    assert log.state.outcome(dtx).state is TransactionState.PREPARED


def test_an_outcome_tells_why_and_where_it_was_decided() -> None:
    log = Log()
    key = log.begin()
    index = log.rollback(key, RollbackReason.TIMED_OUT)
    outcome = log.state.outcome(key)
    assert (outcome.state, outcome.reason, outcome.index) == (
        TransactionState.ROLLED_BACK,
        RollbackReason.TIMED_OUT,
        index,
    )


def test_below_the_retention_floor_an_outcome_is_expired_and_above_it_is_kept() -> None:
    log = Log()
    old, recent = log.begin(), log.begin()
    floor = log.commit(old)
    log.commit(recent)
    log.append(ForgetOutcomes(None, floor))
    assert log.state.outcome(old).state is TransactionState.EXPIRED
    assert log.state.outcome(recent).state is TransactionState.COMMITTED
    assert log.state.retention_floor == floor


def test_the_retention_floor_never_falls() -> None:
    log = Log()
    key = log.begin()
    floor = log.commit(key)
    log.append(ForgetOutcomes(None, floor))
    log.append(ForgetOutcomes(None, LogIndex(0)))
    assert log.state.retention_floor == floor


def test_an_open_transaction_that_began_below_the_floor_is_open() -> None:
    log = Log()
    key = log.begin()
    log.append(ForgetOutcomes(None, key[0]))
    assert log.state.outcome(key).state is TransactionState.OPEN
    log.commit(key)
    assert log.state.outcome(key).state is TransactionState.COMMITTED


def test_above_the_floor_a_key_without_an_outcome_was_rolled_back() -> None:
    log = Log()
    key = log.begin()
    log.begin_epoch()
    assert log.state.outcome(key).state is TransactionState.ROLLED_BACK


def test_a_key_of_another_epoch_than_the_log_has_there_was_rolled_back_even_below_the_floor() -> None:
    log = Log()
    log.begin_epoch()
    log.begin_epoch()
    index = log.begin()[0]
    log.append(ForgetOutcomes(None, log.commit((index, Epoch(2)))))
    assert log.state.outcome((index, Epoch(2))).state is TransactionState.EXPIRED
    assert log.state.outcome((index, Epoch(1))).state is TransactionState.ROLLED_BACK


def test_a_begin_in_a_dropped_suffix_of_an_earlier_epoch_was_rolled_back() -> None:
    log = Log()
    log.begin_epoch()
    log.begin_epoch()
    assert log.state.outcome((LogIndex(99), Epoch(1))).state is TransactionState.ROLLED_BACK


def test_a_replica_does_not_speak_of_what_it_has_not_reached() -> None:
    log = Log()
    log.begin_epoch()
    assert log.state.outcome((LogIndex(99), Epoch(1))).state is TransactionState.UNKNOWN
    assert log.state.outcome((LogIndex(1), Epoch(7))).state is TransactionState.UNKNOWN


def test_a_heuristic_outcome_is_kept_until_forgotten_and_stays_true_afterwards() -> None:
    log = Log()
    key = log.begin(b"branch")
    log.prepare(key, b"branch")
    index = log.append(Commit(None, key, is_heuristic=True))
    log.append(ForgetOutcomes(None, LogIndex(index - 1)))
    log.append(ForgetHeuristic(None, key))
    assert log.state.recover() == []
    assert log.state.outcome(key).state is TransactionState.COMMITTED


def test_a_heuristic_outcome_below_the_floor_is_kept_and_then_forgotten_at_once() -> None:
    log = Log()
    key = log.begin(b"branch")
    log.prepare(key, b"branch")
    index = log.rollback(key, RollbackReason.HEURISTIC)
    log.append(ForgetOutcomes(None, index))
    assert log.state.outcome(key).state is TransactionState.HEURISTICALLY_ROLLED_BACK
    log.append(ForgetHeuristic(None, key))
    assert log.state.outcome(key).state is TransactionState.EXPIRED


def test_the_coordinators_decision_behind_a_heuristic_one_changes_nothing() -> None:
    log = Log()
    key = log.begin(b"branch")
    log.prepare(key, b"branch")
    log.rollback(key, RollbackReason.HEURISTIC)
    log.append(Commit(None, key))
    assert log.state.outcome(key).state is TransactionState.HEURISTICALLY_ROLLED_BACK


def test_forgetting_what_is_not_heuristic_changes_nothing() -> None:
    log = Log()
    key = log.begin()
    log.commit(key)
    log.append(ForgetHeuristic(None, key))
    assert log.state.outcome(key).state is TransactionState.COMMITTED


def test_a_forgotten_heuristic_outcome_leaves_with_those_of_its_time() -> None:
    log = Log()
    branch, tx, late = log.begin(b"branch"), log.begin(), log.begin()
    log.prepare(branch, b"branch")
    log.append(Commit(None, branch, is_heuristic=True))
    floor = log.commit(tx)
    log.commit(late)
    log.append(ForgetHeuristic(None, branch))
    log.append(ForgetOutcomes(None, floor))
    states = [log.state.outcome(key).state for key in (branch, tx, late)]
    assert states == [TransactionState.EXPIRED, TransactionState.EXPIRED, TransactionState.COMMITTED]


def test_a_heuristic_outcome_forgotten_between_others_is_dropped_in_the_order_of_the_log() -> None:
    log = Log()
    tx, branch, late = log.begin(), log.begin(b"branch"), log.begin()
    log.prepare(branch, b"branch")
    log.commit(tx)
    floor = log.append(Commit(None, branch, is_heuristic=True))
    log.commit(late)
    log.append(ForgetHeuristic(None, branch))
    log.append(ForgetOutcomes(None, floor))
    assert [key for key, _ in log.state.outcomes.all()] == [late]


def test_what_is_forgotten_leaves_the_name_horizon_in_the_state() -> None:
    log = Log()
    first, branch, late = log.begin(), log.begin(b"branch"), log.begin()
    log.prepare(branch, b"branch")
    log.append(Commit(None, branch, is_heuristic=True))
    floor = log.commit(first)
    log.append(ForgetOutcomes(None, floor, 7_000))
    assert log.state.outcomes.name_horizon_ms == 7_000
    log.append(ForgetOutcomes(None, floor, 8_000))
    assert log.state.outcomes.name_horizon_ms == 7_000, "nothing goes with it"
    log.append(ForgetHeuristic(None, branch, 9_000))
    assert log.state.outcomes.name_horizon_ms == 9_000
    log.append(ForgetOutcomes(None, log.commit(late)))
    assert log.state.outcomes.name_horizon_ms == 9_000, "an older version does not say it"


def test_a_heuristic_end_that_becomes_an_ordinary_outcome_leaves_no_horizon() -> None:
    log = Log()
    branch = log.begin(b"branch")
    log.prepare(branch, b"branch")
    log.append(Commit(None, branch, is_heuristic=True))
    log.append(ForgetHeuristic(None, branch, 9_000))
    assert log.state.outcomes.name_horizon_ms == 0


def test_the_horizon_is_in_snapshots_and_older_ones_lack_it() -> None:
    log = Log()
    log.append(ForgetOutcomes(None, log.commit(log.begin()), 7_000))
    items = list(log.state.items())
    assert SetState.from_items(log.state.set_name, items).outcomes.name_horizon_ms == 7_000
    (meta,) = [item for item in items if item.key == META_KEY]
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(meta.value)[:5])
    others = [item for item in items if item is not meta]
    restored = SetState.from_items(log.state.set_name, [meta._replace(value=older), *others])
    assert (restored.outcomes.name_horizon_ms, restored.retention_floor) == (0, log.state.retention_floor)


def test_the_youngest_that_goes_is_the_youngest_of_our_coordinator() -> None:
    """And not of the future: whoever chooses such a name would have all others refused."""
    outcomes = Outcomes(Changes())
    for index, begun_ms in enumerate((0, 5_000, 3_000, 99_000, 8_000), 1):
        xid = _ours(begun_ms) if begun_ms else Xid(7, b"x" * 16, b"foreign").encode()
        outcome = Outcome(TransactionState.COMMITTED, 0, LogIndex(index), xid)
        outcomes.record((LogIndex(index), Epoch(1)), outcome)
    youngest = [outcomes.begun_up_to(LogIndex(floor), 10_000, 0).youngest_ms for floor in range(6)]
    assert youngest == [0, 0, 5_000, 5_000, 5_000, 8_000]


def _ours(begun_ms: int) -> bytes:
    return branch_xid(new_global_id(begun_ms, bytes(RANDOM_BYTES)), 0, GenerationTag("12345678")).encode()


@pytest.mark.parametrize(
    ("wanted", "kept_max", "batch_max", "floor"),
    [
        (0, 10, 10, 0),  # nothing is due
        (35, 10, 10, 35),  # retention alone, between two records
        (0, 7, 10, 30),  # number alone
        (25, 7, 10, 30),  # whichever is more
        (55, 7, 10, 55),
        (95, 10, 4, 40),  # in parts
        (0, 2, 4, 40),
        (500, 10, 10, 500),  # all of them, and what has no outcome
        (500, 10, 9, 90),
    ],
)
def test_the_next_floor_obeys_retention_and_number_and_goes_in_parts(
    wanted: int, kept_max: int, batch_max: int, floor: int
) -> None:
    outcomes = Outcomes(Changes())
    for number in range(1, 11):
        key = LogIndex(number), Epoch(1)
        outcomes.record(key, Outcome(TransactionState.COMMITTED, 0, LogIndex(10 * number)))
    assert outcomes.next_floor(LogIndex(wanted), kept_max, batch_max) == floor


def test_the_next_floor_never_falls() -> None:
    outcomes = Outcomes(Changes())
    outcomes.forget(LogIndex(70))
    assert outcomes.next_floor(LogIndex(5), 10, 10) == 70


def test_what_a_record_names_stays_below_the_floor_until_the_next_one() -> None:
    outcomes = Outcomes(Changes())
    keys = [(LogIndex(number), Epoch(1)) for number in range(1, 6)]
    for number, key in enumerate(keys, 1):
        outcome = Outcome(TransactionState.COMMITTED, 0, LogIndex(10 * number), _ours(number))
        outcomes.record(key, outcome)
    outcomes.forget(LogIndex(30), kept=keys[:2])
    assert [key for key, _ in outcomes.all()] == [*keys[:2], *keys[3:]]
    assert outcomes.find_xid(_ours(1)) is not None and outcomes.find_xid(_ours(3)) is None
    assert outcomes.begun_up_to(LogIndex(30), 10_000, 0) == (2, {})
    restored = Outcomes(Changes())
    assert list(restored.restore(outcomes.all(), outcomes.floor, 0))
    for each in (outcomes, restored):
        assert each.next_floor(LogIndex(0), 0, 1) >= 30, "it never falls"
        each.forget(LogIndex(40), kept=keys[1:2])
        assert [key for key, _ in each.all()] == [keys[1], keys[4]]
        each.forget(LogIndex(45))
        assert [key for key, _ in each.all()] == keys[4:]
        assert each.find_xid(_ours(2)) is None


def test_forgetting_a_heuristic_outcome_looks_at_no_others() -> None:
    """An operator forgets thousands, one by one, and every replica does with each record what this does."""
    outcomes = Outcomes(Changes())
    for number in range(1, 1001):
        outcomes.record(
            (LogIndex(number), Epoch(1)), Outcome(TransactionState.COMMITTED, 0, LogIndex(number + 1))
        )
    key = LogIndex(2000), Epoch(1)
    outcomes.record(key, Outcome(TransactionState.HEURISTICALLY_COMMITTED, 0, LogIndex(2001), b"x"))
    with CountedCalls() as calls:
        outcomes.forget_heuristic(key)
    assert calls.total < 20
    assert outcomes.find_xid(b"x") == (key, Outcome(TransactionState.COMMITTED, 0, LogIndex(2001), b"x"))
    assert (len(outcomes), outcomes.all()[-1][0], key in outcomes) == (1001, key, True)


def test_a_late_forgotten_outcome_is_restored_and_leaves_as_where_it_was_forgotten() -> None:
    """A snapshot does not say which were heuristic once: the state is the same function of the journal."""
    log = Log()
    first, branch, late = log.begin(), log.begin(b"branch"), log.begin()
    log.prepare(branch, b"branch")
    log.commit(first)
    floor = log.append(Commit(None, branch, is_heuristic=True))
    log.commit(late)
    log.append(ForgetHeuristic(None, branch))
    restored = Outcomes(Changes())
    for _ in restored.restore(list(reversed(log.state.outcomes.all())), log.state.outcomes.floor, 0):
        pass
    assert len(restored) == len(log.state.outcomes)
    for outcomes in (log.state.outcomes, restored):
        assert [key for key, _ in outcomes.all()] == [first, branch, late]
        outcomes.forget(floor)
        assert [key for key, _ in outcomes.all()] == [late]
        assert outcomes.find_xid(b"branch") is None


def test_outcomes_are_kept_on_pages_that_do_not_grow_with_their_number() -> None:
    outcomes = Outcomes(Changes())
    for number in range(1, 40_001):
        outcomes.record(
            (LogIndex(number), Epoch(1)),
            Outcome(TransactionState.COMMITTED, 0, LogIndex(number + 1), b"%d" % number),
        )
    assert max(map(len, outcomes._ordinary.pages.values())) <= 1 << PAGE_BITS
    assert max(map(len, outcomes._by_xid)) < 300
    outcomes.forget(LogIndex(40_001))
    assert (len(outcomes), outcomes._ordinary.pages, any(outcomes._by_xid)) == (0, {}, False)


def test_a_snapshot_of_outcomes_shows_what_was_there_and_copies_no_more_than_the_pages_that_change() -> None:
    outcomes, pages, size = Outcomes(Changes()), 5, 1 << PAGE_BITS
    for number in range(1, pages * size):
        # Those that began last ended first.
        began = pages * size - number
        outcomes.record(
            (LogIndex(began), Epoch(1)), Outcome(TransactionState.COMMITTED, 0, LogIndex(began + number))
        )
    heuristic = Outcome(TransactionState.HEURISTICALLY_COMMITTED, 0, LogIndex(pages * size), b"x")
    outcomes.record((LogIndex(size), Epoch(2)), heuristic)
    before = outcomes.all()
    captured = outcomes.capture(LogIndex(pages * size))
    found = next(captured)
    outcomes.record(
        (LogIndex(size + 1), Epoch(2)), Outcome(TransactionState.COMMITTED, 0, LogIndex(pages * size + 1))
    )
    outcomes.forget_heuristic((LogIndex(size), Epoch(2)))
    (reading,) = (reference() for reference in outcomes._changes.captures.of_outcomes)
    assert isinstance(reading, CapturedOutcomes)
    outcomes.forget(LogIndex(pages * size))
    assert max(map(len, reading._saved.values())) <= size + 1
    for page in captured:
        assert len(page) <= size + 1
        found += page
    assert found == before


def test_restored_outcomes_are_put_in_order_in_steps() -> None:
    outcomes, count = Outcomes(Changes()), 20_000
    all_of_them = [
        ((LogIndex(number), Epoch(1)), Outcome(TransactionState.COMMITTED, 0, LogIndex(2 * count - number)))
        for number in range(1, count + 1)
    ]
    steps = list(outcomes.restore(all_of_them, LogIndex(0), 0))
    assert max(steps) <= 1 << PAGE_BITS
    assert [outcome.index for outcome in outcomes._ordinary.first(count)] == [*range(count, 2 * count)]
