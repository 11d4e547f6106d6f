"""P5 Recoverable: a prepared DTX is in `recover()` with all its durable effects, on every replica, whatever happened.

It holds for whatever the log prepared and did not end; worlds with coordinators prepare (`coordinated.py`).
"""

from collections.abc import Iterator

from tests.simulation.checkers.record import Record


def check(record: Record) -> Iterator[str]:
    for view in record.final_views:
        model = record.models[view.set_name]
        prepared = {key for key, life in model.transactions.items() if life.is_prepared and not life.ended}
        for key in sorted(prepared - set(view.prepared)):
            yield f"replica {view.broker} of {view.set_name} does not know the prepared transaction {key}"
        for key in sorted(set(view.prepared) - prepared):
            yield f"replica {view.broker} of {view.set_name} holds {key} as prepared, and the log ended it"
