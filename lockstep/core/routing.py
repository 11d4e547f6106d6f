"""Routing: which queues the bindings of one exchange choose for a message.

Law: the answer is a tuple of queue ids, each once, in ascending order, and depends on the set of bindings alone, never on the
order in which they were made. Rules of AMQP 0-9-1 (3.1.3) and 0-10 for direct, fanout, topic and headers. For one message each
place of a pattern, each pair and each selector is looked at once at most, in steps that are short, whatever was bound.

Costs are in steps of a selector (`selector_row`), about 0.1 us each.
"""

from bisect import bisect_left, insort
from collections.abc import Generator, Mapping
from typing import NamedTuple, Protocol

from lockstep.core.ids import QueueId
from lockstep.core.pieces import at_once

Arguments = tuple[tuple[str, str], ...]
SELECTOR_ARGUMENT = "lockstep:selector"
"""Name of the argument of a binding that is a selector: only messages that it matches go through the binding. What routes by a
binding knows nothing of it: whoever asks for a message's queues asks the selectors.
"""
REMEMBERED_KEYS_MAX = 4096
"""Routing keys whose result an exchange remembers between changes of its bindings."""
REMEMBERED_QUEUES_MAX = 256 * 1024
"""Queues in all of these results, and selectors: two megabytes, or what one result has."""
STEPS_IN_ONE = 5_000
"""What is looked at in one go."""
STEPS_PER_SELECTOR = 4
"""What finding takes which selectors a message is asked about, for each that an exchange has."""
STEPS_PER_PLACE = 6
"""What a place of a pattern takes that a key comes to."""
STEPS_PER_HEADERS, STEPS_PER_PAIR = 4, 2
"""What comparing a message's headers takes, for each binding, and for each of its pairs."""
STEPS_PER_FOUND = 2
"""What each queue takes that is found in more than one place."""

QueueIds = tuple[QueueId, ...]
Matching = Generator[int, None, QueueIds]
"""Yields what it has cost since it did so last; returns the queues. It is good until something is bound or unbound."""


_SIMPLE_KINDS = ("direct", "fanout")


class Targets(NamedTuple):
    """What an exchange chooses for messages of one routing key and headers."""

    certain: QueueIds
    """Queues that get every one of them, ascending."""
    selecting: tuple[tuple[str, QueueIds], ...] = ()
    """Queues that get those that a selector matches; by selectors, in the order of their texts."""


class Matcher(Protocol):
    """The bindings of one exchange. A binding is added once and removed once; the exchange sees to that."""

    def add(self, queue: QueueId, key: str, arguments: Arguments) -> None: ...

    def remove(self, queue: QueueId, key: str, arguments: Arguments) -> None: ...

    def match(self, key: str, headers: Mapping[str, str]) -> QueueIds: ...

    def match_in_steps(self, key: str, headers: Mapping[str, str]) -> Matching:
        """The same in steps."""
        ...


class _Counted:
    """Queues with the number of bindings that choose each: two bindings may differ only in their arguments."""

    __slots__ = ("_counts", "_queues")

    def __init__(self) -> None:
        self._counts: dict[QueueId, int] = {}
        self._queues: QueueIds | None = ()
        """None: to be made, behind the last of many bindings once."""

    def __bool__(self) -> bool:
        return bool(self._counts)

    @property
    def queues(self) -> QueueIds:
        """In their order."""
        found = self._queues
        if found is None:
            found = self._queues = tuple(sorted(self._counts))
        return found

    def add(self, queue: QueueId) -> None:
        self._counts[queue] = self._counts.get(queue, 0) + 1
        self._queues = None

    def remove(self, queue: QueueId) -> None:
        self._counts[queue] -= 1
        if not self._counts[queue]:
            del self._counts[queue]
            self._queues = None


