"""P2 Consistent: one outcome per transaction, whoever says it: replicas, answers to commit and rollback, answers to GetOutcome.

That (index, epoch) names one content on every journal and stream is checked while the run goes on (`committed_log.py`).
"""

from collections.abc import Iterator

from lockstep.core.errors import ErrorCode
from lockstep.core.ids import LogIndex, SetName, TransactionKey
from lockstep.core.server_messages import OutcomeState
from tests.simulation.checkers.record import Record, seconds
from tests.simulation.history import Operation

_WORDS = {
    OutcomeState.COMMITTED: "committed",
    OutcomeState.HEURISTICALLY_COMMITTED: "committed",
    OutcomeState.ROLLED_BACK: "rolled back",
    OutcomeState.HEURISTICALLY_ROLLED_BACK: "rolled back",
}
_MEANS_ROLLED_BACK = (ErrorCode.ROLLED_BACK, ErrorCode.ROLLBACK_ONLY)


def check(record: Record) -> Iterator[str]:
    yield from _hashes(record)
    for set_name, key in record.refused:
        life = record.models[set_name].transactions.get((key[0], key[1]))
        if life is not None and life.is_committed:
            yield f"transaction {key} of {set_name} was refused while it was open, and is committed"
    for operation in record.history.operations:
        word = said_by(operation)
        if word is not None and operation.transaction is not None:
            who = f"{operation.client}'s {operation.kind} answered at {seconds(operation.ended_us or 0)}"
            yield from _compare(record, operation.set_name, operation.transaction, word, who)
    for heard in record.history.outcomes:
        if (word := _WORDS.get(heard.state)) is not None:
            who = f"{heard.client}'s GetOutcome at {seconds(heard.time_us)}"
            yield from _compare(record, heard.set_name, heard.transaction, word, who)
    for view in (*record.views, *record.final_views):
        for key, word in view.outcomes.items():
            who = f"replica {view.broker} at {seconds(view.time_us)}, applied {view.applied},"
            yield from _compare(record, view.set_name, key, word, who)


def said_by(operation: Operation) -> str | None:
    """The outcome that an answer claims, None if it claims none."""
    if operation.kind == "commit":
        if operation.is_ok:
            return "committed"
        return "rolled back" if operation.code in _MEANS_ROLLED_BACK else None
    if operation.kind == "rollback" and operation.is_ok:
        return "rolled back"
    return None


def _compare(record: Record, set_name: SetName, key: TransactionKey, word: str, who: str) -> Iterator[str]:
    life = record.models[set_name].transactions.get((key[0], key[1]))
    is_committed = life is not None and life.is_committed
    if is_committed != (word == "committed"):
        truth = "committed it" if is_committed else "did not commit it"
        yield f"{who} says that {key} of {set_name} was {word}, and the log {truth}"


def _hashes(record: Record) -> Iterator[str]:
    """Equal logs, equal states. (Transients that a restart took are gone behind the next epoch's record, on all.)"""
    known: dict[tuple[SetName, LogIndex], tuple[str, str]] = {}
    for view in (*record.views, *record.final_views):
        if not view.state_hash:
            continue
        who = f"{view.broker} at {seconds(view.time_us)}"
        other, by = known.setdefault((view.set_name, view.applied), (view.state_hash, who))
        if other != view.state_hash:
            yield f"at index {view.applied} of {view.set_name} {who} has another state than {by}"
