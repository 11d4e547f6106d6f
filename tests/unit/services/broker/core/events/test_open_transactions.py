"""Open transactions of builders: copies share what they know, and a collector learns no more than it needs."""

import pytest

from lockstep.core.ids import Epoch, LogIndex, QueueId, TimeMs, TransactionKey
from lockstep.core.records import Publish
from services.broker.core.events.builder import DecodedFrame, EventBuilder
from services.broker.core.events.open_transactions import OpenTransactions
from services.broker.core.events.state_names import StateNames
from tests.unit.lockstep.core.history import Log, message

KEY, OTHER = (LogIndex(5), Epoch(1)), (LogIndex(6), Epoch(1))
FIRST, SECOND = TimeMs(100), TimeMs(200)


def operation(ordinal: int) -> Publish:
    return Publish(None, KEY, ordinal, ())


def ordinals(known: OpenTransactions, key: TransactionKey = KEY) -> list[int] | None:
    """Of what was done in it; None: it is not open."""
    found = known.find(key)
    return [each.ordinal for each in found.operations] if found is not None else None


def test_of_two_copies_each_goes_its_own_way() -> None:
    known = OpenTransactions()
    known.change(KEY, FIRST).operations.append(operation(0))
    copies = [known.copy(), known.copy()]
    copies[0].change(KEY, SECOND).operations.append(operation(1))
    known.change(KEY, SECOND).operations.append(operation(2))
    assert [ordinals(each) for each in (known, *copies)] == [[0, 2], [0, 1], [0]]
    known.end(KEY)
    assert [ordinals(each) for each in (known, *copies)] == [None, [0, 1], [0]]


def test_what_is_changed_in_a_copy_is_copied_once() -> None:
    known = OpenTransactions()
    known.change(KEY, FIRST)
    copy = known.copy()
    assert copy.find(KEY) is known.find(KEY)
    own = copy.change(KEY, SECOND)
    assert own is not known.find(KEY)
    assert copy.change(KEY, SECOND) is own


def test_what_was_known_earlier_is_put_before_what_is_known_and_stays_as_it_was() -> None:
    earlier, known = OpenTransactions(), OpenTransactions()
    for key in (KEY, OTHER):
        earlier.change(key, FIRST).operations.append(operation(0))
    branch = known.change(KEY, SECOND)
    branch.operations.append(operation(1))
    branch.is_prepared, branch.xid, branch.resource_sets = True, b"branch", ("east", "west")
    known.precede(earlier)
    known.change(OTHER, SECOND).operations.append(operation(1))
    joined = known.change(KEY, SECOND)
    joined.operations.append(operation(2))
    assert (ordinals(known), ordinals(known, OTHER)) == ([0, 1, 2], [0, 1])
    assert (joined.started_ms, joined.is_prepared, joined.xid) == (FIRST, True, b"branch")
    assert joined.resource_sets == ("east", "west")
    assert (ordinals(earlier), ordinals(earlier, OTHER)) == ([0], [0])
    earlier.end_unprepared()
    assert (ordinals(earlier), ordinals(known)) == (None, [0, 1, 2])


def test_a_collector_spends_nothing_on_what_is_done_outside_of_transactions() -> None:
    class Names:
        asked = 0

        def queue(self, queue: QueueId, at: LogIndex) -> str:
            self.asked += 1
            return "q"

        def exchange(self, exchange: int) -> str:
            raise AssertionError

    log, names = Log(), Names()
    queue = log.queue("q")
    for _ in range(10):
        log.publish(message((queue,)))
    log.flush()
    collector = EventBuilder(names, LogIndex(0), is_collecting=True)
    collector.collect(DecodedFrame.of(log.frames[0].durable), log.state.applied)
    assert (collector.position, names.asked) == (log.state.applied, 0)


def test_a_collector_that_has_not_taken_all_is_of_no_use() -> None:
    log = Log()
    log.queue("q")
    log.flush()
    names = StateNames(log.state)
    builder = EventBuilder(names, log.state.applied)
    with pytest.raises(AssertionError, match=f"0 is not {log.state.applied}"):
        builder.take_earlier(LogIndex(0), EventBuilder(names, LogIndex(0), is_collecting=True))


def test_the_sets_of_a_branch_are_all_that_anybody_named() -> None:
    """A set in which it has two branches is named twice, by whoever knows that."""
    earlier, known = OpenTransactions(), OpenTransactions()
    first = earlier.change(KEY, FIRST)
    first.name_sets(("east",))
    first.name_sets(())
    assert first.resource_sets == ("east",)
    known.change(KEY, SECOND).name_sets(("west", "east", "west"))
    known.precede(earlier)
    joined = known.change(KEY, SECOND)
    assert (joined.resource_sets, first.resource_sets) == (("east", "west", "west"), ("east",))
    joined.name_sets(("west", "east"))
    assert joined.resource_sets == ("east", "west", "west")
