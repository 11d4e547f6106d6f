"""P1 Atomic: at every commit index every replica and every reader sees all of a transaction, or nothing.

The model shows a transaction's effects at one index; so whatever differs from the model at an index is part of something.
"""

from collections.abc import Iterator

from lockstep.core.ids import LogIndex, QueueId, QueuePosition
from tests.simulation.checkers.chosen import is_selected
from tests.simulation.checkers.record import Record, ReplicaView, seconds
from tests.simulation.history import Browsed
from tests.simulation.log_model import Copy, LogModel


def check(record: Record) -> Iterator[str]:
    for view in (*record.views, *record.final_views):
        yield from _check_view(view, record.models[view.set_name])
    for browsed in record.history.browses:
        yield from _check_browse(browsed, record)


def present_at(copy: Copy, index: LogIndex) -> bool:
    """Whether the message is in its queue when the record at `index` has been applied."""
    return copy.visible <= index < copy.removed


def _check_view(view: ReplicaView, model: LogModel) -> Iterator[str]:
    if view.applied > model.end:
        return  # the end of the run came before anybody could show the rest of the log
    expected: dict[QueueId, tuple[QueuePosition, ...]] = {}
    for queue_id, life in model.queues.items():
        if life.declared <= view.applied < life.deleted:
            expected[queue_id] = tuple(
                position for position, copy in sorted(life.copies.items()) if present_at(copy, view.applied)
            )
    for queue_id in sorted({*expected, *view.queues}):
        want, have = expected.get(queue_id), view.queues.get(queue_id)
        if want != have:
            name = model.queues[queue_id].name if queue_id in model.queues else "?"
            missing = sorted(set(want or ()) - set(have or ()))[:3]
            surplus = sorted(set(have or ()) - set(want or ()))[:3]
            yield (
                f"replica {view.broker} of {view.set_name} at {seconds(view.time_us)}, applied {view.applied}: queue "
                f"{name} ({queue_id}) lacks {missing} and has {surplus} too many{_whose(model, queue_id, missing, surplus)}"
            )


def _whose(model: LogModel, queue_id: QueueId, *groups: list[QueuePosition]) -> str:
    life = model.queues.get(queue_id)
    keys = (
        {life.copies[p].transaction for group in groups for p in group if p in life.copies} if life else set()
    )
    named = sorted(key for key in keys if key is not None)
    return f", of transactions {named}" if named else ""


def _check_browse(browsed: Browsed, record: Record) -> Iterator[str]:
    """There must be one index up to the answer's commit index at which the queue held exactly this."""
    copies = record.copies(browsed.set_name, browsed.queue)
    shown = {seen.position for seen in browsed.messages}
    where = f"{browsed.client} browsed {browsed.queue} at {seconds(browsed.time_us)}, commit index {browsed.commit_index}"
    for seen in browsed.messages:
        copy = copies.get(seen.position)
        if copy is None or copy.visible > browsed.commit_index:
            yield f"{where}: position {seen.position} was shown and is not committed there"
            return
    last = max(shown, default=None)
    reaches_end = browsed.is_end or not shown
    in_range = [
        copy
        for position, copy in sorted(copies.items())
        if position > browsed.after
        and (reaches_end or (last is not None and position <= last))
        and is_selected(browsed.selector, copy)
    ]
    low = max((copies[position].visible for position in shown), default=LogIndex(0))
    high = min([browsed.commit_index, *(LogIndex(copies[position].removed - 1) for position in shown)])
    candidates = {low, high}
    for copy in in_range:
        candidates.update(LogIndex(i) for i in (copy.visible - 1, copy.removed) if low <= i <= high)
    if low <= high and any(_holds(in_range, shown, LogIndex(index)) for index in sorted(candidates)):
        return
    missing = [c.position for c in in_range if c.position not in shown and present_at(c, high)][:5]
    yield f"{where}: no commit index had exactly what was shown ({len(shown)} messages, lacking {missing})"


def _holds(in_range: list[Copy], shown: set[QueuePosition], index: LogIndex) -> bool:
    return all(present_at(copy, index) == (copy.position in shown) for copy in in_range)
