"""Targets of dead letters: which of the queues on their routes take each of them.

Law: nobody can refuse a dead letter. A queue that has no room goes without, as do those beyond `message_queues_max`, and those
whose selectors would be asked by more steps than bindings may cost a publish.
"""

from collections import Counter
from collections.abc import Generator, Sequence

from lockstep.core.amqp.selector import Selector
from lockstep.core.amqp.selector_row import EVALUATION_STEPS_MAX
from lockstep.core.errors import ErrorCode, LimitReached
from lockstep.core.ids import QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.records import Message
from services.primary.core.context import Context, shown
from services.primary.core.dead_letter_routes import Routes, note_steps
from services.primary.core.selecting import (
    DEAD_LETTER_STEPS_MAX,
    DEAD_LETTERS_COSTLY_MAX,
    PUBLISH_STEPS_MAX,
    STEPS_PER_US,
    look,
)

LOOKED_AT_IN_ONE = 1000
"""Queues that are looked at in one step for whether a message goes there."""


class Room:
    """What a target of dead letters takes before it is full; one that evicts takes everything."""

    __slots__ = ("_bytes", "_is_limited", "_length", "chosen_by", "queue")

    def __init__(self, queue: Queue, chosen_by: Sequence[Selector], is_other: bool) -> None:
        """`chosen_by`: it gets only what one of these matches; none: everything. `is_other`: not the one that they come from, in
        which they take no room that they did not have.
        """
        definition = queue.definition
        self.queue = queue
        self.chosen_by = chosen_by
        self._is_limited = is_other and not definition.is_evicting
        self._length = definition.length_max - queue.length - queue.reserved_length
        self._bytes = definition.bytes_max - queue.bytes - queue.reserved_bytes

    def takes(self, size: int) -> bool:
        """Take one more message of `size` bytes, if it fits."""
        definition = self.queue.definition
        if self._is_limited and (
            (definition.length_max and self._length < 1) or (definition.bytes_max and self._bytes < size)
        ):
            return False
        self._length -= 1
        self._bytes -= size
        return True


class Asked:
    """What selectors say of the messages of one part. Each is asked once about a message, however many queues it is for."""

    def __init__(self, context: Context) -> None:
        self._selectors = context.selectors
        self._message: Message | None = None
        self._said: dict[Selector, bool] = {}
        self._costly: Counter[Selector] = Counter()
        """Messages that took more than a selector may."""
        self._steps = 0
        """Of all that was asked."""
        self.not_asked = 0
        """Messages of which selectors were not asked, because those before them had cost what bindings may cost a publish."""
        self._is_counted = False
        """The present one is in this."""
        self.cost = 0
        """Of what was asked since it was set back, in microseconds."""

    def begin(self, message: Message | None) -> None:
        """The next message, whose body is here if there are selectors."""
        self._message = message
        self._said.clear()
        self._is_counted = False

    def matches(self, selector: Selector) -> bool:
        """Whether it is for those that this one chooses for."""
        said, message = self._said.get(selector), self._message
        if said is not None:
            return said
        assert message is not None, "a body is away"
        if self._steps >= PUBLISH_STEPS_MAX:
            self.not_asked += not self._is_counted
            self._is_counted = True
            return False
        is_careful = self._costly[selector] >= DEAD_LETTERS_COSTLY_MAX
        steps_max = DEAD_LETTER_STEPS_MAX if is_careful else EVALUATION_STEPS_MAX
        found = look(selector, message.properties, 0, message.is_durable, steps_max)
        self._costly[selector] += found.is_too_costly
        self._selectors.pay(found.steps)
        self._steps += found.steps
        self._selectors.too_costly += found.is_too_costly
        self.cost += 1 + found.steps // STEPS_PER_US
        self._said[selector] = found.is_selected
        return found.is_selected


_Runs = list[tuple[Sequence[Queue], tuple[QueuePosition, ...]]]
"""Positions, in order, with the queues that they go to."""


def rooms_of(queue: Queue, routes: Routes) -> Generator[int, None, list[Room]]:
    """What each queue takes that its dead letters may go to; in steps that say what they cost."""
    rooms: list[Room] = []
    for begin in range(0, len(routes.targets), LOOKED_AT_IN_ONE):
        some = routes.targets[begin : begin + LOOKED_AT_IN_ONE]
        rooms += [Room(target, routes.chosen_by.get(target.id, ()), target is not queue) for target in some]
        yield len(some)
    return rooms


def by_targets(
    context: Context,
    queue: Queue,
    rooms: Sequence[Room],
    asked: Asked,
    positions: Sequence[QueuePosition],
    is_durable: bool,
) -> Generator[int, None, _Runs]:
    """The positions, all of which are durable or none is, in order, in runs that go to the same targets.

    Copies of one message are not more than a command may bring: transient targets whose time to live is another one than those
    of the first then go without, as full ones do.
    """
    bytes_max, most = context.settings.command_bytes_max, context.settings.message_queues_max
    are_chosen = any(room.chosen_by for room in rooms)
    runs: list[tuple[list[Queue], list[QueuePosition]]] = []
    cost = limited = 0
    for position in positions:
        size = queue.size_of((position,))
        targets: list[Queue] = []
        copied: set[int] = set()
        if are_chosen:
            asked.begin(queue.message(position))
        for room in rooms:
            cost += 1
            if cost + asked.cost >= LOOKED_AT_IN_ONE:
                yield cost + asked.cost
                cost = asked.cost = 0
            is_chosen = not room.chosen_by
            for selector in room.chosen_by:
                is_chosen = asked.matches(selector)
                if asked.cost >= LOOKED_AT_IN_ONE:
                    yield asked.cost
                    asked.cost = 0
                if is_chosen:
                    break
            if not is_chosen:
                continue
            ttls = copied
            if is_durable and not room.queue.is_durable:
                ttls = copied | {room.queue.definition.message_ttl_ms}
            if len(ttls) > 1 and len(ttls) * size > bytes_max:
                continue
            if len(targets) >= most:
                limited += 1
                break
            if room.takes(size):
                targets.append(room.queue)
                copied = ttls
        if not runs or runs[-1][0] != targets:
            runs.append((targets, []))
        runs[-1][1].append(position)
    if limited:
        _note_limited(context, queue, limited)
    if not_asked := asked.not_asked:
        asked.not_asked = 0
        _note_not_asked(context, queue, not_asked)
    return [(targets, tuple(found)) for targets, found in runs]


def _note_limited(context: Context, queue: Queue, count: int) -> None:
    """Some messages would have gone to more queues than one message may."""
    context.figures.dead_letters_limited += count
    most = context.settings.message_queues_max
    text = f"{count} dead letters of queue {shown(queue.name)} go to {most} queues and no more: message_queues_max"
    context.note_refusal(LimitReached("message_queues_max", ErrorCode.TOO_LARGE, text))


def _note_not_asked(context: Context, queue: Queue, count: int) -> None:
    """Some messages went without queues whose selectors were not asked."""
    context.figures.dead_letters_limited += count
    what = f"{count} dead letters of queue {shown(queue.name)} go to those queues alone that are found"
    note_steps(context, what)
