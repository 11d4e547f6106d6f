"""Builders that are kept: each copy goes its own way, and there are never many."""

from lockstep.core.ids import LogIndex
from services.broker.core.events.builder import DecodedFrame, EventBuilder
from services.broker.events.kept_builders import (
    BUILDERS_MAX,
    COLLECTED_BYTES_MIN,
    COLLECTORS_MAX,
    KeptBuilders,
)
from tests.unit.lockstep.core.history import Log, durable_replay, message
from tests.unit.services.broker.core.events.event_rig import words

UNTIL = LogIndex(1_000)


def kept(log: Log) -> KeptBuilders:
    builders = KeptBuilders()
    builders.follow(log.state)
    return builders


def feed(builder: EventBuilder, log: Log, *, first: int = 0) -> list[str]:
    """The frames of a log from one of them on: the words of what they commit."""
    log.flush()
    frames = [DecodedFrame.of(frame.durable) for frame in log.frames[first:]]
    return [word for frame in frames for done in builder.feed(frame) for word in words(done)]


def test_who_goes_on_from_one_place_changes_nothing_for_the_next() -> None:
    log = Log()
    queue, key = log.queue("q"), log.begin(b"branch")
    log.publish(message((queue,)), transaction=key)
    log.flush()
    builders = kept(log)
    builder = builders.at(LogIndex(0))
    feed(builder, log)
    builders.keep(builder)
    log.publish(message((queue,)), message((queue,)), transaction=key)
    log.prepare(key, b"branch")
    at = log.commit_prepared(key)
    both = [f"enqueue q {at}.{number}" for number in range(3)]
    assert [feed(builders.at(builder.position), log, first=1) for _ in range(3)] == [both] * 3


def test_what_a_collector_gave_stays_its_own() -> None:
    """Several readings begin behind the place that it collected up to."""
    log = Log()
    queue, key = log.queue("q"), log.begin()
    log.publish(message((queue,)), transaction=key)
    log.flush()
    between = log.publish(message((queue,)), transaction=key)
    log.flush()
    at = log.commit(key)
    log.flush()
    builders = kept(log)
    collector = builders.collector(LogIndex(0), LogIndex(between - 1))
    collector.collect(DecodedFrame.of(log.frames[0].durable), LogIndex(between - 1))
    for _ in range(3):
        builder = builders.at(LogIndex(between - 1))
        builder.feed(DecodedFrame.of(log.frames[1].durable))
        builder.take_earlier(LogIndex(0), collector)
        assert feed(builder, log, first=2) == [f"enqueue q {at}.0", f"enqueue q {at}.1"]


def test_a_transaction_that_has_ended_is_nothing_to_a_late_record_of_it() -> None:
    log = Log()
    queue, key = log.queue("q"), log.begin(b"branch")
    log.publish(message((queue,)), transaction=key)
    log.flush()
    builders = kept(log)
    builder = builders.at(LogIndex(0))
    feed(builder, log)
    builders.keep(builder)
    log.rollback(key)
    log.prepare(key, b"branch")
    assert feed(builders.at(builder.position), log, first=1) == ["rollback"]


def test_of_two_builders_at_one_place_the_one_that_knows_more_is_kept() -> None:
    log = Log()
    queue, key = log.queue("q"), log.begin()
    log.publish(message((queue,)), transaction=key)
    end = log.publish(message((queue,)))
    builders = kept(log)
    for after in (0, end - 1):
        builder = builders.at(LogIndex(after))
        feed(builder, log)
        assert builder.position == end
        builders.keep(builder)
    assert builders.at(end).known_after == 0


def test_builders_of_a_state_that_was_loaded_again_do_not_go_on() -> None:
    log = Log()
    log.queue("q")
    builders = kept(log)
    builder = builders.at(LogIndex(0))
    feed(builder, log)
    builders.keep(builder)
    builders.follow(log.state)
    assert builders.at(builder.position).known_after == 0
    builders.follow(durable_replay(log.frames))
    assert builders.at(builder.position).known_after == builder.position


def test_a_collector_begins_as_near_as_any_builder_stands() -> None:
    log = Log()
    builders = kept(log)
    for at in range(1, 6):
        log.queue(f"q{at}")
        builder = builders.at(LogIndex(0))
        feed(builder, log)
        builders.keep(builder)
    assert [builders.collector(LogIndex(0), LogIndex(until)).position for until in (3, 2, 9)] == [3, 2, 5]


def test_of_builders_those_stay_that_are_gone_on_from() -> None:
    log = Log()
    builders = kept(log)
    for at in range(1, BUILDERS_MAX + 3):
        log.queue(f"q{at}")
        for first in (1, 0):
            builder = builders.at(LogIndex(first))
            feed(builder, log)
            builders.keep(builder)
    assert builders.at(LogIndex(1)).known_after == 0
    assert builders.at(LogIndex(2)).known_after == 2


def test_a_collector_that_went_on_stays_longest() -> None:
    log = Log()
    log.queue("q")
    log.flush()
    builders = kept(log)
    header = DecodedFrame.of(log.frames[0].durable).header._replace(payload_bytes=COLLECTED_BYTES_MIN)
    for number in (0, *range(1, COLLECTORS_MAX), 0, COLLECTORS_MAX):
        place = LogIndex(100 * number)
        collector = builders.collector(place, UNTIL)
        went = LogIndex(collector.position + 1)
        collector.collect(DecodedFrame(header._replace(first=went, last=went), []), UNTIL)
        builders.keep_collector(collector, LogIndex(UNTIL + place))
    assert builders.collector(LogIndex(0), UNTIL).position == 2
    assert builders.collector(LogIndex(100), UNTIL).position == 100


def test_only_so_many_builders_are_kept() -> None:
    log = Log()
    builders = kept(log)
    for at in range(1, BUILDERS_MAX + 3):
        log.queue(f"q{at}")
        builder = builders.at(LogIndex(0))
        feed(builder, log)
        builders.keep(builder)
    known = [at for at in range(1, BUILDERS_MAX + 3) if builders.at(LogIndex(at)).known_after == 0]
    assert known == list(range(3, BUILDERS_MAX + 3))


def test_only_collectors_that_cost_much_are_kept_and_only_so_many() -> None:
    log = Log()
    log.queue("q")
    log.flush()
    builders = kept(log)
    frame = DecodedFrame.of(log.frames[0].durable)
    large = DecodedFrame(frame.header._replace(payload_bytes=COLLECTED_BYTES_MIN), [])
    places = [LogIndex(10 * number) for number in range(1, COLLECTORS_MAX + 3)]
    for place in places:
        collector = builders.collector(place, UNTIL)
        for each in (frame, large):
            header = each.header._replace(first=LogIndex(place + 1), last=LogIndex(collector.position + 1))
            collector.collect(DecodedFrame(header, []), UNTIL)
            builders.keep_collector(collector, LogIndex(UNTIL + place))
            is_kept = builders.collector(place, UNTIL).position > place
            assert is_kept is (each is large), place
    assert [builders.collector(place, UNTIL).position > place for place in places] == [
        False,
        False,
        *[True] * COLLECTORS_MAX,
    ]
