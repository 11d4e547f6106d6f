"""Routes of dead letters: the queues that those of one queue may go to, found as for a publish with their key.

Law: whatever takes long is found in steps, in which nothing may be declared or bound. What bindings may cost a publish they may
cost dead letters: where more would have to be compared with their key, they go nowhere, and nobody tries that again until
something is bound or unbound.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

from lockstep.core.amqp.selector import Selector
from lockstep.core.apply_messages import MOVED_AS_TARGETS, MOVED_AT_ONCE
from lockstep.core.errors import ErrorCode, LimitReached
from lockstep.core.exchanges import DEFAULT_EXCHANGE, Exchange
from lockstep.core.ids import QueueId
from lockstep.core.queues import Queue
from lockstep.core.records import DeclareQueue, DequeueReason
from lockstep.core.routing import Targets
from services.primary.core.context import Context
from services.primary.core.selecting import COMPARED_MANY, PUBLISH_STEPS_MAX, QUEUES_MANY, STEPS_PER_US

QUESTION_AS_TARGETS = 15
"""Asking a selector about a message costs as much as so many queues that it goes to; much more, if it is a long one."""
_EVERYTHING: Mapping[QueueId, Sequence[Selector]] = {}
"""Nothing is chosen by selectors."""


class Routes(NamedTuple):
    """Where dead letters of a queue may go. It holds until something is declared, deleted, bound or unbound."""

    targets: tuple[Queue, ...] = ()
    """In the order of their ids."""
    chosen_by: Mapping[QueueId, Sequence[Selector]] = _EVERYTHING
    """Of those that get only what one of these matches."""
    questions: int = 0
    """Selectors in all of these, each once."""
    is_given_up: bool = False
    """Where they go would take too much to find."""

    @property
    def cost(self) -> int:
        """Of one message, as of a record that moves it (`moving_cost`)."""
        if not self.targets:
            return 1
        return MOVED_AS_TARGETS + len(self.targets) + QUESTION_AS_TARGETS * self.questions

    @property
    def part_max(self) -> int:
        """Messages of one part."""
        return max(1, MOVED_AT_ONCE // self.cost)

    @property
    def need_bodies(self) -> bool:
        """A target that is not durable gets copies, and selectors look at what they take."""
        return bool(self.chosen_by) or not all(target.is_durable for target in self.targets)


NOWHERE = Routes()
_NEVER_FOUND = Routes(is_given_up=True)


def dead_letter_exchange(definition: DeclareQueue) -> str | None:
    """Where dead letters of a queue go to; "": the default exchange, which a routing key alone means, too. None: nowhere."""
    if definition.dead_letter_exchange is None and definition.dead_letter_key:
        return ""
    return definition.dead_letter_exchange


def routes_at_once(context: Context, queue: Queue, reason: int) -> Routes | None:
    """Where dead letters of a queue go to, if that is found at once; None: `find_routes` finds it in steps."""
    definition, state = queue.definition, context.state
    name = dead_letter_exchange(definition)
    if name is None:
        return NOWHERE
    key = definition.dead_letter_key or queue.name
    if name == DEFAULT_EXCHANGE:
        return _without_own(context, queue, reason, state.route(name, key, {}))
    exchange = state.exchanges.get(name)
    if exchange is None:
        return NOWHERE
    matcher = exchange.matcher
    if matcher.has_selectors:
        return _NEVER_FOUND if matcher.is_given_up(key) else None
    targets = matcher.remembered(key, {})
    if targets is None:
        if matcher.compared >= COMPARED_MANY:
            return _NEVER_FOUND if matcher.is_given_up(key) else None
        targets = matcher.targets(key, {})
    if len(targets.certain) > QUEUES_MANY:
        return None
    return _without_own(context, queue, reason, targets.certain)


def find_routes(context: Context, queue: Queue, reason: int) -> Generator[int, None, Routes]:
    """The same in steps that say what they cost; nothing may be declared or bound between."""
    found = routes_at_once(context, queue, reason)
    if found is not None:
        return found
    definition, selectors = queue.definition, context.selectors
    exchange = context.state.exchanges.get(dead_letter_exchange(definition) or "")
    assert exchange is not None, "what is nowhere is found at once"
    targets = yield from _match(context, exchange, definition.dead_letter_key or queue.name)
    if targets is None:
        return _NEVER_FOUND
    certain = set(targets.certain)
    chosen_by: dict[QueueId, list[Selector]] = {}
    questions = 0
    for text, queues in targets.selecting:
        before = selectors.spent
        selector = selectors.of(text, None)
        if selector is not None:
            for target in queues:
                if target not in certain:
                    chosen_by.setdefault(target, []).append(selector)
            questions += 1
        yield 1 + len(queues) // 2 + (selectors.spent - before) // STEPS_PER_US
    ids = sorted(certain.union(chosen_by))
    yield len(ids)
    routes = _without_own(context, queue, reason, ids)
    yield len(ids)
    return routes._replace(chosen_by=chosen_by, questions=questions)


def _match(context: Context, exchange: Exchange, key: str) -> Generator[int, None, Targets | None]:
    """What an exchange chooses; None: that takes more than bindings may cost a publish. It has its share of the time that
    selectors and bindings may take, however long that is.
    """
    known = exchange.matcher.remembered(key, {})
    if known is not None:
        return known
    matching = exchange.matcher.targets_in_steps(key, {})
    spent = 0
    while spent <= PUBLISH_STEPS_MAX:
        try:
            steps = next(matching)
        except StopIteration as ended:
            found: Targets = ended.value
            return found
        context.selectors.pay(steps)
        spent += steps
        yield 1 + steps // STEPS_PER_US
    exchange.matcher.give_up(key)
    return None


def _without_own(context: Context, queue: Queue, reason: int, targets: Sequence[QueueId]) -> Routes:
    """What expires does not go to the queue that it is in: it would go round for ever, and nobody would ever have asked for
    that.
    """
    by_id = context.state.queues.by_id
    is_own_left_out = reason == DequeueReason.EXPIRED
    found = [by_id[target] for target in targets if not (is_own_left_out and target == queue.id)]
    return Routes(tuple(found))


def note_steps(context: Context, what: str) -> None:
    """Some dead letters go without queues that take too much to find."""
    text = f"{what}: bindings of their exchange take more than {PUBLISH_STEPS_MAX} steps"
    context.note_refusal(LimitReached("publish_steps_max", ErrorCode.TOO_LARGE, text))
