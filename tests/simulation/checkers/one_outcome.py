"""Every distributed transaction has one outcome: in all of its branches, and in every answer that its client got (T3, T4).

Nobody decides heuristically in the simulator, so that a hazard that a coordinator reports is one.
"""

from collections.abc import Iterator

from lockstep.core.ids import SetName
from services.coordinator.core.messages import State
from tests.simulation.checkers.record import Record
from tests.simulation.distributed import DistributedTransaction
from tests.simulation.log_model import TransactionLife


def check(record: Record) -> Iterator[str]:
    branches = {
        (set_name, life.xid): life
        for set_name, model in record.models.items()
        for life in model.transactions.values()
        if life.xid
    }
    for hazard in record.hazards:
        yield f"a coordinator reports a hazard, and there was no heuristic: {hazard}"
    for mine in record.distributed:
        yield from _check(mine, branches)
    for (set_name, _), life in branches.items():
        if not life.ended:
            state = "prepared" if life.is_prepared else "open"
            yield f"branch {life.key} of {set_name} is still {state} at rest"


def _check(
    mine: DistributedTransaction, branches: dict[tuple[SetName, bytes], TransactionLife]
) -> Iterator[str]:
    label = f"distributed transaction {mine.global_id.hex()} of {mine.client}"
    lives = [branches.get((set_name, mine.xid(number).encode())) for number, set_name in enumerate(mine.sets)]
    committed = [
        set_name
        for set_name, life in zip(mine.sets, lives, strict=True)
        if life is not None and life.is_committed
    ]
    undone = [set_name for set_name in mine.sets if set_name not in committed]
    if committed and undone:
        yield f"{label} is committed in {', '.join(committed)} and not in {', '.join(undone)}"
    if len(set(mine.told)) > 1:
        yield f"{label} was told as {' and '.join(state.value for state in mine.told)}"
    if State.COMMITTED in mine.told and undone:
        yield f"{label} was told as committed, and is not in {', '.join(undone)}"
    if State.ROLLED_BACK in mine.told and committed:
        yield f"{label} was told as rolled back, and is committed in {', '.join(committed)}"
    if mine.hazards:
        yield f"{label}: its client heard of {', '.join(mine.hazards)}"
    if not mine.told and not mine.is_abandoned and not mine.is_forgotten:
        yield f"{label}: its client never heard an outcome"
