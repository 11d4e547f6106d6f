"""Surveying a set: what `rebuild-map` has to know of a disk when etcd knows nothing any more (DESIGN R1).

Law: a survey fences nobody, and changes no more of the disk than any opening does. Names are those of the whole log, its suffix
included: nobody can tell yet what of it was acknowledged, and a name that is reserved without need harms nobody.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from lockstep.core.ids import Epoch, ExchangeId, QueueId
from lockstep.core.item_values import decode_exchange, decode_queue
from lockstep.core.items import ENTRY, EXCHANGE, QUEUE, numbers_in
from lockstep.core.records import DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue
from lockstep.core.store_protocol import StateItem
from services.store.core.blocks import damage, scan_of
from services.store.core.disk import Lane, Unusable
from services.store.core.loading import read_run, records_in
from services.store.core.opening import read_set
from services.store.core.procedure import Procedure, compute
from services.store.core.requests import SetSurveyed, SurveySet
from services.store.core.stored_set import Phase, StoredSet


class Names:
    """Durable queues and exchanges, as a snapshot and then a journal tell of them."""

    def __init__(self) -> None:
        self.queues: dict[QueueId, str] = {}
        self.exchanges: dict[ExchangeId, str] = {}

    def take_items(self, items: Sequence[StateItem]) -> bool:
        """The next of the snapshot, from the first exchange on; answers whether more of them may have names."""
        with damage():
            for item in items:
                # Exchanges and queues are neighbours in the order of keys, and entries follow.
                if item.key >= ENTRY:
                    return False
                assert item.key.startswith((EXCHANGE, QUEUE)), "no other kind lies between"
                (number,) = numbers_in(item.key)
                if item.key.startswith(EXCHANGE):
                    self.exchanges[ExchangeId(number)] = decode_exchange(item.value).name
                else:
                    self.queues[QueueId(number)] = decode_queue(item.value).name
        return True

    def take_frames(self, frames: Iterable[bytes]) -> None:
        """Those of the journal behind the snapshot, in their order."""
        for durable in frames:
            for indexed in records_in(durable):
                match indexed.record:
                    case DeclareQueue(name=name):
                        self.queues[QueueId(indexed.index)] = name
                    case DeleteQueue(queue=queue):
                        self.queues.pop(queue, None)
                    case DeclareExchange(name=name):
                        self.exchanges[ExchangeId(indexed.index)] = name
                    case DeleteExchange(exchange=exchange):
                        self.exchanges.pop(exchange, None)
                    case _:
                        pass

    def in_order(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those of queues, and those of exchanges."""
        return tuple(sorted(self.queues.values())), tuple(sorted(self.exchanges.values()))


def survey(the: StoredSet, request: SurveySet) -> Procedure[SetSurveyed]:
    """Runs in the journal lane: what it reads is not changed meanwhile."""
    if the.phase is Phase.UNREAD:
        yield from read_set(the)
    names, trouble = Names(), ""
    if request.with_names and not the.damage:
        try:
            yield from _read_names(the, names)
        except Unusable as error:
            # What else the disk has is known all the same; whoever opens it finds out whether this is damage.
            trouble = f"its names cannot be read: {error.message}"
            the.note("names unreadable", f"disk {the.meta.disk}: {error.message}")
    queues, exchanges = yield from compute(names.in_order)
    journal, meta = the.journal, the.meta
    return SetSurveyed(
        the.status(),
        journal.epochs.last if journal is not None else Epoch(0),
        meta.map_bytes,
        meta.map_revision,
        meta.generation,
        queues,
        exchanges,
        meta.etcd_revision,
        meta.stamp,
        tuple(journal.epochs.entries) if journal is not None else (),
        journal.epochs.reigns if journal is not None else (),
        trouble,
    )


def _read_names(the: StoredSet, names: Names) -> Procedure[None]:
    journal = the.journal
    if journal is None:
        return
    the.loads += 1
    try:
        yield from the.wait_for(Lane.SNAPSHOT)
        scan = yield from scan_of(the, EXCHANGE)
        is_last = scan.is_empty
        while not is_last:
            items, is_last = yield from scan.next(the.limits.chunk_bytes)
            is_last = not (yield from compute(partial(names.take_items, items))) or is_last
        index = scan.index
        while (run := journal.frames_behind(index, journal.end, the.limits.chunk_bytes)) is not None:
            frames = yield from read_run(run)
            yield from compute(partial(names.take_frames, frames))
            index = run.last
    finally:
        the.loads -= 1
