"""What results of etcd mean to the coordinator's core."""

from lockstep.core.branch_names import GenerationTag, GlobalId, new_global_id
from lockstep.runtime.etcd_values import GetDone, TransactionResult
from services.coordinator.core.messages import LogInDoubt, LogRead, ReadLog, Ticket
from services.coordinator.log_changes import LogChanges

READ = ReadLog(Ticket(1), GlobalId(new_global_id(1, bytes(10))))


class Registration:
    """Of a coordinator that is there."""

    key = "/me"
    revision = 1
    generation: GenerationTag | None = GenerationTag("12345678")
    generation_value = b"12345678-"


def view_at(revision: int) -> TransactionResult:
    """Nothing is there."""
    return TransactionResult(True, revision, [GetDone(None)] * 4)


def test_an_answer_that_was_overtaken_by_a_later_one_is_no_sign_of_an_etcd_set_back() -> None:
    changes = LogChanges("c", Registration())
    seen = changes.revision_seen
    assert isinstance(changes.read(READ, view_at(7), seen), LogRead)
    assert isinstance(changes.read(READ, view_at(6), seen), LogRead)


def test_an_answer_from_before_what_was_known_when_it_was_asked_for_is_in_doubt() -> None:
    changes = LogChanges("c", Registration())
    changes.read(READ, view_at(7), changes.revision_seen)
    changes.read(READ, view_at(6), 0)
    assert changes.read(READ, view_at(6), changes.revision_seen) == LogInDoubt(READ.ticket)
