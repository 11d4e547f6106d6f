"""P7 Live: after healing everything ends: operations, joins, tx-queues."""

from collections.abc import Iterator

from tests.simulation.checkers.record import Record, seconds


def check(record: Record) -> Iterator[str]:
    yield from record.stuck
    for operation in record.history.operations:
        if operation.ended_us is None and operation.client not in record.departed:
            yield (
                f"{operation.client}'s {operation.kind} in {operation.set_name}, invoked at "
                f"{seconds(operation.invoked_us)}, never ended"
            )
    for view in record.final_views:
        if view.tx_queues or view.tx_queue_bytes:
            yield (
                f"replica {view.broker} of {view.set_name} still has {view.tx_queues} tx-queues "
                f"with {view.tx_queue_bytes} bytes at rest"
            )
        if view.open_transactions:
            yield f"replica {view.broker} of {view.set_name} still has {view.open_transactions} open transactions at rest"
