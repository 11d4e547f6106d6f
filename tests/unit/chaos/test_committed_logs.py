"""The committed log against what AMQP clients heard: what the checkers find, though no client knows its transaction's id."""

import pytest

from lockstep.client.client import Client
from lockstep.core.frames import encode_frame
from lockstep.core.ids import Epoch, LogIndex, QueueId, TimeMs, TransactionKey
from lockstep.core.records import AnyRecord, DeclareQueue, Message, Prepare, Publish, Rollback
from tests.chaos.account import Attempt
from tests.chaos.committed_logs import check_against_clients
from tests.chaos.liveness import Liveness
from tests.chaos.mixed_workload import MixedWorkload

SET = "main"
NOBODY = ("127.0.0.1:1",)
OURS, ANOTHERS = QueueId(1), QueueId(2)
TRANSACTION: TransactionKey = (LogIndex(3), Epoch(1))
COMMIT = Prepare(None, TRANSACTION, commit_when_prepared=True)
ROLLBACK = Rollback(None, TRANSACTION, 1)


def workload(is_committed: bool | None) -> MixedWorkload:
    """Of one attempt to publish two numbers."""
    made = MixedWorkload(Client(NOBODY), NOBODY, NOBODY, SET, Liveness(), name="one")
    made.readers = []
    mark = made.account.next_mark()
    bodies = frozenset((b"a>" + mark, b"b>" + mark))
    made.account.attempts[mark] = Attempt(bodies, False, transaction=None, is_committed=is_committed)
    return made


def published(*bodies: bytes, queue: QueueId = OURS) -> Publish:
    messages = tuple(Message((queue,), b"", body, is_durable=True) for body in bodies)
    return Publish(None, TRANSACTION, 0, messages)


def log(*records: AnyRecord) -> list[bytes]:
    """With the queues declared first: the workload's, and another workload's."""
    declared: list[AnyRecord] = [DeclareQueue(None, f"{SET}-{name}-in", True) for name in ("one", "two")]
    pairs = [(record, True) for record in (*declared, *records)]
    return [encode_frame(Epoch(1), LogIndex(1), LogIndex(0), TimeMs(1), pairs).durable]


@pytest.mark.parametrize("is_committed", [True, None])
async def test_what_is_committed_may_have_been_heard_so_or_not_at_all(is_committed: bool | None) -> None:
    check_against_clients(SET, log(published(b"a>one1", b"b>one1"), COMMIT), workload(is_committed))


@pytest.mark.parametrize("is_committed", [False, None])
async def test_what_is_not_committed_may_have_been_heard_so_or_not_at_all(is_committed: bool | None) -> None:
    check_against_clients(SET, log(published(b"a>one1", b"b>one1"), ROLLBACK), workload(is_committed))
    check_against_clients(SET, log(), workload(is_committed))


@pytest.mark.parametrize("is_committed", [False, None])
async def test_marks_of_another_workload_say_nothing_of_this_one(is_committed: bool | None) -> None:
    check_against_clients(SET, log(published(b"a>two1", queue=ANOTHERS), COMMIT), workload(is_committed))


@pytest.mark.parametrize(
    ("is_committed", "records", "words"),
    [
        (True, (), "is not in the log"),
        (True, (published(b"a>one1", b"b>one1"), ROLLBACK), "the log did not commit it"),
        (True, (published(b"a>one1"), COMMIT), "is not in its committed transaction"),
        (False, (published(b"a>one1", b"b>one1"), COMMIT), "was rejected"),
        (None, (published(b"a>one1", b"a>one1"), COMMIT), "times in queue"),
    ],
)
async def test_what_is_wrong_is_found(
    is_committed: bool | None, records: tuple[AnyRecord, ...], words: str
) -> None:
    with pytest.raises(AssertionError, match=words):
        check_against_clients(SET, log(*records), workload(is_committed))
