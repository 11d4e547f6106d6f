"""Routing against matchers that are obviously right."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.ids import QueueId
from lockstep.core.records import Bind, DeleteExchange, DeleteQueue, Unbind
from lockstep.core.routing import (
    REMEMBERED_KEYS_MAX,
    REMEMBERED_QUEUES_MAX,
    SELECTOR_ARGUMENT,
    STEPS_IN_ONE,
    Arguments,
    ExchangeMatcher,
    Matcher,
    Targets,
    TopicMatcher,
    matcher_of,
)
from tests.unit.lockstep.core.history import Log

WORDS = st.sampled_from(("a", "b", "", "*", "#", "long-word"))
PATTERNS = st.lists(WORDS, max_size=5).map(".".join)
QUEUES = st.integers(1, 6).map(QueueId)
HEADERS = st.dictionaries(st.sampled_from(("colour", "size", "x-trace")), st.sampled_from(("", "red", "s")))
ARGUMENTS = st.dictionaries(
    st.sampled_from(("colour", "size", "x-match", "x-other")), st.sampled_from(("", "red", "s", "any", "all"))
).map(lambda pairs: tuple(sorted(pairs.items())))
BINDINGS = st.sets(st.tuples(QUEUES, PATTERNS, ARGUMENTS), max_size=12)


def words_of(text: str) -> list[str]:
    return text.split(".") if text else []


def is_topic_match(pattern: list[str], words: list[str]) -> bool:
    """The definition, read aloud: `#` is any number of words, `*` is one."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(is_topic_match(pattern[1:], words[count:]) for count in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and is_topic_match(pattern[1:], words[1:])


def is_headers_match(arguments: Arguments, headers: dict[str, str]) -> bool:
    pairs = [(name, value) for name, value in arguments if not name.startswith("x-")]
    agreeing = [name for name, value in pairs if name in headers and value in ("", headers[name])]
    return bool(agreeing) if ("x-match", "any") in arguments else len(agreeing) == len(pairs)


def expected(
    kind: str, bindings: set[tuple[QueueId, str, Arguments]], key: str, headers: dict[str, str]
) -> tuple[QueueId, ...]:
    chosen = set()
    for queue, pattern, arguments in bindings:
        is_match = {
            "fanout": True,
            "direct": pattern == key,
            "topic": is_topic_match(words_of(pattern), words_of(key)),
            "headers": is_headers_match(arguments, headers),
        }[kind]
        if is_match:
            chosen.add(queue)
    return tuple(sorted(chosen))


@pytest.mark.fuzz
@given(st.sampled_from(("direct", "fanout", "topic", "headers")), BINDINGS, BINDINGS, PATTERNS, HEADERS)
def test_routing_agrees_with_the_definition(
    kind: str,
    bindings: set[tuple[QueueId, str, Arguments]],
    removed: set[tuple[QueueId, str, Arguments]],
    key: str,
    headers: dict[str, str],
) -> None:
    matcher = matcher_of(kind)
    for binding in sorted(bindings | removed):
        matcher.add(*binding)
    assert matcher.match(key, headers) == expected(kind, bindings | removed, key, headers)
    for binding in sorted(removed):
        matcher.remove(*binding)
    assert matcher.match(key, headers) == expected(kind, bindings - removed, key, headers)


def test_what_stands_behind_a_hash_lies_behind_what_stands_before_it() -> None:
    matcher = TopicMatcher()
    for number, pattern in enumerate(("a.#.a", "b.#.a.b", "*.#.*.#.a"), 1):
        matcher.add(QueueId(number), pattern, ())
    found = {key: matcher.match(key, {}) for key in ("a", "a.b", "a.a", "b.a", "b.a.b", "a.b.a")}
    assert found == {"a": (), "a.b": (), "a.a": (1,), "b.a": (), "b.a.b": (2,), "a.b.a": (1, 3)}


def test_many_hashes_in_a_pattern_do_not_explode() -> None:
    matcher = TopicMatcher()
    matcher.add(QueueId(1), ".".join(["#", "a"] * 20), ())
    assert matcher.match(".".join(["a"] * 60), {}) == (1,)
    assert matcher.match(".".join(["b"] * 60), {}) == ()


def steps_of(matcher: Matcher, key: str, headers: dict[str, str] | None = None) -> list[int]:
    """What each step of a match costs."""
    return list(matcher.match_in_steps(key, headers or {}))


def hashes(count: int) -> TopicMatcher:
    """So many patterns, most of which a key of all these words comes to in every place."""
    matcher = TopicMatcher()
    for number in range(count):
        matcher.add(QueueId(number + 1), f"#.a{number % 50}.#.b{number // 50}.#.z", ())
    return matcher


