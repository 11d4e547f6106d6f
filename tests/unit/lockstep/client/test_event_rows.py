"""Events out of batches."""

from datetime import UTC, datetime

from lockstep.client.event_rows import events_in
from lockstep.core.ids import Epoch, LogIndex, SessionKey, SetName, TimeMs, place
from lockstep.core.records import DequeueReason, Message
from lockstep.core.xid import Xid
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.planning import Offset
from services.broker.core.events.transactions import CommittedTransaction, Effects, EventKind
from services.broker.events.batches import encode_batches

SET = SetName("east")
START = Offset(LogIndex(0), Epoch(0))
END = Offset(LogIndex(20), Epoch(2))


def committed(index: int, *effects: Effects, begun: int = 0, xid: bytes = b"") -> CommittedTransaction:
    done = CommittedTransaction(
        LogIndex(index), Epoch(2), TimeMs(5_000), TimeMs(4_000), SessionKey(1), xid=xid
    )
    done.key = (LogIndex(begun), Epoch(2)) if begun else None
    done.effects += effects
    return done


def message(body: bytes, properties: bytes = b"") -> Message:
    return Message((), properties, body, 0, True)


def test_every_event_has_its_own_content_and_place() -> None:
    first, second = place(9, 0), place(9, 5)
    published = Effects(
        EventKind.ENQUEUE, 3, "in", (first, second), (message(b"one", b"p1"), message(b"second", b""))
    )
    accepted = Effects(EventKind.DEQUEUE, 4, "out", (place(7, 1),), reason=DequeueReason.ACCEPTED)
    xid = Xid(7, b"global", b"branch")
    batches = encode_batches(
        SET,
        [
            committed(9, published, accepted, begun=8, xid=xid.encode()),
            committed(11, Effects(EventKind.DECLARE, 11, "new")),
        ],
        START,
        END,
        True,
    )
    (batch,) = [pb.EventBatch.FromString(data) for data in batches]
    one, two, three, four = events_in(batch)
    assert (one.kind, one.resource, one.position, one.properties, one.body) == (
        "enqueue",
        "in",
        (9, 0),
        b"p1",
        b"one",
    )
    assert (two.position, two.properties, two.body) == ((9, 5), b"", b"second")
    assert (three.kind, three.resource, three.position, three.body) == ("dequeue", "out", (7, 1), b"")
    assert [event.place for event in (one, two, three, four)] == [0, 1, 2, 0]
    assert {event.events for event in (one, two, three)} == {3}
    assert (one.transaction, one.xid, four.transaction) == ("east/8.2", str(xid), "")
    assert (four.kind, four.resource, four.position, four.index) == ("declare", "new", (0, 0), 11)
    assert one.commit_time == datetime.fromtimestamp(5, UTC)


def test_what_was_dead_lettered_says_where_it_came_from() -> None:
    left = Effects(EventKind.DEAD_LETTER, 3, "in", (place(5, 0),), reason=DequeueReason.REJECTED)
    came = Effects(EventKind.ENQUEUE, 4, "dead", (place(12, 0),), sources=(place(5, 0),))
    (data,) = encode_batches(SET, [committed(12, left, came)], START, END, True)
    one, two = events_in(pb.EventBatch.FromString(data))
    assert (one.kind, one.position, one.source) == ("dead_letter", (5, 0), (0, 0))
    assert (two.kind, two.position, two.source, two.body) == ("enqueue", (12, 0), (5, 0), b"")
