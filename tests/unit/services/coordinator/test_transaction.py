"""One transaction: the order of its steps, doubts about the log, crashes at every effect, and the histories that break weaker
rules."""

import itertools
import random

import pytest

from lockstep.core.branch_names import ParticipantName, generation_tag, new_global_id
from lockstep.core.decision_log import Verdict
from lockstep.core.errors import ErrorCode
from lockstep.core.xa import XaStatus
from services.coordinator.core.messages import (
    BeginAsked,
    BegunAnswer,
    CommitAsked,
    Decide,
    DeleteTransaction,
    Effect,
    EnlistAsked,
    KeepCommitted,
    ListLog,
    OutcomeAnswer,
    ReadLog,
    Refusal,
    RequestDropped,
    RequestId,
    RollbackAsked,
    State,
    TellBranch,
    Tick,
    WriteParticipants,
)
from services.coordinator.core.phases import NEXT, Phase
from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.core.steps import STEPS
from services.coordinator.core.transaction import STATES
from services.coordinator.core.votes import Completion, Verb, Vote
from tests.counted_work import CountedCalls
from tests.simulation.coordination.decision_log import DecisionLog
from tests.unit.services.coordinator.rig import ID, LIMITS, TAG, AnyLog, Participants, Rig, names

C, A = State.COMMITTED, State.ROLLED_BACK


def ends(effect: Effect) -> bool:
    return isinstance(effect, TellBranch) and effect.verb is not Verb.PREPARE


def wait_for_the_roll(rig: Rig, undecided_ms: int, decided_ms: int) -> None:
    """The list of participants stands undecided for so long, for nobody answers the roll; then all do."""
    rig.pass_time(undecided_ms)
    assert rig.log.view(ID).participants is not None and rig.log.view(ID).decision is None
    rig.log.is_unattested = False
    rig.pass_time(decided_ms)


# The order of things


def test_the_steps_come_in_their_order() -> None:
    rig = Rig()
    rig.close()
    rig.run()
    rig.commit(is_closed=True)
    rig.run()
    assert [*rig.steps, "one_phase_completed"] == list(STEPS)


def test_nobody_is_asked_to_prepare_before_the_participants_are_written() -> None:
    rig = Rig()
    rig.commit()
    (write,) = rig.waiting
    assert isinstance(write, WriteParticipants)
    rig.run(lambda effect: isinstance(effect, TellBranch))
    assert rig.log.view(ID).participants is not None


def test_decision_is_recorded_before_anyone_hears_it() -> None:
    rig = Rig()
    request = rig.commit()
    (decide,) = rig.run(lambda effect: isinstance(effect, Decide))
    assert rig.state(request) is None
    assert rig.participants.verbs() == [None, None]
    rig.perform(decide)
    rig.run()
    assert rig.state(request) is C


def test_a_single_participant_commits_in_one_phase_without_the_log() -> None:
    rig = Rig(participants=Participants([Vote.NO]))
    request = rig.commit(1)
    (tell,) = rig.waiting
    assert isinstance(tell, TellBranch) and tell.verb is Verb.COMMIT_ONE_PHASE
    rig.run()
    assert rig.state(request) is C
    assert rig.log.revision == DecisionLog().revision + 1, "only the presence was ever written"


@pytest.mark.parametrize(
    ("ended", "state"),
    [
        (Completion.COMMITTED, C),
        (Completion.ROLLED_BACK, A),
        (Completion.UNKNOWN_BRANCH, State.NOT_KNOWN),
        (Completion.HEURISTICALLY_ROLLED_BACK, A),
        (Completion.UNREACHABLE, State.UNDECIDED),
    ],
)
def test_the_word_of_a_single_participant_is_the_outcome(ended: Completion, state: State) -> None:
    rig = Rig(participants=Participants([Vote.OK]))
    rig.participants.ends[0] = ended
    request = rig.commit(1)
    rig.run()
    rig.pass_time(LIMITS.doubt_ms)
    assert rig.state(request) is state
    assert not rig.core.transactions


@pytest.mark.parametrize(
    ("participant", "age_ms", "says", "state"),
    [
        ("grpc://host:1/p0", 0, Completion.UNKNOWN_BRANCH, State.NOT_KNOWN),
        ("set:s1", 0, Completion.UNKNOWN_BRANCH, A),
        ("set:s1", 0, Completion.FORGOTTEN, State.NOT_KNOWN),
        ("set:s1", LIMITS.age_ms_max + 100, Completion.UNKNOWN_BRANCH, State.NOT_KNOWN),
    ],
    ids=["service", "set", "set that has forgotten others", "set, very late"],
)
def test_a_single_participant_that_knows_nothing_was_rolled_back_only_where_it_would_remember_a_commit(
    participant: str, age_ms: int, says: Completion, state: State
) -> None:
    """Another coordinator had it commit, and died before anybody heard of it."""
    rig = Rig(participants=Participants([Vote.OK]))
    rig.participants.ends[0] = says
    rig.now_ms += age_ms
    request = RequestId(100)
    rig.feed(RollbackAsked(request, ID, TAG, (ParticipantName(participant),)))
    rig.run()
    assert rig.state(request) is state
    assert not rig.core.transactions


def test_nothing_to_commit_is_committed() -> None:
    rig = Rig()
    assert rig.state(rig.commit(0)) is C
    assert not rig.waiting


def test_the_client_is_answered_after_its_patience_and_the_rest_is_told_for_ever() -> None:
    rig = Rig()
    rig.participants.ends[1] = Completion.UNREACHABLE
    request = rig.commit()
    rig.run()
    assert rig.state(request) is None
    rig.pass_time(LIMITS.answer_ms)
    answer = rig.answers[request]
    assert isinstance(answer, OutcomeAnswer) and (answer.state, answer.pending) == (C, (names(2)[1],))
    rig.pass_time(600_000)
    assert rig.log.decisions == {ID: Verdict.COMMIT}, "an unacknowledged commit never expires"
    told = len(rig.participants.told[1])
    assert 300 <= told <= 320, "told again every two seconds"
    del rig.participants.ends[1]
    rig.pass_time(LIMITS.retry_ms_max + 100)
    assert not rig.log.decisions and not rig.log.participants


def test_a_time_out_before_prepare_rolls_back_over_the_log() -> None:
    rig = Rig(participants=Participants([Vote.OK, Vote.UNREACHABLE]))
    request = rig.commit()
    rig.run()
    rig.pass_time(LIMITS.prepare_ms - 100)
    assert rig.state(request) is None
    rig.pass_time(200)
    assert rig.state(request) is A
    assert rig.participants.verbs() == [Verb.ROLL_BACK, Verb.ROLL_BACK]