def test_what_a_match_costs_grows_with_the_patterns_and_hardly_with_the_key() -> None:
    matcher = hashes(2500)
    short = [*(f"a{number}" for number in range(50)), *(f"b{number}" for number in range(50)), "z"]
    long = [*short[:-1], *["c"] * 27, "z"]
    costs = [sum(steps_of(matcher, ".".join(words))) for words in (short, long)]
    assert costs[1] < 1.2 * costs[0] and costs[0] < 40 * 2500
    assert matcher.match(".".join(long), {}) == tuple(range(1, 2501))


def test_places_of_wild_words_are_come_to_once() -> None:
    matcher = TopicMatcher()
    for number in range(1 << 10):
        words = ["*" if number >> bit & 1 else "r.#" for bit in range(10)]
        matcher.add(QueueId(number + 1), "#." + ".".join(words), ())
    costs = [sum(steps_of(matcher, ".".join(["r"] * count))) for count in (12, 120)]
    assert costs[1] < 1.2 * costs[0]


@pytest.mark.parametrize("kind", ["topic", "headers", "direct", "fanout"])
def test_a_match_among_many_bindings_is_done_in_short_steps(kind: str) -> None:
    matcher = ExchangeMatcher(kind)
    pairs = (("x-match", "any"), *((f"n{number}", "1") for number in range(20)))
    for number in range(3000):
        selector = (SELECTOR_ARGUMENT, f"a = {number}") if number % 3 == 0 else ("x-other", "")
        matcher.add(QueueId(number + 1), f"#.a{number % 50}.#.b.#", (*pairs, selector))
    key = ".".join([*(f"a{number}" for number in range(50)), "b"])
    steps, found = [], None
    match = matcher.targets_in_steps(key, {"other": "1"})
    while found is None:
        try:
            steps.append(next(match))
        except StopIteration as ended:
            found = ended.value
    assert max(steps) < 2 * STEPS_IN_ONE
    assert found == matcher.targets(key, {"other": "1"})
    is_everywhere = kind in ("topic", "fanout")
    assert (len(found.certain), len(found.selecting)) == ((2000, 1000) if is_everywhere else (0, 0))


def test_keys_are_remembered_until_something_is_bound_or_unbound() -> None:
    matcher = ExchangeMatcher("topic")
    matcher.add(QueueId(7), "key.*", ())
    assert matcher.remembered("key.1", {}) is None
    assert matcher.targets("key.1", {}) == matcher.remembered("key.1", {}) == Targets((QueueId(7),))
    matcher.add(QueueId(8), "#", ())
    assert matcher.remembered("key.1", {}) is None
    assert matcher.targets("key.1", {}) == Targets((QueueId(7), QueueId(8)))
    matcher.remove(QueueId(7), "key.*", ())
    assert matcher.targets("key.1", {}) == Targets((QueueId(8),))


def test_keys_that_take_too_much_are_known_until_something_is_bound_or_unbound() -> None:
    matcher = ExchangeMatcher("topic")
    for change in matcher.add, matcher.remove:
        matcher.give_up("k")
        assert matcher.is_given_up("k")
        change(QueueId(7), "key.*", ())
        assert not matcher.is_given_up("k")
    keys = [f"key.{number}" for number in range(REMEMBERED_KEYS_MAX + 10)]
    for key in keys:
        matcher.give_up(key)
    assert matcher.is_given_up(keys[-1]) and sum(map(matcher.is_given_up, keys)) <= REMEMBERED_KEYS_MAX


def test_of_a_headers_exchange_only_messages_without_headers_are_remembered() -> None:
    matcher = ExchangeMatcher("headers")
    matcher.add(QueueId(7), "", (("colour", "red"),))
    matcher.add(QueueId(8), "", ())
    assert matcher.targets("k", {}) == matcher.remembered("other", {}) == Targets((QueueId(8),))
    red = {"colour": "red"}
    assert matcher.targets("", red) == Targets((QueueId(7), QueueId(8)))
    assert matcher.remembered("", red) is None
    matcher.remove(QueueId(8), "", ())
    assert matcher.targets("k", {}) == Targets(())


def test_more_keys_than_are_remembered_are_routed_right() -> None:
    matcher = ExchangeMatcher("topic")
    matcher.add(QueueId(7), "key.*", ())
    keys = [f"key.{number}" for number in range(REMEMBERED_KEYS_MAX + 10)]
    assert all(matcher.targets(key, {}) == Targets((QueueId(7),)) for key in keys)
    assert sum(matcher.remembered(key, {}) is not None for key in keys) <= REMEMBERED_KEYS_MAX


