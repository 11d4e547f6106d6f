"""What a coordinator says of transactions that are not over."""

from lockstep.core.branch_names import GENERATION_TAG_CHARACTERS, GenerationTag, GlobalId, branch_xid
from lockstep.core.decision_log import ListRead, ParticipantsEntry
from lockstep.core.doubt_watch import DoubtFigures
from lockstep.core.ids import Incarnation
from lockstep.core.pieces import PIECE_COST
from services.coordinator.core.messages import (
    Effect,
    ListLog,
    LoggedTransaction,
    LogListed,
    Note,
    RecoverAnswer,
    RecoverAsked,
    RequestId,
    TellBranch,
    Woken,
)
from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.core.votes import Completion, Vote
from tests.unit.services.coordinator.rig import ID, LIMITS, TAG, Participants, Rig, names

SECOND = 1_000


def warnings(rig: Rig) -> list[Note]:
    assert all(note.is_warning == (note.event == "in_doubt") for note in rig.notes)
    return [note for note in rig.notes if note.is_warning]


def test_a_transaction_that_lacks_an_acknowledgement_is_warned_of_with_who_has_not_answered() -> None:
    rig = Rig(participants=Participants([Vote.OK, Vote.OK, Vote.READ_ONLY]))
    rig.participants.ends[1] = Completion.UNREACHABLE
    rig.commit(3)
    rig.run()
    rig.pass_time(LIMITS.in_doubt_ms - SECOND)
    assert not warnings(rig)
    assert rig.core.doubts.figures(rig.now_ms).overdue == 0
    rig.pass_time(3 * SECOND)
    missing = f"missing=[{names(2)[1]} xid={branch_xid(ID, 1, TAG)}]"
    (note,) = warnings(rig)
    assert note.global_id == ID
    assert note.details == f"age_seconds=60 phase='completing' decision=commit {missing}"
    figures = rig.core.doubts.figures(rig.now_ms)
    assert figures == DoubtFigures(1, (LIMITS.in_doubt_ms + 2 * SECOND) / 1000, 1)
    del rig.participants.ends[1]
    rig.pass_time(LIMITS.retry_ms_max + 2 * SECOND)
    assert rig.core.doubts.figures(rig.now_ms) == DoubtFigures(0, 0.0, 0)


def test_a_warning_is_repeated_at_a_growing_interval_and_not_at_every_tick() -> None:
    rig = Rig()
    rig.participants.ends[0] = Completion.UNREACHABLE
    rig.commit()
    rig.run()
    rig.pass_time(500 * SECOND)
    ages = [int(note.details.split()[0].removeprefix("age_seconds=")) for note in warnings(rig)]
    assert [age - age % 20 for age in ages] == [60, 120, 240, 480], "to a look or two"


def test_what_is_left_to_operators_is_warned_of_by_whoever_sees_it_in_the_log() -> None:
    """Undecided, in another history of the cluster: nobody has it in hand (history 26)."""
    rig = Rig()
    other = GenerationTag("x" * GENERATION_TAG_CHARACTERS)
    entry = ParticipantsEntry(names(2), other, Incarnation("gone"), rig.now_ms)
    rig.log.participants[ID] = entry, 1
    rig.pass_time(LIMITS.in_doubt_ms + 2 * SECOND)
    (note,) = warnings(rig)
    listed = " ".join(f"{name} xid={branch_xid(ID, number, other)}" for number, name in enumerate(names(2)))
    assert note.details == f'age_seconds=60 phase="nobody\'s" decision=none missing=[{listed}]'


def test_a_silent_log_does_not_silence_the_warnings() -> None:
    rig = Rig()

    def of_log(effect: Effect) -> bool:
        return not isinstance(effect, TellBranch)

    rig.commit()
    for _ in range(0, LIMITS.in_doubt_ms + 3 * SECOND, 50):
        for effect in rig.pass_time(50, of_log):
            assert not isinstance(effect, TellBranch)
            rig.doubt(effect.ticket)  # type: ignore[union-attr]
    (note,) = warnings(rig)
    assert "phase='writing' decision=none" in note.details


def test_a_long_list_is_cut_and_says_so() -> None:
    limits = CoordinatorLimits(in_doubt_ms=2 * SECOND)
    rig = Rig(participants=Participants([Vote.OK] * 20), limits=limits)
    rig.participants.ends = dict.fromkeys(range(3, 20), Completion.UNREACHABLE)
    rig.commit(20)
    rig.run()
    rig.pass_time(4 * SECOND)
    (note,) = warnings(rig)
    assert note.details.count("xid=") == 8 and note.details.endswith(" and 9 more]")


def test_a_look_does_not_say_more_than_its_limit() -> None:
    limits = CoordinatorLimits(in_doubt_ms=2 * SECOND, in_doubt_warnings_max=1)
    rig = Rig(limits=limits)
    for number in range(3):
        global_id = type(ID)(bytes([number]) * len(ID))
        other = GenerationTag("x" * GENERATION_TAG_CHARACTERS)
        rig.log.participants[global_id] = (
            ParticipantsEntry(names(2), other, Incarnation("gone"), rig.now_ms - 10 * SECOND),
            1,
        )
    found = []
    for _ in range(4):
        rig.pass_time(limits.recovery_every_ms)
        found.append(len(warnings(rig)))
    assert found == [1, 2, 3, 3]


def test_a_long_log_is_taken_in_a_piece_at_a_time_and_the_oldest_of_nobody_are_taken_up() -> None:
    rig = Rig()
    (listing,) = rig.pass_time(2 * SECOND, lambda effect: isinstance(effect, ListLog))[:1]
    assert isinstance(listing, ListLog)
    many = 20 * PIECE_COST
    found = tuple(
        LoggedTransaction(
            GlobalId(number.to_bytes(16, "big")),
            ParticipantsEntry(names(2), TAG, Incarnation("gone"), rig.now_ms - number),
            ListRead(1),
            None,
        )
        for number in range(many)
    )
    request = RequestId(1_000_000)
    rig.feed(RecoverAsked(request))
    rig.feed(LogListed(listing.ticket, found, frozenset(), TAG))
    turns = 0
    while turns < rig.wakes:
        assert request not in rig.answers
        turns += 1
        rig.feed(Woken())
    assert turns >= 3 * many // PIECE_COST, "what is listed, who is taken up, what is in doubt"
    answer = rig.answers[request]
    assert isinstance(answer, RecoverAnswer)
    oldest = [one.global_id for one in reversed(found[-LIMITS.recovered_max :])]
    assert list(answer.taken_up) == oldest
    assert rig.core.doubts.figures(rig.now_ms).count == many


def test_a_short_log_is_taken_in_at_once() -> None:
    rig = Rig()
    rig.commit()
    rig.pass_time(10 * SECOND)
    assert rig.wakes == 0