def test_a_silent_log_is_in_doubt_and_never_rolled_back() -> None:
    """History 12: a time-out of ours is no outcome."""
    rig = Rig()
    request = rig.commit()
    for _ in range(LIMITS.doubt_ms // 50 + 1):
        for effect in rig.pass_time(50, lambda effect: isinstance(effect, AnyLog)):
            assert isinstance(effect, AnyLog)
            rig.doubt(effect.ticket)
    assert rig.state(request) is State.UNDECIDED
    assert rig.participants.told == [[], []]
    rig.pass_time(5_000)
    assert rig.state(rig.outcome()) is None
    rig.run()
    assert not rig.core.transactions and rig.log.outcomes[ID].verdict is Verdict.ABORT


def test_a_rollback_of_several_is_decided_in_the_log() -> None:
    rig = Rig()
    rig.feed(BeginAsked(RequestId(100), ID, TAG, 0))
    request = rig.rollback()
    (write,) = rig.waiting
    assert isinstance(write, WriteParticipants) and write.decision is Verdict.ABORT
    rig.run()
    assert rig.state(request) is A
    assert rig.participants.verbs() == [Verb.ROLL_BACK, Verb.ROLL_BACK]
    late = rig.commit()
    rig.run()
    assert rig.state(late) is A
    assert Verb.PREPARE not in rig.participants.told[0]


@pytest.mark.parametrize("held", [WriteParticipants, TellBranch, Decide])
def test_a_rollback_while_it_is_being_committed_agrees_with_the_commit(held: type) -> None:
    rig = Rig()
    commit = rig.commit()
    effects = rig.run(lambda effect: isinstance(effect, held))
    rollback = rig.rollback()
    rig.waiting.extendleft(reversed(effects))
    rig.run()
    expected = C if held is Decide else A
    assert (rig.state(commit), rig.state(rollback)) == (expected, expected)


# Doubts


@pytest.mark.parametrize("fate", ["lost", "made", "made later"])
@pytest.mark.parametrize("kind", [WriteParticipants, Decide, DeleteTransaction])
@pytest.mark.parametrize("vote", [Vote.OK, Vote.NO, Vote.READ_ONLY])
def test_a_change_in_doubt_is_read_and_repeated_until_it_is_known(kind: type, fate: str, vote: Vote) -> None:
    """Made later: after the read that did not find it, and before it is written again."""
    rig = Rig(participants=Participants([vote, vote]))
    request = rig.commit()
    doubtful = rig.run(lambda effect: isinstance(effect, kind))
    for effect in doubtful:
        assert isinstance(effect, WriteParticipants | Decide | DeleteTransaction)
        if fate == "made":
            rig.do_log(effect)
        rig.doubt(effect.ticket)
    if fate == "made later":
        rig.pass_time(LIMITS.retry_first_ms)
        for effect in doubtful:
            assert isinstance(effect, WriteParticipants | Decide | DeleteTransaction)
            rig.do_log(effect)
    rig.pass_time(1_000)
    assert rig.state(request) is (A if vote is Vote.NO else C)
    assert not rig.core.transactions and not rig.log.participants and not rig.log.decisions
    assert rig.log.outcomes[ID].verdict is (Verdict.ABORT if vote is Vote.NO else Verdict.COMMIT)
    assert bool(doubtful) == (kind is not Decide or vote is not Vote.READ_ONLY)


@pytest.mark.parametrize("kind", [WriteParticipants, Decide, DeleteTransaction])
def test_what_etcd_does_not_take_is_tried_again_later_and_later(kind: type) -> None:
    """As when it is full: it refuses puts, and answers reads."""
    rig = Rig()
    request = rig.commit()
    refused = rig.run(lambda effect: isinstance(effect, kind))
    tries = 0
    for _ in range(LIMITS.elsewhere_ms // 50):
        for effect in refused:
            assert isinstance(effect, WriteParticipants | Decide | DeleteTransaction)
            rig.doubt(effect.ticket)
        refused = rig.pass_time(50, lambda effect: isinstance(effect, kind))
        tries += len(refused)
    assert 0 < tries < 30, "each a read and a change, two seconds after the other"
    assert kind is not DeleteTransaction or rig.state(request) is C


# Crashes


def run_until(rig: Rig, effects_left: int) -> int:
    """Performs so many effects and no more; returns how many were left to perform."""
    while rig.waiting and effects_left > 0:
        rig.perform(rig.waiting.popleft())
        effects_left -= 1
    return effects_left


@pytest.mark.parametrize("answer_is_lost", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "votes", [(Vote.OK, Vote.OK), (Vote.OK, Vote.NO), (Vote.READ_ONLY, Vote.OK)], ids=str
)
def test_a_crash_at_every_effect_is_finished_by_another(
    votes: tuple[Vote, Vote], answer_is_lost: bool
) -> None:
    for performed in itertools.count():
        first = Rig("C1", participants=Participants(votes))
        request = first.commit()
        if run_until(first, performed) > 0:
            break
        if answer_is_lost and first.waiting:
            # The last effect was performed, and the crash came before its answer.
            last = first.waiting.popleft()
            if isinstance(last, TellBranch):
                first.participants.tell(last)
            elif isinstance(last, AnyLog):
                first.do_log(last)
        told = first.state(request)
        del first.log.presences[first.process]
        second = Rig("C2", first.log, first.participants)
        second.now_ms = first.now_ms
        second.pass_time(3_000)
        assert not second.log.participants and not second.log.decisions, performed
        asked = second.outcome(fence=True)
        second.run()
        outcome = second.state(asked)
        verbs = {verb for verb in second.participants.verbs() if verb is not None}
        assert verbs <= {Verb.COMMIT} or verbs <= {Verb.ROLL_BACK}, f"torn after {performed} effects"
        if told is not None:
            assert outcome is told
        if Verb.COMMIT in verbs:
            assert outcome is C
    assert performed >= 6, "the list, two prepares, the decision, an end, the deletion"


@pytest.mark.parametrize("is_in_doubt", [False, True], ids=["decided", "decision in doubt"])
@pytest.mark.parametrize("other", [Vote.OK, Vote.NO])
def test_who_had_nothing_to_commit_is_no_hazard_to_whoever_takes_it_up(
    other: Vote, is_in_doubt: bool
) -> None:
    """It is finished, and knows the branch no more: to a commit that would be a hazard, and nobody else had its vote."""
    first = Rig("C1", participants=Participants([Vote.READ_ONLY, other]))
    request = first.commit()
    first.run(ends)
    if is_in_doubt:
        first = Rig("C1", participants=Participants([Vote.READ_ONLY, other]))
        request = first.commit()
        (decide,) = first.run(lambda effect: isinstance(effect, Decide))
        assert isinstance(decide, Decide)
        first.do_log(decide)
        first.doubt(decide.ticket)
        first.pass_time(1_000, ends)
    assert first.participants.verbs() == [None, None]
    log = first.log
    assert log.view(ID).decision is not None and first.state(request) is None
    del log.presences[first.process]
    second = Rig("C2", log, first.participants)
    second.now_ms = first.now_ms
    second.participants.ends[0] = Completion.UNKNOWN_BRANCH
    second.pass_time(3_000)
    outcome = log.view(ID).outcome
    assert outcome is not None and outcome.hazards == () and outcome.heuristic is XaStatus.OK
    assert second.participants.verbs() == [None, Verb.COMMIT if other is Vote.OK else Verb.ROLL_BACK]
    assert not second.notes or {note.event for note in second.notes} == {"taken_up"}


def left_behind() -> Rig:
    """A coordinator that has decided COMMIT; the first participant has acknowledged that, the second one is away."""
    rig = Rig("C1")
    rig.participants.ends[1] = Completion.UNREACHABLE
    rig.commit()
    rig.run()
    assert rig.participants.verbs() == [Verb.COMMIT] * 2
    return rig


def taken_up(first: Rig) -> Rig:
    """By another, when the first participant has forgotten that it committed."""
    del first.log.presences[first.process]
    second = Rig("C2", first.log, first.participants)
    second.now_ms = first.now_ms
    first.participants.told[0].clear()
    first.participants.ends = {0: Completion.UNKNOWN_BRANCH}
    return second


@pytest.mark.parametrize("fate", ["answered", "answer lost", "not made"])
def test_who_has_committed_while_another_was_away_is_no_hazard_when_it_has_forgotten_that(fate: str) -> None:
    first = left_behind()
    (keep,) = first.pass_time(LIMITS.keep_ms + 50, lambda effect: isinstance(effect, KeepCommitted))
    assert isinstance(keep, KeepCommitted) and keep.entry.committed == (0,)
    if fate == "answered":
        first.perform(keep)
    else:
        if fate == "answer lost":
            first.do_log(keep)
        first.doubt(keep.ticket)
    first.pass_time(2 * LIMITS.keep_ms)
    entry = first.log.view(ID).participants
    assert entry is not None and entry.committed == (0,)
    second = taken_up(first)
    second.pass_time(3_000)
    outcome = first.log.view(ID).outcome
    assert outcome is not None and outcome.hazards == () and outcome.heuristic is XaStatus.OK
    assert first.participants.told[0] == [] and first.participants.verbs()[1] is Verb.COMMIT


def test_who_has_committed_counts_when_another_was_rolled_back_by_an_operator() -> None:
    first = left_behind()
    first.pass_time(LIMITS.keep_ms + 50)
    second = taken_up(first)
    first.participants.ends[1] = Completion.HEURISTICALLY_ROLLED_BACK
    second.pass_time(3_000)
    outcome = first.log.view(ID).outcome
    assert outcome is not None and outcome.heuristic is XaStatus.HEURMIX


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_transaction_that_is_over_while_it_is_kept_leaves_the_log_behind_that(is_answered: bool) -> None:
    rig = left_behind()
    (keep,) = rig.pass_time(LIMITS.keep_ms + 50, lambda effect: isinstance(effect, KeepCommitted))
    assert isinstance(keep, KeepCommitted)
    del rig.participants.ends[1]
    rig.pass_time(LIMITS.retry_ms_max + 50)
    assert rig.log.participants and rig.core.transactions, "what is in the log is not known"
    if is_answered:
        rig.perform(keep)
    else:
        rig.doubt(keep.ticket)
    rig.pass_time(1_000)
    assert not rig.log.participants and not rig.log.decisions and not rig.core.transactions
    assert rig.log.outcomes[ID].hazards == ()


@pytest.mark.parametrize("is_listed", [True, False])
def test_what_was_decided_is_told_also_when_etcd_has_lost_it(is_listed: bool) -> None:
    rig = left_behind()
    rig.log.decisions.clear()
    if not is_listed:
        rig.log.participants.clear()
    rig.pass_time(LIMITS.keep_ms + 1_000)
    assert rig.core.transactions
    told = len(rig.participants.told[1])
    rig.pass_time(2 * LIMITS.keep_ms)
    assert len(rig.participants.told[1]) > told and set(rig.participants.told[1]) == {
        Verb.PREPARE,
        Verb.COMMIT,
    }


def test_what_another_has_finished_meanwhile_is_over() -> None:
    first = left_behind()
    (keep,) = first.pass_time(LIMITS.keep_ms + 50, lambda effect: isinstance(effect, KeepCommitted))
    second = Rig("C2", first.log, Participants([Vote.OK, Vote.OK]))
    second.now_ms = first.now_ms
    second.pass_time(LIMITS.elsewhere_ms)
    assert not first.log.participants and first.log.outcomes[ID].verdict is Verdict.COMMIT
    first.perform(keep)
    assert not first.core.transactions


# Two coordinators


@pytest.mark.parametrize("seed", range(60))
def test_two_coordinators_that_race_tell_and_do_the_same(seed: int) -> None:
    """Any interleaving of two that commit, or of one that commits and one that fences or rolls back."""
    chance = random.Random(seed)
    first = Rig(
        "C1", participants=Participants(chance.choices([Vote.OK, Vote.OK, Vote.READ_ONLY, Vote.NO], k=2))
    )
    second = Rig("C2", first.log, first.participants)
    one = first.commit()
    other = chance.choice([second.commit, second.rollback, lambda: second.outcome(fence=True)])()
    for _ in range(2_000):
        rig = chance.choice([first, second])
        if rig.waiting:
            at = chance.randrange(len(rig.waiting))
            effect = rig.waiting[at]
            del rig.waiting[at]
            rig.perform(effect)
        elif chance.random() < 0.3:
            first.now_ms = second.now_ms = first.now_ms + 50
            rig.pass_time(0)
    for _ in range(40):
        first.pass_time(50)
        second.pass_time(50)
    told = {rig.state(request) for rig, request in ((first, one), (second, other))}
    told.discard(State.NOT_KNOWN)
    assert len(told) == 1
    verbs = {verb for told_one in first.participants.told for verb in told_one} - {Verb.PREPARE}
    assert verbs <= ({Verb.COMMIT} if told == {C} else {Verb.ROLL_BACK})
    assert not first.log.participants and not first.log.decisions


# Histories


@pytest.mark.parametrize("is_outcome_left", [True, False])
def test_history_5_a_coordinator_that_wakes_with_all_votes_decides_nothing_any_more(
    is_outcome_left: bool,
) -> None:
    paused = Rig("C1")
    request = paused.commit()
    (decide,) = paused.run(lambda effect: isinstance(effect, Decide))
    assert isinstance(decide, Decide) and decide.verdict is Verdict.COMMIT
    del paused.log.presences[paused.process]
    other = Rig("C2", paused.log, paused.participants)
    other.pass_time(2_000)
    assert other.participants.verbs() == [Verb.ROLL_BACK, Verb.ROLL_BACK]
    assert not other.log.participants
    if not is_outcome_left:
        other.log.outcomes.clear()
    paused.perform(decide)
    paused.run()
    assert paused.state(request) is (A if is_outcome_left else State.NOT_KNOWN)
    assert paused.participants.verbs() == [Verb.ROLL_BACK, Verb.ROLL_BACK]
    assert not paused.log.decisions


def test_history_5_a_decision_outlives_every_outage() -> None:
    rig = Rig()
    rig.participants.ends[0] = Completion.UNREACHABLE
    rig.commit()
    rig.run()
    del rig.log.presences[rig.process]
    for life in range(2, 6):
        other = Rig(f"C{life}", rig.log, rig.participants)
        other.now_ms = rig.now_ms + life * 86_400_000
        other.pass_time(5_000)
        assert other.log.decisions == {ID: Verdict.COMMIT}
        del other.log.presences[other.process]


def test_history_6_an_asker_that_finds_no_decision_waits_or_wins() -> None:
    rig = Rig()
    commit = rig.commit()
    held = rig.run(lambda effect: isinstance(effect, Decide))
    asker = Rig("C2", rig.log, rig.participants)
    waiting = asker.outcome()
    asker.run()
    assert asker.state(waiting) is State.UNDECIDED
    fence = asker.outcome(fence=True)
    asker.run()
    assert asker.state(fence) is A
    rig.perform(held[0])
    rig.run()
    assert rig.state(commit) is A


def test_history_20_a_completion_that_is_repeated_ends_with_unknown_and_is_reported() -> None:
    """The acknowledgement of the first coordinator is lost with it; the participant has forgotten."""
    first = Rig("C1")
    first.commit()
    first.run(ends)
    for number in (0, 1):
        first.participants.told[number].append(Verb.COMMIT)
        first.participants.ends[number] = Completion.UNKNOWN_BRANCH
    del first.log.presences[first.process]
    second = Rig("C2", first.log, first.participants)
    second.pass_time(2_000)
    assert not second.log.participants and not second.log.decisions
    assert [note.event for note in second.notes] == ["taken_up", "hazard", "hazard"]
    assert second.log.outcomes[ID].hazards == tuple((name, "unknown branch") for name in names(2))


def test_unknown_acknowledges_a_rollback() -> None:
    rig = Rig(participants=Participants([Vote.NO, Vote.OK]))
    rig.participants.ends[0] = Completion.UNKNOWN_BRANCH
    request = rig.commit()
    rig.run()
    answer = rig.answers[request]
    assert isinstance(answer, OutcomeAnswer) and (answer.state, answer.hazards) == (A, ())
    assert not rig.notes


@pytest.mark.parametrize(
    "ended",
    [
        Completion.HEURISTICALLY_ROLLED_BACK,
        Completion.HEURISTICALLY_COMMITTED,
        Completion.HEURISTICALLY_MIXED,
        Completion.ROLLED_BACK,
    ],
)
def test_a_heuristic_answer_counts_and_is_reported_and_recorded(ended: Completion) -> None:
    rig = Rig()
    rig.participants.ends[1] = ended
    request = rig.commit()
    rig.run()
    answer = rig.answers[request]
    reported = ((names(2)[1], ended.value),)
    assert isinstance(answer, OutcomeAnswer) and (answer.state, answer.hazards) == (C, reported)
    assert rig.log.outcomes[ID].hazards == reported
    assert [note.event for note in rig.notes] == ["hazard"]
    assert not rig.core.transactions


def test_history_26_nothing_in_the_log_is_never_rolled_back() -> None:
    rig = Rig()
    commit = rig.commit()
    rig.run()
    assert rig.state(commit) is C
    asked = rig.outcome()
    rig.run()
    assert rig.state(asked) is C
    rig.log.outcomes.clear()
    for fence in (False, True):
        asked = rig.outcome(fence=fence)
        rig.run()
        assert rig.state(asked) is State.NOT_KNOWN


def test_history_26_a_transaction_of_another_history_is_not_begun() -> None:
    rig = Rig()
    request = rig.commit(tag=generation_tag("00000000-old"))
    rig.run()
    assert rig.state(request) is State.NOT_KNOWN
    assert rig.participants.told == [[], []]


@pytest.mark.parametrize("held", [TellBranch, Decide])
def test_history_26_what_is_undecided_in_another_history_is_left_to_operators(held: type) -> None:
    """etcd was set back: the decision may have been made, told and lost."""
    rig = Rig()
    commit = rig.commit()
    effects = rig.run(lambda effect: isinstance(effect, held))
    rig.log.generation = "another-history"
    rig.waiting.extend(effects)
    rig.run()
    assert rig.state(commit) is State.UNDECIDED
    del rig.log.presences[rig.process]
    other = Rig("C2", rig.log, rig.participants)
    fence = other.outcome(fence=True)
    other.run()
    other.pass_time(LIMITS.elsewhere_ms + 2_000)
    assert other.state(fence) is State.UNDECIDED
    assert rig.participants.verbs() == [None, None] and not rig.log.decisions
    assert not rig.core.transactions and not other.core.transactions


def test_history_26_what_was_decided_in_another_history_is_completed() -> None:
    rig = Rig()
    rig.commit()
    rig.run(ends)
    rig.log.generation = "another-history"
    del rig.log.presences[rig.process]
    other = Rig("C2", rig.log, rig.participants)
    other.pass_time(3_000)
    assert rig.participants.verbs() == [Verb.COMMIT, Verb.COMMIT]
    assert not other.log.decisions


def test_a_repeated_commit_hears_the_first_ones_outcome() -> None:
    for votes, expected in (((Vote.OK, Vote.OK), C), ((Vote.OK, Vote.NO), A)):
        rig = Rig(participants=Participants(votes))
        rig.commit()
        rig.run()
        rig.participants.votes = [Vote.UNKNOWN_BRANCH, Vote.UNKNOWN_BRANCH]
        other = Rig("C2", rig.log, rig.participants)
        again = other.commit()
        other.run()
        assert other.state(again) is expected


def test_a_commit_that_comes_too_late_is_not_begun() -> None:
    """Its outcome may have left the log: begun anew, it would leave an ABORT for all to read."""
    rig = Rig()
    rig.now_ms += LIMITS.age_ms_max + 1
    request = rig.commit()
    rig.run()
    assert rig.state(request) is State.NOT_KNOWN
    assert rig.participants.told == [[], []] and not rig.log.outcomes


@pytest.mark.parametrize("is_fence", [False, True])
def test_whoever_asks_behind_a_commit_that_came_too_late_is_answered(is_fence: bool) -> None:
    rig = Rig()
    rig.now_ms += LIMITS.age_ms_max + 1
    rig.commit()
    asked = rig.outcome(fence=True) if is_fence else rig.commit()
    rig.run()
    assert asked in rig.answers
    assert not rig.core.transactions


# Time-outs of open transactions


def begin_and_enlist(rig: Rig, count: int) -> None:
    rig.feed(BeginAsked(RequestId(100), ID, TAG, 1_000))
    for number, name in enumerate(names(count)):
        rig.feed(EnlistAsked(RequestId(101 + number), ID, TAG, number, name))


def test_a_transaction_that_nobody_commits_is_rolled_back_when_its_time_is_over() -> None:
    rig = Rig()
    begin_and_enlist(rig, 2)
    rig.pass_time(900)
    assert rig.participants.told == [[], []]
    rig.pass_time(LIMITS.recovery_every_ms + 200)
    assert rig.participants.verbs() == [Verb.ROLL_BACK, Verb.ROLL_BACK]
    late = rig.commit()
    rig.run()
    assert rig.state(late) is A


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_time_out_leaves_alone_what_is_being_committed_elsewhere(is_closed: bool) -> None:
    rig = Rig()
    begin_and_enlist(rig, 2)
    other = Rig("C2", rig.log, rig.participants)
    if is_closed:
        other.close()
        other.run()
    else:
        request = other.commit()
        held = other.run(lambda effect: isinstance(effect, Decide))
    rig.pass_time(LIMITS.recovery_every_ms + 1_200)
    assert [note.event for note in rig.notes] == ["timed_out"]
    assert not rig.log.decisions and not rig.core.transactions
    if is_closed:
        request = other.commit(is_closed=True)
    else:
        other.perform(held[0])
    other.run()
    assert other.state(request) is C


def test_a_time_out_of_a_single_participant_is_left_to_that_participant() -> None:
    """It may be committing in one phase elsewhere, and the log could not decide that race."""
    rig = Rig()
    begin_and_enlist(rig, 1)
    rig.pass_time(LIMITS.recovery_every_ms + 1_200)
    assert rig.participants.told == [[], []] and rig.core.open_count == 0


@pytest.mark.parametrize("other", [Completion.UNKNOWN_BRANCH, Completion.ROLLED_BACK])
def test_a_time_out_leaves_no_outcome_behind_what_was_committed_in_one_phase_elsewhere(
    other: Completion,
) -> None:
    """The second was enlisted by a call that its client gave up: it names, and commits, the first alone."""
    rig = Rig()
    begin_and_enlist(rig, 2)
    second = Rig("C2", rig.log, rig.participants)
    committed = second.commit(1)
    second.run()
    rig.participants.ends = {0: Completion.COMMITTED, 1: other}
    rig.pass_time(LIMITS.recovery_every_ms + 1_200)
    for fence in (False, True):
        asked = second.outcome(fence=fence)
        second.run()
        assert (second.state(committed), second.state(asked)) == (C, State.NOT_KNOWN)
    assert [note.event for note in rig.notes] == ["timed_out", "committed_in_one_phase"]
    assert not rig.log.participants and not rig.log.decisions and not rig.log.outcomes


@pytest.mark.parametrize("first", [Completion.COMMITTED, Completion.UNREACHABLE])
@pytest.mark.parametrize("is_fence", [True, False])
def test_while_a_time_out_is_told_its_abort_is_no_outcome_of_what_may_have_been_committed_in_one_phase(
    first: Completion, is_fence: bool
) -> None:
    """Whoever asked meanwhile, of any coordinator, heard that it was rolled back, and its client that it had committed."""
    rig = Rig()
    begin_and_enlist(rig, 2)
    second = Rig("C2", rig.log, rig.participants)
    committed = second.commit(1)
    second.run()
    rig.participants.ends = {0: first, 1: Completion.UNREACHABLE}
    rig.pass_time(LIMITS.recovery_every_ms + 1_200 + LIMITS.answer_ms)
    assert rig.log.view(ID).decision is Verdict.ABORT
    for asked_of in (rig, second):
        asked = asked_of.outcome(fence=is_fence)
        asked_of.run()
        assert asked_of.state(asked) in (State.UNDECIDED, State.NOT_KNOWN)
    assert second.state(committed) is C
    third = Rig("C3", rig.log, rig.participants)
    rig.participants.ends = {0: Completion.COMMITTED}
    third.now_ms = rig.now_ms + LIMITS.elsewhere_ms
    third.pass_time(2_000)
    assert not third.log.outcomes and not third.log.decisions, "whoever takes it up leaves none, either"
    assert "hazard" not in [note.event for note in third.notes]


def test_a_time_out_leaves_no_outcome_where_the_first_participant_may_have_forgotten_its_commit() -> None:
    rig = Rig()
    begin_and_enlist(rig, 2)
    second = Rig("C2", rig.log, rig.participants)
    committed = second.commit(1)
    second.run()
    rig.participants.ends = {0: Completion.UNKNOWN_BRANCH, 1: Completion.UNKNOWN_BRANCH}
    rig.pass_time(LIMITS.recovery_every_ms + 1_200)
    assert not rig.log.participants and not rig.log.outcomes
    assert second.state(committed) is C


@pytest.mark.parametrize(
    ("says", "is_kept"), [(Completion.UNKNOWN_BRANCH, True), (Completion.FORGOTTEN, False)]
)
def test_a_time_out_leaves_an_outcome_where_the_first_set_would_know_that_it_has_committed(
    says: Completion, is_kept: bool
) -> None:
    rig = Rig()
    rig.feed(BeginAsked(RequestId(100), ID, TAG, 1_000))
    for number in (0, 1):
        rig.feed(EnlistAsked(RequestId(101 + number), ID, TAG, number, ParticipantName(f"set:s{number}")))
    rig.participants.ends = {0: says, 1: Completion.UNKNOWN_BRANCH}
    rig.pass_time(LIMITS.recovery_every_ms + 1_200)
    assert not rig.log.participants and bool(rig.log.outcomes) is is_kept


@pytest.mark.parametrize(
    ("says", "state", "status"),
    [
        (Completion.UNKNOWN_BRANCH, A, XaStatus.HEURMIX),
        (Completion.FORGOTTEN, State.NOT_KNOWN, XaStatus.HEURMIX),
        (Completion.COMMITTED, State.NOT_KNOWN, XaStatus.HEURCOM),
    ],
)
def test_what_operators_ended_against_a_time_out_is_told_and_kept_whatever_the_first_set_says(
    says: Completion, state: State, status: XaStatus
) -> None:
    """Where that one may have committed alone, no outcome stands beside it."""
    rig = Rig()
    rig.feed(BeginAsked(RequestId(100), ID, TAG, 1_000))
    for number in (0, 1):
        rig.feed(EnlistAsked(RequestId(101 + number), ID, TAG, number, ParticipantName(f"set:s{number}")))
    rig.participants.ends = {0: says, 1: Completion.HEURISTICALLY_COMMITTED}
    rig.pass_time(LIMITS.recovery_every_ms + 1_200)
    assert not rig.log.participants and not rig.log.decisions
    (told,) = [note.details for note in rig.notes if note.event == "hazard"]
    assert "participant=set:s1" in told
    kept = rig.log.heuristics[ID]
    assert kept.hazards == ((ParticipantName("set:s1"), "heuristically committed"),)
    assert (kept.verdict, kept.heuristic) == (Verdict.ABORT, status)
    assert kept.is_known is (ID in rig.log.outcomes) is (state is A)
    asked = rig.outcome()
    rig.run()
    assert rig.state(asked) is state


def test_whoever_waits_for_a_time_out_hears_what_operators_did_beside_a_commit_in_one_phase() -> None:
    rig = Rig()
    begin_and_enlist(rig, 2)
    rig.participants.ends = {0: Completion.COMMITTED, 1: Completion.UNREACHABLE}
    rig.pass_time(LIMITS.recovery_every_ms + 1_200)
    asked = rig.rollback()
    rig.participants.ends[1] = Completion.HEURISTICALLY_COMMITTED
    rig.pass_time(LIMITS.retry_ms_max + 100)
    hazards = ((names(2)[1], "heuristically committed"),)
    assert rig.answers[asked] == OutcomeAnswer(asked, State.NOT_KNOWN, hazards, (), XaStatus.HEURCOM)


def test_whoever_waits_for_a_time_out_hears_nothing_of_what_was_committed_in_one_phase_elsewhere() -> None:
    rig = Rig()
    begin_and_enlist(rig, 2)
    rig.participants.ends = {0: Completion.COMMITTED, 1: Completion.UNREACHABLE}
    rig.pass_time(LIMITS.recovery_every_ms + 1_200)
    asked = rig.rollback()
    rig.participants.ends[1] = Completion.ROLLED_BACK
    rig.pass_time(LIMITS.retry_ms_max + 100)
    assert rig.answers[asked] == OutcomeAnswer(asked, State.NOT_KNOWN)


@pytest.mark.parametrize(("takes_ms", "rests_ms"), [(50, 950), (500, 5_000), (3_000, 10_000)])
def test_the_longer_a_look_at_the_log_takes_the_longer_is_the_rest_until_the_next(
    takes_ms: int, rests_ms: int
) -> None:
    """With very many transactions in the log nothing else goes on in most of it."""
    rig = Rig()
    rig.pass_time(LIMITS.recovery_every_ms)

    def is_listing(effect: Effect) -> bool:
        return isinstance(effect, ListLog)

    while not (held := rig.pass_time(50, is_listing)):
        pass
    for _ in range(3):
        assert not rig.pass_time(takes_ms - 50, is_listing), "one at a time"
        rig.perform(held[0])
        heard_ms = rig.now_ms + 50
        while not (held := rig.pass_time(50, is_listing)):
            pass
        assert rests_ms <= rig.now_ms - heard_ms <= rests_ms + 50


# Closing


def test_a_closed_transaction_that_somebody_finished_is_not_begun_anew() -> None:
    rig = Rig()
    closed = rig.close()
    rig.run()
    assert rig.answers[closed] == BegunAnswer(closed)
    fence = rig.outcome(fence=True)
    rig.run()
    assert rig.state(fence) is A
    rig.log.outcomes.clear()
    request = rig.commit(is_closed=True)
    rig.run()
    assert rig.state(request) is State.NOT_KNOWN
    assert Verb.PREPARE not in rig.participants.told[0]


def test_a_closed_transaction_is_committed_by_any_coordinator_and_becomes_its_own() -> None:
    first = Rig("C1")
    first.close()
    first.run()
    second = Rig("C2", first.log, first.participants)
    request = second.commit(is_closed=True)
    second.run(lambda effect: isinstance(effect, Decide))
    entry = second.log.view(ID).participants
    assert entry is not None and (entry.owner, entry.is_closed) == ("C2", False)
    assert second.state(request) is None


def test_a_recoverer_leaves_alone_what_was_taken_over_since_it_looked() -> None:
    first = Rig("C1")
    first.close()
    first.run()
    del first.log.presences[first.process]
    recoverer = Rig("C2", first.log, first.participants)
    recoverer.now_ms += LIMITS.recovery_every_ms
    read = recoverer.pass_time(50, lambda effect: isinstance(effect, ReadLog))
    assert len(read) == 1
    third = Rig("C3", first.log, first.participants)
    request = third.commit(is_closed=True)
    held = third.run(lambda effect: isinstance(effect, Decide))
    recoverer.perform(read[0])
    recoverer.run()
    third.perform(held[0])
    third.run()
    assert third.state(request) is C


@pytest.mark.parametrize("count", [1, 3])
def test_closed_with_others_than_committed_is_refused(count: int) -> None:
    rig = Rig()
    rig.close()
    rig.run()
    request = rig.commit(count, is_closed=True)
    rig.run()
    answer = rig.answers[request]
    assert isinstance(answer, Refusal) and answer.code is ErrorCode.ILLEGAL_STATE


def test_closing_twice_is_closing_once() -> None:
    rig = Rig()
    rig.close()
    rig.run()
    again = rig.close()
    rig.run()
    assert rig.answers[again] == BegunAnswer(again)
    other = rig.close(3)
    rig.run()
    assert isinstance(rig.answers[other], Refusal)


# Limits and laws


def test_what_is_too_much_is_refused() -> None:
    rig = Rig(limits=CoordinatorLimits(participants_max=2, transactions_max=1))
    answer = rig.answers[rig.commit(3)]
    assert isinstance(answer, Refusal) and answer.code is ErrorCode.TOO_LARGE
    assert answer.limit == "participants_max"
    busy = Rig(limits=CoordinatorLimits(transactions_max=0))
    answer = busy.answers[busy.commit()]
    assert isinstance(answer, Refusal) and answer.code is ErrorCode.UNAVAILABLE
    assert answer.limit == "transactions_max"


def test_outcomes_are_kept_longer_than_anybody_may_begin() -> None:
    with pytest.raises(ValueError):
        CoordinatorLimits(outcome_ms=LIMITS.age_ms_max)


def test_every_phase_leads_to_the_end() -> None:
    reached = {Phase.ENDED}
    for _ in Phase:
        reached |= {phase for phase, followers in NEXT.items() if followers & reached}
    assert reached == set(Phase) == set(NEXT)


def test_an_answer_that_comes_twice_is_ignored() -> None:
    rig = Rig()
    request = rig.commit()
    tells = rig.run(lambda effect: isinstance(effect, TellBranch))
    answers = [rig.participants.tell(tell) for tell in tells if isinstance(tell, TellBranch)]
    for answer in [*answers, *answers]:
        rig.feed(answer)
    rig.run()
    for answer in answers:
        rig.feed(answer)
    assert rig.state(request) is C


def test_a_participant_that_votes_and_vanishes_is_told_until_it_is_back() -> None:
    rig = Rig()
    rig.participants.ends[0] = Completion.UNREACHABLE
    rig.commit()
    rig.run()
    rig.pass_time(60_000)
    assert ID in rig.log.decisions
    del rig.participants.ends[0]
    rig.pass_time(LIMITS.retry_ms_max + 100)
    assert not rig.log.decisions


def test_a_request_that_is_dropped_costs_no_look_at_the_transactions_of_others() -> None:
    """As many are dropped as were waiting, when a proxy dies or the network is gone."""

    def calls(others: int) -> int:
        rig = Rig()
        dropped = rig.commit()
        for number in range(others):
            global_id = new_global_id(1_000_000, number.to_bytes(10))
            rig.feed(CommitAsked(RequestId(100 + number), global_id, TAG, names(2), False))
        with CountedCalls() as counted:
            rig.feed(RequestDropped(dropped))
        rig.run()
        assert rig.state(dropped) is None and len(rig.answers) == others
        return counted.total

    assert calls(others=1) == calls(others=100)


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_request_that_was_answered_may_be_dropped(is_refused: bool) -> None:
    """Its caller was gone before the answer was on its way."""
    rig = Rig()
    if is_refused:
        rig.close()
        rig.run()
    request = rig.commit(1 if is_refused else 2, is_closed=is_refused)
    rig.run()
    assert isinstance(rig.answers[request], Refusal if is_refused else OutcomeAnswer)
    rig.feed(RequestDropped(request))
    assert not rig.core.transactions


def test_what_another_has_left_undecided_is_aborted_only_when_the_roll_was_answered() -> None:
    """Its COMMIT may be lost with what etcd lacks (history 26)."""
    first = Rig("C1")
    first.close()
    first.run()
    log = first.log
    log.is_unattested = True
    second = Rig("C2", log, first.participants)
    request = second.rollback(is_closed=True)
    second.pass_time(10_000)
    assert log.view(ID).decision is None and log.view(ID).participants is not None
    assert first.participants.told == [[], []]
    log.is_unattested = False
    second.pass_time(5_000)
    assert second.state(request) is A and first.participants.verbs() == [Verb.ROLL_BACK] * 2


@pytest.mark.parametrize("is_closed", [True, False], ids=["a list of another", "no list"])
def test_a_commit_that_may_have_been_decided_before_is_aborted_only_when_the_roll_was_answered(
    is_closed: bool,
) -> None:
    """It is asked for again, in an etcd that may have lost its COMMIT: one branch has committed, another cannot (history 26)."""
    first = Rig("C1")
    if is_closed:
        first.close()
        first.run()
    log = first.log
    log.is_unattested = True
    second = Rig("C2", log, Participants([Vote.COMMITTED, Vote.NO]))
    request = second.commit(is_closed=is_closed)
    second.pass_time(10_000)
    assert log.view(ID).decision is None and log.view(ID).participants is not None
    assert second.participants.verbs() == [None, None]
    second.pass_time(LIMITS.doubt_ms)
    assert second.state(request) is State.UNDECIDED
    log.is_unattested = False
    second.pass_time(5_000)
    assert second.participants.verbs() == [Verb.ROLL_BACK] * 2


def test_a_rollback_of_what_may_have_been_committed_is_decided_only_when_the_roll_was_answered() -> None:
    """Its client was not told of the COMMIT, rolls back at another coordinator, and etcd has lost that COMMIT (history 26)."""
    rig = Rig("C2", participants=Participants([Vote.COMMITTED, Vote.COMMITTED]))
    rig.log.is_unattested = True
    request = rig.rollback()
    rig.pass_time(10_000)
    assert rig.log.view(ID).decision is None and rig.participants.verbs() == [None, None]
    rig.pass_time(LIMITS.doubt_ms)
    assert rig.state(request) is State.UNDECIDED
    rig.log.is_unattested = False
    rig.pass_time(5_000)
    assert rig.participants.verbs() == [Verb.ROLL_BACK] * 2


@pytest.mark.parametrize("is_known", [True, False], ids=["known here", "younger than this process"])
def test_what_was_begun_in_its_life_a_coordinator_aborts_without_a_roll_call(is_known: bool) -> None:
    """Who could have decided it, it would know of: etcd had no time to lose that unseen."""
    rig = Rig("C1", participants=Participants([Vote.OK, Vote.NO]))
    rig.log.is_unattested = True
    if is_known:
        rig.feed(BeginAsked(RequestId(100), ID, TAG, 0))
    else:
        rig.now_ms -= LIMITS.clock_ms + 50
        rig.feed(Tick())
        rig.pass_time(LIMITS.clock_ms + 50)
    request = rig.commit()
    rig.pass_time(1_000)
    assert rig.state(request) is A


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("is_back", [True, False], ids=["in sight again", "not yet"])
@pytest.mark.parametrize("is_known", [True, False], ids=["known here", "younger than this process"])
def test_what_was_begun_while_the_log_was_out_of_sight_is_decided_only_when_the_roll_was_answered(
    is_known: bool, is_back: bool, is_commit: bool
) -> None:
    """Another may have decided it meanwhile, and etcd been set back and have passed all that was seen here (history 26)."""
    rig = Rig("C1")
    rig.now_ms -= LIMITS.clock_ms + 60_000
    rig.pass_time(LIMITS.clock_ms + 60_000)
    if is_known:
        rig.feed(BeginAsked(RequestId(100), ID, TAG, 0))
    rig.is_blind = True
    rig.pass_time(LIMITS.unasked_ms + 2_000)
    rig.is_blind = not is_back
    rig.pass_time(50)
    rig.log.is_unattested = True
    request = rig.commit() if is_commit else rig.rollback()
    rig.pass_time(4_000)
    assert rig.log.view(ID).decision is None and rig.log.view(ID).outcome is None
    assert rig.participants.verbs() == [None, None]
    rig.log.is_unattested = False
    rig.pass_time(5_000)
    assert rig.state(request) is (C if is_commit else A)


def test_a_list_that_was_asked_for_while_the_log_was_out_of_sight_is_fenced_behind_a_roll_call() -> None:
    """It is this coordinator's own, and young: its client had it closed elsewhere meanwhile, and committed (history 26)."""
    rig = Rig("C1")
    rig.pass_time(1_000)
    rig.is_blind = True
    rig.pass_time(LIMITS.unasked_ms + 2_000)
    rig.close()
    rig.run()
    rig.log.is_unattested = True
    request = rig.outcome(fence=True)
    wait_for_the_roll(rig, 4_000, 5_000)
    assert rig.state(request) is A


def test_a_list_that_is_written_too_late_is_decided_behind_a_roll_call() -> None:
    """Its time is over before it is in the log: that it is to be aborted does not stand there with it."""
    rig = Rig("C1")
    rig.log.is_unattested = True
    rig.commit()
    (write,) = rig.waiting
    rig.waiting.clear()
    rig.pass_time(LIMITS.prepare_ms)
    assert isinstance(write, WriteParticipants)
    rig.doubt(write.ticket)
    wait_for_the_roll(rig, 5_000, 5_000)
    assert rig.participants.verbs() == [Verb.ROLL_BACK] * 2 and rig.log.view(ID).outcome is not None


def test_a_coordinator_aborts_what_it_has_written_itself_without_a_roll_call() -> None:
    rig = Rig("C1")
    rig.close()
    rig.run()
    rig.log.is_unattested = True
    request = rig.rollback(is_closed=True)
    rig.pass_time(1_000)
    assert rig.state(request) is A


def test_a_coordinator_that_comes_back_late_decides_only_when_the_roll_was_answered() -> None:
    """With all votes in its hands: another may have rolled a branch back, by a decision that etcd has lost (history 26)."""
    rig = Rig("C1")
    request = rig.commit()
    (decide,) = rig.run(lambda effect: isinstance(effect, Decide))
    assert isinstance(decide, Decide) and not decide.needs_roll
    rig.log.is_unattested = True
    rig.pass_time(LIMITS.unasked_ms)
    rig.doubt(decide.ticket)
    wait_for_the_roll(rig, 5_000, 3_000)
    assert rig.state(request) is C


def test_votes_that_come_too_late_abort_only_when_the_roll_was_answered() -> None:
    rig = Rig("C1", participants=Participants([Vote.OK, Vote.UNREACHABLE]))
    rig.log.is_unattested = True
    rig.commit()
    wait_for_the_roll(rig, LIMITS.prepare_ms + 2_000, 3_000)
    outcome = rig.log.view(ID).outcome
    assert outcome is not None and outcome.verdict is Verdict.ABORT


def test_a_time_out_is_decided_only_when_the_roll_was_answered() -> None:
    """Nothing is in the log: another may have decided it, and etcd have lost all of that."""
    rig = Rig("C1")
    rig.feed(BeginAsked(RequestId(100), ID, TAG, 1_000))
    for number, name in enumerate(names(2)):
        rig.feed(EnlistAsked(RequestId(101 + number), ID, TAG, number, name))
    rig.log.is_unattested = True
    rig.pass_time(10_000)
    assert rig.log.view(ID).participants is None and rig.log.view(ID).outcome is None
    rig.log.is_unattested = False
    rig.pass_time(5_000)
    outcome = rig.log.view(ID).outcome
    assert outcome is not None and outcome.verdict is Verdict.ABORT


@pytest.mark.parametrize("wall_ahead_ms", [0, -3_600_000], ids=["clock goes on", "clock set back"])
def test_a_list_of_its_own_that_has_stood_for_long_is_aborted_only_when_the_roll_was_answered(
    wall_ahead_ms: int,
) -> None:
    rig = Rig("C1")
    rig.close()
    rig.run()
    rig.pass_time(LIMITS.unasked_ms)
    rig.wall_ahead_ms = wall_ahead_ms
    rig.log.is_unattested = True
    request = rig.rollback(is_closed=True)
    wait_for_the_roll(rig, 2_000, 3_000)
    assert rig.state(request) is A


def test_what_all_have_acknowledged_is_left_to_operators_where_another_history_has_lost_its_decision() -> (
    None
):
    """etcd was set back to when it was undecided, and the map was rebuilt: nobody can delete it as it was decided."""
    rig = Rig("C1")
    request = rig.commit()
    (delete,) = rig.run(lambda effect: isinstance(effect, DeleteTransaction))
    assert isinstance(delete, DeleteTransaction) and rig.state(request) is C
    rig.log.decisions.clear()
    rig.log.is_unattested = True
    rig.doubt(delete.ticket)
    rig.pass_time(5_000)
    assert rig.core.transactions, "the newer state may come back"
    rig.log.generation = "another-history"
    rig.pass_time(5_000)
    assert not rig.core.transactions and rig.log.view(ID).participants is not None
    assert [note.event for note in rig.notes] == ["undecided_of_another_history"]


@pytest.mark.parametrize("votes", [(Vote.OK, Vote.OK), (Vote.OK, Vote.NO)], ids=["commit", "abort"])
@pytest.mark.parametrize("owner", ["C1", "C2"])
def test_what_all_have_acknowledged_leaves_an_etcd_that_has_lost_its_decision(
    votes: tuple[Vote, Vote], owner: str
) -> None:
    """It was set back by so little that nobody can notice. Its list is there, undecided, or another's who has begun with it."""
    rig = Rig("C1", participants=Participants(votes))
    request = rig.commit()
    (delete,) = rig.run(lambda effect: isinstance(effect, DeleteTransaction))
    told = rig.state(request)
    assert told in (C, A)
    rig.log.decisions.clear()
    other = Rig("C2", rig.log, Participants(votes))
    other.now_ms = rig.now_ms
    decides: list[Effect] = []
    if owner == "C2":
        rig.log.participants.clear()
        other.commit()
        decides = other.run(lambda effect: isinstance(effect, Decide))
    rig.perform(delete)
    rig.pass_time(5_000)
    assert not rig.core.transactions and not rig.log.participants and not rig.log.decisions
    outcome = rig.log.outcomes[ID]
    assert (STATES[outcome.verdict], outcome.heuristic, outcome.hazards) == (told, XaStatus.OK, ())
    for decide in decides:
        other.perform(decide)
    asked = other.outcome()
    other.run()
    assert other.state(asked) is told and not other.core.transactions


def test_a_decision_that_etcd_lacks_is_taken_for_lost_only_when_the_roll_was_answered() -> None:
    """The newer state may come back, and the branches be asked again."""
    rig = Rig("C1")
    rig.commit()
    (delete,) = rig.run(lambda effect: isinstance(effect, DeleteTransaction))
    rig.log.decisions.clear()
    rig.log.is_unattested = True
    rig.perform(delete)
    rig.pass_time(5_000)
    assert rig.core.transactions and rig.log.participants
    rig.log.is_unattested = False
    rig.pass_time(5_000)
    assert not rig.core.transactions and rig.log.outcomes[ID].verdict is Verdict.COMMIT


def test_a_decision_that_comes_back_is_deleted_as_it_stands() -> None:
    rig = Rig("C1")
    rig.commit()
    (delete,) = rig.run(lambda effect: isinstance(effect, DeleteTransaction))
    kept = dict(rig.log.decisions)
    rig.log.decisions.clear()
    rig.log.is_unattested = True
    rig.perform(delete)
    rig.pass_time(5_000)
    rig.log.decisions.update(kept)
    rig.pass_time(5_000)
    assert not rig.core.transactions and not rig.log.participants and not rig.log.decisions
    assert rig.log.outcomes[ID].verdict is Verdict.COMMIT