@pytest.mark.parametrize("selectors", [0, 40])
def test_what_is_remembered_of_many_keys_with_many_queues_is_bounded(selectors: int) -> None:
    matcher, queues = ExchangeMatcher("topic"), 5000
    for number in range(queues):
        arguments = ((SELECTOR_ARGUMENT, f"a = {number % selectors}"),) if selectors else ()
        matcher.add(QueueId(number + 1), f"{'#' if number % 2 else '*'}", arguments)
    keys = [f"k{number}" for number in range(REMEMBERED_QUEUES_MAX // queues + 10)]
    for key in keys:
        matcher.targets(key, {})
    kept = [found for key in keys if (found := matcher.remembered(key, {})) is not None]
    assert kept
    held = sum(len(found.certain) + sum(len(chosen) for _, chosen in found.selecting) for found in kept)
    assert held <= REMEMBERED_QUEUES_MAX


def test_selectors_come_in_the_order_of_their_texts_however_they_were_bound() -> None:
    matcher, texts = ExchangeMatcher("direct"), ["b = 1", "a = 1", "c = 1"]
    for number, text in enumerate(texts):
        matcher.add(QueueId(number), "k", ((SELECTOR_ARGUMENT, text),))
    assert [text for text, _ in matcher.targets("k", {}).selecting] == sorted(texts)
    matcher.remove(QueueId(1), "k", ((SELECTOR_ARGUMENT, "a = 1"),))
    assert [text for text, _ in matcher.targets("k", {}).selecting] == ["b = 1", "c = 1"]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no exchange kind 'rumour'"):
        matcher_of("rumour")


def test_the_default_exchange_routes_by_queue_name() -> None:
    log = Log()
    queue = log.queue("orders")
    assert log.state.route("", "orders", {}) == (queue.id,)
    assert log.state.route("", "nobody", {}) == ()


def test_an_exchange_is_found_by_name_and_by_id_and_an_unknown_one_routes_nothing() -> None:
    log = Log()
    queue, exchange = log.queue("q"), log.exchange("x", "direct")
    log.append(Bind(None, exchange, queue.id, "k"))
    assert log.state.route("x", "k", {}) == log.state.route(exchange, "k", {}) == (queue.id,)
    assert log.state.route("y", "k", {}) == ()


def test_a_binding_made_twice_is_one() -> None:
    log = Log()
    queue, exchange = log.queue("q"), log.exchange("x", "direct")
    for _ in range(2):
        log.append(Bind(None, exchange, queue.id, "k"))
    log.append(Unbind(None, exchange, queue.id, "k"))
    assert log.state.route("x", "k", {}) == ()


def test_bindings_that_differ_only_in_their_arguments_are_two() -> None:
    log = Log()
    queue, exchange = log.queue("q"), log.exchange("x", "fanout")
    log.append(Bind(None, exchange, queue.id, ""))
    log.append(Bind(None, exchange, queue.id, "", (("n", "1"),)))
    log.append(Unbind(None, exchange, queue.id, ""))
    assert log.state.route("x", "", {}) == (queue.id,)


def test_a_transient_unbind_leaves_a_durable_binding() -> None:
    log = Log()
    queue, exchange = log.queue("q"), log.exchange("x", "fanout")
    log.append(Bind(None, exchange, queue.id, ""))
    log.append(Unbind(None, exchange, queue.id, ""), is_durable=False)
    assert log.state.route("x", "", {}) == (queue.id,)


def test_deleting_either_end_deletes_the_binding() -> None:
    log = Log()
    queue, other, exchange = log.queue("q"), log.queue("other"), log.exchange("x", "fanout")
    for bound in (queue, other):
        log.append(Bind(None, exchange, bound.id, ""))
    log.append(DeleteQueue(None, queue.id))
    assert log.state.route("x", "", {}) == (other.id,)
    log.append(DeleteExchange(None, exchange))
    assert log.state.exchanges.bindings_of(other.id) == []


def test_a_binding_is_durable_only_if_its_record_and_both_its_ends_are_and_becomes_so_when_made_again() -> (
    None
):
    log = Log()
    durable, transient = log.queue("durable"), log.queue("transient", is_durable=False)
    exchange = log.exchange("x", "fanout")
    log.append(Bind(None, exchange, transient.id, ""))
    log.append(Bind(None, exchange, durable.id, ""), is_durable=False)
    bindings = log.state.exchanges.by_id[exchange].bindings
    assert [bindings[binding] for binding in sorted(bindings)] == [False, False]
    log.append(Bind(None, exchange, durable.id, ""))
    log.append(Bind(None, exchange, durable.id, ""), is_durable=False)
    assert [bindings[binding] for binding in sorted(bindings)] == [True, False]
    assert log.state.route("x", "", {}) == (durable.id, transient.id)


@pytest.mark.parametrize("kind", ["fanout", "direct", "topic"])
def test_queues_of_many_bindings_are_put_in_order_when_somebody_asks(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered = 0

    def counted(queues: Iterable[QueueId]) -> list[QueueId]:
        nonlocal ordered
        found = sorted(queues)
        ordered += len(found)
        return found

    monkeypatch.setattr("lockstep.core.routing.sorted", counted, raising=False)
    matcher, many = matcher_of(kind), 500
    for queue in range(many, 0, -1):
        matcher.add(QueueId(queue), "k", ())
    assert matcher.match("k", {}) == tuple(range(1, many + 1))
    for queue in range(2, many + 1):
        matcher.remove(QueueId(queue), "k", ())
    assert matcher.match("k", {}) == (1,)
    assert ordered <= 2 * (many + 1)