class FanoutMatcher:
    """Every bound queue, whatever the key."""

    def __init__(self) -> None:
        self._bound = _Counted()

    def add(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        self._bound.add(queue)

    def remove(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        self._bound.remove(queue)

    def match(self, key: str, headers: Mapping[str, str]) -> QueueIds:
        return self._bound.queues

    def match_in_steps(self, key: str, headers: Mapping[str, str]) -> Matching:
        yield STEPS_PER_SELECTOR
        return self.match(key, headers)


class DirectMatcher:
    """Queues bound with exactly the message's key."""

    def __init__(self) -> None:
        self._by_key: dict[str, _Counted] = {}

    def add(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        self._by_key.setdefault(key, _Counted()).add(queue)

    def remove(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        bound = self._by_key[key]
        bound.remove(queue)
        if not bound:
            del self._by_key[key]

    def match(self, key: str, headers: Mapping[str, str]) -> QueueIds:
        bound = self._by_key.get(key)
        return bound.queues if bound is not None else ()

    def match_in_steps(self, key: str, headers: Mapping[str, str]) -> Matching:
        yield STEPS_PER_SELECTOR
        return self.match(key, headers)


class _Node:
    """A place in the trie of patterns, reached by a word, by `*` or by `#`."""

    __slots__ = ("bound", "children")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.bound = _Counted()


def words_of(key: str) -> list[str]:
    """The words of a routing key or pattern; an empty one has none."""
    return key.split(".") if key else []


class TopicMatcher:
    """A trie of patterns: `*` is exactly one word, `#` any number of them.

    A place is come to once, with all numbers of the key's words that may lie before it: they are the bits of one number. So what
    matching costs is bounded by the places there are, however long the key is, and however many `#` there are.
    """

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        node = self._root
        for word in words_of(key):
            node = node.children.setdefault(word, _Node())
        node.bound.add(queue)

    def remove(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        path: list[tuple[_Node, str]] = []
        node = self._root
        for word in words_of(key):
            path.append((node, word))
            node = node.children[word]
        node.bound.remove(queue)
        for parent, word in reversed(path):
            child = parent.children[word]
            if child.children or child.bound:
                break
            del parent.children[word]

    def match(self, key: str, headers: Mapping[str, str]) -> QueueIds:
        return at_once(self.match_in_steps(key, headers))

    def match_in_steps(self, key: str, headers: Mapping[str, str]) -> Matching:
        words = words_of(key)
        places: dict[str, int] = {}
        """Of each word of the key, as bits."""
        for place, word in enumerate(words):
            places[word] = places.get(word, 0) | 1 << place
        for wild in ("*", "#"):
            places.pop(wild, None)  # They stand for others in patterns alone.
        behind_all = 1 << len(words)
        every = 2 * behind_all - 1
        found: list[_Counted] = []
        waiting = [(self._root, 1)]
        cost = STEPS_PER_PLACE * len(words)
        while waiting:
            node, reached = waiting.pop()
            if reached & behind_all and node.bound:
                found.append(node.bound)
            children = node.children
            cost += STEPS_PER_PLACE
            if not children:
                continue
            if (child := children.get("#")) is not None:
                waiting.append((child, every & -(reached & -reached)))
            if (child := children.get("*")) is not None and (there := reached << 1 & every):
                waiting.append((child, there))
            # What the two have in common, by way of whichever has fewer.
            for word in children if len(children) < len(places) else places:
                there = (reached & places.get(word, 0)) << 1
                if there and (child := children.get(word)) is not None:
                    waiting.append((child, there))
                cost += 1
            if cost >= STEPS_IN_ONE:
                yield cost
                cost = 0
        if len(found) == 1:
            yield cost
            return found[0].queues
        chosen: set[QueueId] = set()
        for bound in found:
            chosen.update(bound.queues)
            cost += STEPS_PER_FOUND * len(bound.queues)
            if cost >= STEPS_IN_ONE:
                yield cost
                cost = 0
        yield cost
        return tuple(sorted(chosen))


class HeadersMatcher:
    """Bindings whose pairs are among the message's headers: all of them, or with `x-match` = `any` at least one.

    A pair with an empty value asks only that the header is there. Names that begin with `x-` are not compared. `all` without
    pairs matches every message, `any` without pairs none.
    """

    def __init__(self) -> None:
        self._bindings: dict[tuple[QueueId, str, Arguments], tuple[bool, Arguments]] = {}

    def add(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        is_any = dict(arguments).get("x-match") == "any"
        pairs = tuple((name, value) for name, value in arguments if not name.startswith("x-"))
        self._bindings[queue, key, arguments] = is_any, pairs

    def remove(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        del self._bindings[queue, key, arguments]

    def match(self, key: str, headers: Mapping[str, str]) -> QueueIds:
        return at_once(self.match_in_steps(key, headers))

    def match_in_steps(self, key: str, headers: Mapping[str, str]) -> Matching:
        chosen: set[QueueId] = set()
        cost = 0
        for (queue, _, _), (is_any, pairs) in self._bindings.items():
            cost += STEPS_PER_HEADERS
            if queue not in chosen:
                cost += STEPS_PER_PAIR * len(pairs)
                agree = (name in headers and (not value or headers[name] == value) for name, value in pairs)
                if any(agree) if is_any else all(agree):
                    chosen.add(queue)
            if cost >= STEPS_IN_ONE:
                yield cost
                cost = 0
        yield cost
        return tuple(sorted(chosen))


class ExchangeMatcher:
    """The bindings of one exchange, of whatever kind: those without a selector, and those of each selector by themselves."""

    def __init__(self, kind: str) -> None:
        """Raises `ValueError` for an unknown kind, which a primary never declares."""
        self._kind = kind
        self.version = 0
        """How often something was bound or unbound."""
        self.compared = 0
        """What a message's key, or its headers, may have to be compared with: words of patterns, pairs, selectors."""
        self._plain = matcher_of(kind)
        self._selecting: dict[str, tuple[Matcher, set[tuple[QueueId, str, Arguments]]]] = {}
        """By selector: its matcher and its bindings."""
        self._selectors: list[str] = []
        """In order."""
        self._remembered: dict[str, Targets] = {}
        """Since something was bound or unbound: of a topic exchange by keys, of a headers exchange for messages without any."""
        self._remembered_queues = 0
        self._given_up: set[str] = set()
        """Since then: keys of messages without headers that would have to be compared with too much."""

    @property
    def has_selectors(self) -> bool:
        return bool(self._selecting)

    def add(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        self._changes(key, arguments, 1)
        selector, rest = _apart(arguments)
        if selector is None:
            self._plain.add(queue, key, arguments)
            return
        if selector not in self._selecting:
            self._selecting[selector] = matcher_of(self._kind), set()
            insort(self._selectors, selector)
        matcher, bindings = self._selecting[selector]
        bindings.add((queue, key, rest))
        matcher.add(queue, key, rest)

    def remove(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        self._changes(key, arguments, -1)
        selector, rest = _apart(arguments)
        if selector is None:
            self._plain.remove(queue, key, arguments)
            return
        matcher, bindings = self._selecting[selector]
        matcher.remove(queue, key, rest)
        bindings.remove((queue, key, rest))
        if not bindings:
            del self._selecting[selector]
            del self._selectors[bisect_left(self._selectors, selector)]

    def _changes(self, key: str, arguments: Arguments, sign: int) -> None:
        """A binding comes (1) or goes (-1)."""
        self.version += 1
        self._forget()
        self._given_up.clear()
        if self._kind == "headers":
            self.compared += sign * (1 + len(arguments))
        elif self._kind == "topic":
            self.compared += sign * (1 + key.count("."))

    def targets(self, key: str, headers: Mapping[str, str]) -> Targets:
        """What it chooses for messages of this key and these headers, found in one go."""
        if self._kind in _SIMPLE_KINDS and not self._selecting:
            return Targets(self._plain.match(key, headers))
        known = self.remembered(key, headers)
        return known if known is not None else at_once(self.targets_in_steps(key, headers))

    def remembered(self, key: str, headers: Mapping[str, str]) -> Targets | None:
        """The same, if it is remembered and nothing has to be looked for."""
        memory = self._memory_of(key, headers)
        return self._remembered.get(memory) if memory is not None else None

    def give_up(self, key: str) -> None:
        """Finding the targets of messages of this key, without headers, takes too much: nobody tries it again until something is
        bound or unbound.
        """
        if len(self._given_up) >= REMEMBERED_KEYS_MAX:
            self._given_up.clear()
        self._given_up.add(key)

    def is_given_up(self, key: str) -> bool:
        """Whether somebody found so."""
        return key in self._given_up

    def _memory_of(self, key: str, headers: Mapping[str, str]) -> str | None:
        """Under which key the answer is remembered; None: it is not."""
        if self._kind == "topic":
            return key
        return "" if self._kind == "headers" and not headers else None

    def targets_in_steps(self, key: str, headers: Mapping[str, str]) -> Generator[int, None, Targets]:
        """The same in steps, as a `Matching`."""
        certain = yield from self._plain.match_in_steps(key, headers)
        selecting: list[tuple[str, QueueIds]] = []
        for text in self._selectors:
            queues = yield from self._selecting[text][0].match_in_steps(key, headers)
            if queues:
                selecting.append((text, queues))
        found = Targets(certain, tuple(selecting))
        memory = self._memory_of(key, headers)
        if memory is not None:
            self._remember(memory, found)
        return found

    def _remember(self, key: str, found: Targets) -> None:
        queues = len(found.certain) + sum(1 + len(chosen) for _, chosen in found.selecting)
        if (
            len(self._remembered) >= REMEMBERED_KEYS_MAX
            or self._remembered_queues + queues > REMEMBERED_QUEUES_MAX
        ):
            self._forget()
        self._remembered[key] = found
        self._remembered_queues += queues

    def _forget(self) -> None:
        self._remembered.clear()
        self._remembered_queues = 0


def _apart(arguments: Arguments) -> tuple[str | None, Arguments]:
    """A binding's selector, if it has one, and its other arguments."""
    for pair in arguments:
        if pair[0] == SELECTOR_ARGUMENT:
            return pair[1], tuple(other for other in arguments if other is not pair)
    return None, arguments


def matcher_of(kind: str) -> Matcher:
    """An empty matcher for an exchange kind; raises `ValueError` for an unknown one, which a primary never declares."""
    match kind:
        case "direct":
            return DirectMatcher()
        case "fanout":
            return FanoutMatcher()
        case "topic":
            return TopicMatcher()
        case "headers":
            return HeadersMatcher()
    raise ValueError(f"no exchange kind {kind!r}")
