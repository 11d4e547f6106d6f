"""The committed log of a set, read from the stores of a real cluster, and what its clients heard: by the simulator's checkers.

Law: the stores are asked, not the brokers: what the log means is worked out anew by `tests/simulation/log_model.py`. Only durable
records are in the journals, which is enough for P1 to P4, P6 and P8 of durable messages.
"""

from collections.abc import Collection, Iterable, Mapping

from lockstep.client.outcome import Outcome
from lockstep.core.errors import ErrorCode
from lockstep.core.frames import Frame, check_frame, decode_records
from lockstep.core.ids import Epoch, LogIndex, SetName, TransactionKey, parse_transaction_id
from lockstep.runtime.channels import open_channel
from lockstep.wire.v1 import store_pb2 as pb
from lockstep.wire.v1.store_pb2_grpc import StoreStub
from tests.chaos.account import MARK, Attempt
from tests.chaos.audited_workload import AuditedWorkload
from tests.simulation.checkers import CHECKERS
from tests.simulation.checkers.record import Record
from tests.simulation.history import Operation, OutcomeHeard
from tests.simulation.log_model import LogModel

_ANY_EPOCH = 1 << 40
"""Not below what the store has seen; reading raises nothing."""
READ_SECONDS = 60.0
PROMISES = ("P1", "P2", "P3", "P4", "P6", "P8")


async def read_journal(address: str, set_name: str) -> dict[int, bytes]:
    """Committed frames by their first index."""
    async with open_channel(address) as channel:
        request = pb.ReadJournalRequest(resource_set=set_name, epoch=_ANY_EPOCH)
        answers = StoreStub(channel).ReadJournal(request, wait_for_ready=True, timeout=READ_SECONDS)
        frames = [frame async for answer in answers for frame in answer.frames]
    return {check_frame(frame).first: frame for frame in frames}


def one_log(journals: Mapping[str, Mapping[int, bytes]]) -> list[bytes]:
    """What all stores hold, from index 1 on: they must not differ where two of them have something."""
    together: dict[int, tuple[str, bytes]] = {}
    for broker, journal in sorted(journals.items()):
        for first, frame in journal.items():
            other, known = together.setdefault(first, (broker, frame))
            assert known == frame, f"the frame at {first} differs between the disks of {other} and {broker}"
    frames, end = [], 0
    for first, (broker, frame) in sorted(together.items()):
        assert first == end + 1, f"a gap or an overlap in the logs: {broker} has {first} behind {end}"
        frames.append(frame)
        end = check_frame(frame).last
    assert frames, "no store has a log"
    return frames


async def check_clients_of(
    set_name: str,
    addresses: Mapping[str, str],
    workload: AuditedWorkload,
    earlier: Mapping[str, Mapping[int, bytes]] | None = None,
) -> LogModel:
    """As `check_against_clients`, with the log of the stores at `addresses` (by broker).

    `earlier`: what stores had before, by any names: one that starts again drops what its snapshot holds.
    """
    journals = {broker: await read_journal(address, set_name) for broker, address in addresses.items()}
    journals.update({name: dict(journal) for name, journal in (earlier or {}).items()})
    model = check_against_clients(set_name, one_log(journals), workload)
    committed = sum(life.is_committed for life in model.transactions.values())
    assert committed >= workload.report.committed
    return model


def model_of(frames: Iterable[bytes]) -> LogModel:
    """What a log means. `frames`: all of them, in order."""
    model = LogModel()
    for durable in frames:
        header = check_frame(durable)
        for indexed in decode_records(Frame(header, durable, b"")):
            model.apply(indexed, Epoch(header.epoch))
    return model


def check_against_clients(set_name: str, frames: Iterable[bytes], workload: AuditedWorkload) -> LogModel:
    """Raises `AssertionError` for anything that the checkers find; answers the model for whoever wants to count."""
    model = model_of(frames)
    record = Record(models={SetName(set_name): model})
    by_mark = _transactions_by_mark(model, {workload.input, *workload.outputs})
    for mark, attempt in workload.account.attempts.items():
        if attempt.transaction is None:
            operations = _amqp_operations(mark.decode(), SetName(set_name), attempt, by_mark.get(mark))
        else:
            operations = _operations(mark.decode(), attempt)
        record.history.operations += operations
    for reader in workload.readers:
        assert reader.browses and reader.deliveries, f"{reader.name} was shown nothing"
        record.history.browses += reader.browses
        record.history.deliveries += reader.deliveries
    record.history.outcomes += [_heard(outcome) for outcome in workload.outcomes]
    broken = [f"{promise}: {sentence}" for promise in PROMISES for sentence in CHECKERS[promise](record)]
    assert not broken, "\n".join(broken[:10])
    return model


def _operations(mark: str, attempt: Attempt) -> list[Operation]:
    """What its caller heard of one transaction: the publishes in it, and the commit."""
    transaction = attempt.transaction
    if transaction is None or transaction.id is None:
        return []
    set_name, key = parse_transaction_id(transaction.id)
    client, was_in_doubt = f"attempt {mark}", transaction.was_in_doubt
    publish = Operation(client, set_name, "publish", 0, tuple(sorted(attempt.bodies)), transaction=key)
    commit = Operation(client, set_name, "commit", 0, transaction=key, is_in_doubt=was_in_doubt)
    if attempt.is_committed is not None:
        commit.ended_us = publish.ended_us = 0
        commit.code = ErrorCode.NONE if attempt.is_committed else ErrorCode.ROLLED_BACK
        publish.code = ErrorCode.NONE if attempt.is_committed else None
    return [publish, commit]


def _transactions_by_mark(model: LogModel, queues: Collection[str]) -> dict[bytes, TransactionKey]:
    """Of attempts that write their mark into their messages' bodies: the transaction that has them in the log.

    Marks are a workload's own, and so are its queues, which say whose mark it is.
    """
    own = {queue for queue, life in model.queues.items() if life.name in queues}
    return {
        message.body.rpartition(MARK)[2]: life.key
        for life in model.transactions.values()
        for publish in life.publishes
        for message in publish.messages
        if MARK in message.body and not own.isdisjoint(message.queues)
    }


def _amqp_operations(
    mark: str, set_name: SetName, attempt: Attempt, key: TransactionKey | None
) -> list[Operation]:
    """As `_operations`, for a client that does not know its transaction's id; `key`: the one that the log shows, if any.

    What it heard is committed has to be there, though no transaction of the log were found for it; what it heard is not must not.
    """
    client = f"AMQP attempt {mark}"
    publish = Operation(client, set_name, "publish", 0, tuple(sorted(attempt.bodies)), transaction=key)
    commit = Operation(client, set_name, "commit", 0, transaction=key)
    if attempt.is_committed is not None:
        publish.ended_us = commit.ended_us = 0
        publish.code = commit.code = ErrorCode.NONE if attempt.is_committed else ErrorCode.ROLLED_BACK
        publish.value = len(attempt.bodies)
    return [publish, commit]


def _heard(outcome: Outcome) -> OutcomeHeard:
    set_name, key = parse_transaction_id(outcome.transaction_id)
    return OutcomeHeard(
        0, "audit", set_name, outcome.epoch, LogIndex(outcome.commit_index), key, outcome.state, True
    )
