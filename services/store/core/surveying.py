"""Surveying a set: what `rebuild-map` has to know of a disk when etcd knows nothing any more (DESIGN R1).

Law: a survey fences nobody, and changes no more of the disk than any opening does. Names are those of the whole log, its suffix
included: nobody can tell yet what of it was acknowledged, and a name that is reserved without need harms nobody.
"""

from lockstep.core.frames import Frame, check_frame, decode_records
from lockstep.core.ids import Epoch, ExchangeId, QueueId
from lockstep.core.item_values import decode_exchange, decode_queue
from lockstep.core.items import ENTRY, EXCHANGE, QUEUE, numbers_in
from lockstep.core.records import DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue
from services.store.core.blocks import scan_of
from services.store.core.disk import Lane
from services.store.core.loading import read_run
from services.store.core.opening import read_set
from services.store.core.procedure import Procedure
from services.store.core.requests import SetSurveyed, SurveySet
from services.store.core.stored_set import Phase, StoredSet


class Names:
    """Durable queues and exchanges, as a snapshot and then a journal tell of them."""

    def __init__(self) -> None:
        self.queues: dict[QueueId, str] = {}
        self.exchanges: dict[ExchangeId, str] = {}

    def take_item(self, key: bytes, value: bytes) -> None:
        """An item of the snapshot, of the kinds EXCHANGE and QUEUE."""
        (number,) = numbers_in(key)
        if key.startswith(EXCHANGE):
            self.exchanges[ExchangeId(number)] = decode_exchange(value).name
        else:
            self.queues[QueueId(number)] = decode_queue(value).name

    def take_frame(self, durable: bytes) -> None:
        """A frame of the journal behind the snapshot, in their order."""
        for indexed in decode_records(Frame(check_frame(durable), durable, b"")):
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


def survey(the: StoredSet, request: SurveySet) -> Procedure[SetSurveyed]:
    """Runs in the journal lane: what it reads is not changed meanwhile."""
    if the.phase is Phase.UNREAD:
        yield from read_set(the)
    names = Names()
    if request.with_names and not the.damage:
        yield from _read_names(the, names)
    journal, meta = the.journal, the.meta
    return SetSurveyed(
        the.status(),
        journal.epochs.last if journal is not None else Epoch(0),
        meta.map_bytes,
        meta.map_revision,
        meta.generation,
        tuple(sorted(names.queues.values())),
        tuple(sorted(names.exchanges.values())),
        meta.etcd_revision,
        meta.stamp,
        tuple(journal.epochs.entries) if journal is not None else (),
        journal.epochs.reigns if journal is not None else (),
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
            # Exchanges and queues are neighbours in the order of keys, and entries follow.
            items, is_last = yield from scan.next(the.limits.chunk_bytes)
            for item in items:
                if item.key >= ENTRY:
                    is_last = True
                    break
                assert item.key.startswith((EXCHANGE, QUEUE)), "no other kind lies between"
                names.take_item(item.key, item.value)
        index = scan.index
        while (run := journal.frames_behind(index, journal.end, the.limits.chunk_bytes)) is not None:
            for frame in (yield from read_run(the, run)):
                names.take_frame(frame)
            index = run.last
    finally:
        the.loads -= 1
