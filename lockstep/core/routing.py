"""Routing: which queues the bindings of one exchange choose for a message.

Law: the answer is a tuple of queue ids, each once, in ascending order, and depends on the set of bindings alone, never on the
order in which they were made. Rules of AMQP 0-9-1 (3.1.3) and 0-10 for direct, fanout, topic and headers.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from lockstep.core.ids import QueueId

Arguments = tuple[tuple[str, str], ...]
SELECTOR_ARGUMENT = "lockstep:selector"
"""Name of the argument of a binding that is a selector: only messages that it matches go through the binding. What routes by a
binding knows nothing of it: whoever asks for a message's queues asks the selectors.
"""
CACHE_MAX = 4096
"""Routing keys whose result a topic exchange remembers between changes of its bindings."""


class Matcher(Protocol):
    """The bindings of one exchange. A binding is added once and removed once; the exchange sees to that."""

    def add(self, queue: QueueId, key: str, arguments: Arguments) -> None: ...

    def remove(self, queue: QueueId, key: str, arguments: Arguments) -> None: ...

    def match(self, key: str, headers: Mapping[str, str]) -> tuple[QueueId, ...]: ...


class _Counted:
    """Queues with the number of bindings that choose each: two bindings may differ only in their arguments."""

    __slots__ = ("_counts", "_queues")

    def __init__(self) -> None:
        self._counts: dict[QueueId, int] = {}
        self._queues: tuple[QueueId, ...] | None = ()
        """None: to be made, behind the last of many bindings once."""

    def __bool__(self) -> bool:
        return bool(self._counts)

    @property
    def queues(self) -> tuple[QueueId, ...]:
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

    def match(self, key: str, headers: Mapping[str, str]) -> tuple[QueueId, ...]:
        return self._bound.queues


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

    def match(self, key: str, headers: Mapping[str, str]) -> tuple[QueueId, ...]:
        bound = self._by_key.get(key)
        return bound.queues if bound is not None else ()


class _Node:
    """A place in the trie of patterns, reached by a word, by `*` or by `#`."""

    __slots__ = ("bound", "children", "is_hash")

    def __init__(self, is_hash: bool) -> None:
        self.children: dict[str, _Node] = {}
        self.bound = _Counted()
        self.is_hash = is_hash


def words_of(key: str) -> list[str]:
    """The words of a routing key or pattern; an empty one has none."""
    return key.split(".") if key else []


class TopicMatcher:
    """A trie of patterns: `*` is exactly one word, `#` any number of them.

    Matching walks all places that the words so far can have reached, so its cost is bounded by words times places, never
    exponential in the number of `#`.
    """

    def __init__(self) -> None:
        self._root = _Node(is_hash=False)
        self._cache: dict[str, tuple[QueueId, ...]] = {}

    def add(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        self._cache.clear()
        node = self._root
        for word in words_of(key):
            node = node.children.setdefault(word, _Node(is_hash=word == "#"))
        node.bound.add(queue)

    def remove(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        self._cache.clear()
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

    def match(self, key: str, headers: Mapping[str, str]) -> tuple[QueueId, ...]:
        cached = self._cache.get(key)
        if cached is None:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            cached = self._cache[key] = self._walk(words_of(key))
        return cached

    def _walk(self, words: list[str]) -> tuple[QueueId, ...]:
        reached = _with_hashes([self._root])
        for word in words:
            following: list[_Node] = []
            for node in reached:
                if node.is_hash:
                    following.append(node)
                literal = node.children.get(word) if word not in ("*", "#") else None
                star = node.children.get("*")
                following += [child for child in (literal, star) if child is not None]
            reached = _with_hashes(following)
        return tuple(sorted({queue for node in reached for queue in node.bound.queues}))


def _with_hashes(nodes: Iterable[_Node]) -> list[_Node]:
    """These nodes, each once, and every `#` below them, which may stand for no word at all."""
    found: dict[int, _Node] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if id(node) not in found:
            found[id(node)] = node
            child = node.children.get("#")
            if child is not None:
                waiting.append(child)
    return list(found.values())


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

    def match(self, key: str, headers: Mapping[str, str]) -> tuple[QueueId, ...]:
        chosen = set()
        for (queue, _, _), (is_any, pairs) in self._bindings.items():
            if queue not in chosen:
                agree = (name in headers and (not value or headers[name] == value) for name, value in pairs)
                if any(agree) if is_any else all(agree):
                    chosen.add(queue)
        return tuple(sorted(chosen))


class ExchangeMatcher:
    """The bindings of one exchange, of whatever kind: those without a selector, and those of each selector by themselves."""

    def __init__(self, kind: str) -> None:
        """Raises `ValueError` for an unknown kind, which a primary never declares."""
        self._kind = kind
        self.version = 0
        """How often something was bound or unbound."""
        self.compared = 0
        """Of a headers exchange: what each message's headers are compared with, its bindings and their pairs."""
        self._plain = matcher_of(kind)
        self._selecting: dict[str, tuple[Matcher, set[tuple[QueueId, str, Arguments]]]] = {}
        """By selector: its matcher and its bindings."""

    @property
    def has_selectors(self) -> bool:
        return bool(self._selecting)

    @property
    def selectors(self) -> int:
        """How many different ones there are."""
        return len(self._selecting)

    def add(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        self.version += 1
        self._compare(arguments, 1)
        selector, rest = _apart(arguments)
        if selector is None:
            self._plain.add(queue, key, arguments)
            return
        matcher, bindings = self._selecting.setdefault(selector, (matcher_of(self._kind), set()))
        bindings.add((queue, key, rest))
        matcher.add(queue, key, rest)

    def remove(self, queue: QueueId, key: str, arguments: Arguments) -> None:
        self.version += 1
        self._compare(arguments, -1)
        selector, rest = _apart(arguments)
        if selector is None:
            self._plain.remove(queue, key, arguments)
            return
        matcher, bindings = self._selecting[selector]
        matcher.remove(queue, key, rest)
        bindings.remove((queue, key, rest))
        if not bindings:
            del self._selecting[selector]

    def _compare(self, arguments: Arguments, sign: int) -> None:
        if self._kind == "headers":
            self.compared += sign * (1 + len(arguments))

    def match(self, key: str, headers: Mapping[str, str]) -> tuple[QueueId, ...]:
        """The queues that get the message whatever any selector says."""
        return self._plain.match(key, headers)

    def match_selecting(self, key: str, headers: Mapping[str, str]) -> list[tuple[str, tuple[QueueId, ...]]]:
        """Each selector, in the order of their texts, with the queues that get the message if it matches."""
        found = [(text, self._selecting[text][0].match(key, headers)) for text in sorted(self._selecting)]
        return [(text, queues) for text, queues in found if queues]


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
