"""P6 Known outcome: whoever lost its connection during commit found out, and heard what the log says (P2 compares that)."""

from collections.abc import Iterator

from lockstep.core.server_messages import OutcomeState
from tests.simulation.checkers.record import Record, seconds

_FINAL = (
    OutcomeState.COMMITTED,
    OutcomeState.ROLLED_BACK,
    OutcomeState.HEURISTICALLY_COMMITTED,
    OutcomeState.HEURISTICALLY_ROLLED_BACK,
)


def check(record: Record) -> Iterator[str]:
    for set_name, unresolved in record.unresolved:
        yield f"the commit of {unresolved} in {set_name} was in doubt, and its client never heard an outcome"
    heard = {
        (outcome.set_name, outcome.transaction)
        for outcome in record.history.outcomes
        if outcome.state in (*_FINAL, OutcomeState.EXPIRED)
    }
    for operation in record.history.operations:
        key = operation.transaction
        if operation.kind != "commit" or not operation.is_in_doubt or key is None:
            continue
        if (operation.set_name, key) not in heard:
            yield (
                f"{operation.client}'s commit of {key} in {operation.set_name} was in doubt at "
                f"{seconds(operation.ended_us or 0)} and was never resolved"
            )
