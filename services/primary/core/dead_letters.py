"""Dead letters: where what is rejected, has expired or failed too often goes to, and how it is moved there.

Law: what there is little of is moved at once. Everything else is moved in parts, and a part in steps between which nothing comes:
messages count by the queues that they may go to. Where they go is found anew for each part, behind which others have their turn.
What waits for its part (`Waiting`) is on its way out and offered to nobody; a successor finds it again, by its time or because it
is worn out. Nobody can refuse a dead letter: a queue that has no room goes without, as do those beyond `message_queues_max`, and
those that are found only by more steps than bindings may cost a publish.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

from lockstep.core.amqp.sections import with_deaths
from lockstep.core.amqp.selector import Selector
from lockstep.core.amqp.selector_row import EVALUATION_STEPS_MAX
from lockstep.core.apply_messages import MOVED_AS_TARGETS, MOVED_AT_ONCE, deaths_of
from lockstep.core.content import DroppedMessage, size_of
from lockstep.core.errors import ErrorCode, LimitReached
from lockstep.core.exchanges import DEFAULT_EXCHANGE, Exchange
from lockstep.core.ids import MessageId, QueueId, QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.records import DeclareQueue, Dequeue, DequeueReason, Message, Move, Publish
from lockstep.core.routing import Targets
from services.primary.core.context import Context, shown
from services.primary.core.read_back import Found
from services.primary.core.removing import by_durability, end_part, evict_in_steps
from services.primary.core.selecting import (
    COMPARED_MANY,
    DEAD_LETTER_STEPS_MAX,
    DEAD_LETTERS_COSTLY_MAX,
    PUBLISH_STEPS_MAX,
    QUEUES_MANY,
    STEPS_PER_QUEUE,
    look,
)
from services.primary.core.waiting_letters import Waiting, WaitingLetters

QUESTION_AS_TARGETS = 15
"""Asking a selector about a message costs as much as so many queues that it goes to; much more, if it is a long one."""
LOOKED_AT_IN_ONE = 1000
"""Queues that are looked at in one step for whether a message goes there."""
_STEPS_PER_US = 10
"""Steps of selectors, and of comparing keys."""


_EVERYTHING: Mapping[QueueId, Sequence[Selector]] = {}
"""Nothing is chosen by selectors."""


class Ways(NamedTuple):
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


NOWHERE = Ways()
_NEVER_FOUND = Ways(is_given_up=True)


# --- what is done at once, or waits ---------------------------------------------------------------------------------------


def dead_letter(context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int) -> None:
    """Move messages to the queue's dead-letter target, between two commands: at once if they are few, and nobody waits; otherwise
    they are on their way out from now on, and `move_waiting` moves them. Those that are so already wait no second time: moved
    twice, a message would be doubled.
    """
    there, letters = context.dispatch.not_leaving(queue.id, queue.present(positions)), context.letters
    if not there:
        return
    is_first = not letters.ready and not letters.is_reading(queue, reason)
    if is_first and are_few(context, queue, there, reason, context.settings.frame_bytes_max):
        move_few(context, queue, there, reason)
        end_part(context)
        return
    context.dispatch.begin_leaving(queue.id, there)
    letters.add(queue, there, reason)


def are_few(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int, bytes_max: int
) -> bool:
    """Whether these messages, which are there, may be moved at once: where they go is found in no time, there is little to be
    moved, and if bodies are needed, they are here and not more than so many bytes.
    """
    ways = _ways_at_once(context, queue, reason)
    if ways is None or len(positions) * ways.cost > context.letters.left(context.now):
        return False
    is_whole = _fitting(context, queue, positions, ways, bytes_max) == len(positions)
    return is_whole and not bodies_away(context, queue, positions, ways)


def move_few(context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int) -> None:
    """Move messages in the frame that it is in: none, or some that right now `are_few`."""
    ways = _ways_at_once(context, queue, reason) if positions else NOWHERE
    assert ways is not None, f"{queue}: its dead letters are not moved at once"
    context.letters.pay(len(positions) * ways.cost)
    for _ in move_part(context, queue, positions, ways, reason):
        pass


def may_move(context: Context) -> bool:
    """Whether a part of what waits may be moved now. If the time for that is used up, another turn is asked for."""
    if context.alone.works or context.writer.log.uncommitted_bytes > context.settings.uncommitted_bytes_max:
        return False
    letters, now = context.letters, context.now
    if letters.left(now) > 0 and letters.ask_share(context.selectors.has_share(now)):
        return True
    ask_for_turn(context)
    return False


def ask_for_turn(context: Context) -> None:
    """What waits goes on with it."""
    context.effects += context.alone.ask(context.state.set_name, context.now)


def move_waiting(context: Context) -> None:
    """Go on with what waits, as much as leaves others their turn: a part of one queue, then of the next."""
    letters = context.letters
    while letters.ready and may_move(context):
        context.alone.do(_move_next(context, letters))


def _move_next(context: Context, letters: WaitingLetters) -> Iterator[int]:
    """A part of what waits first, or what has to be read for it."""
    letters.are_before_rejects = False
    waiting = letters.take()
    queue = waiting.queue
    if context.state.queues.by_id.get(queue.id) is not queue:
        return
    ways = yield from find_ways(context, queue, waiting.reason)
    some = waiting.positions[waiting.done : waiting.done + ways.part_max]
    free = [
        position
        for position in queue.present(some)
        if position not in queue.locks and not context.dispatch.is_held(queue.id, position)
    ]
    fitting = _fitting(context, queue, free, ways, context.settings.frame_bytes_max)
    away = [each for each in bodies_away(context, queue, free[:fitting], ways) if each not in waiting.found]
    if away:
        first = queue.message_ids(free).index(away[0])
        if not first:
            letters.begin_reading(waiting)
            context.read_back.ask(
                lambda: context.read_back.select(away), lambda found: _came(context, waiting, found)
            )
            return
        fitting = first  # Those before it need not wait.
    if fitting < len(free):
        some = some[: some.index(free[fitting])]
        del free[fitting:]
    context.bodies.bring_back(waiting.found)
    waiting.found = {}
    context.dispatch.end_leaving(queue.id, some)
    if waiting.went(len(some)):
        letters.put_back(waiting)
    letters.pay(len(some) * ways.cost)
    yield from move_part(context, queue, free, ways, waiting.reason)
    end_part(context)


def _came(context: Context, waiting: Waiting, found: Found) -> None:
    waiting.found.update(found)
    context.letters.end_reading(waiting)
    ask_for_turn(context)


# --- one part -------------------------------------------------------------------------------------------------------------


def part_of(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], ways: Ways
) -> Sequence[QueuePosition]:
    """The first of these positions, which are there: as many as one command may bring in one part; one at least."""
    some = positions[: ways.part_max]
    return some[: _fitting(context, queue, some, ways, context.settings.command_bytes_max)]


def _fitting(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], ways: Ways, bytes_max: int
) -> int:
    """How many of these, which are there, bring at most so much content into the log, or into memory to be looked at; one at
    least, if there is one.
    """
    if not ways.need_bodies:
        return len(positions)
    times = max(1, len({_ttl_ms(target) for target in ways.targets if not target.is_durable}))
    size = 0
    for count, content in enumerate(context.state.contents.of(queue.message_ids(positions))):
        size += times * size_of(content)
        if count and size > bytes_max:
            return count
    return len(positions)


def bodies_away(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], ways: Ways
) -> list[MessageId]:
    """Those of these messages, which are there, whose bodies are needed and have to be read before."""
    if not ways.need_bodies:
        return []
    ids = queue.message_ids(positions)
    contents = context.state.contents.of(ids)
    return [each for each, content in zip(ids, contents, strict=True) if isinstance(content, DroppedMessage)]


def move_part(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], ways: Ways, reason: int
) -> Iterator[int]:
    """Move messages, which are there, to those of the queues that take them, or remove them where none does; in steps that say
    what they cost, with nothing between. Bodies that are needed are here.

    They leave their time to live behind (it may be what brought them there); that of the target's begins.
    """
    if len(ways.targets) >= QUEUES_MANY:
        context.selectors.pay(len(positions) * len(ways.targets) * STEPS_PER_QUEUE)
    rooms: list[_Room] = []
    for begin in range(0, len(ways.targets), LOOKED_AT_IN_ONE):
        some = ways.targets[begin : begin + LOOKED_AT_IN_ONE]
        rooms += [_Room(target, ways.chosen_by.get(target.id, ()), target is not queue) for target in some]
        yield len(some)
    asked = _Asked(context)
    for is_durable, found in by_durability(queue, positions):
        runs = yield from _by_targets(context, queue, rooms, asked, found, is_durable)
        for all_targets, moving in runs:
            targets = all_targets
            if not targets and dead_letter_exchange(queue.definition) is not None:
                context.figures.dead_letters_lost += len(moving)
                if ways.is_given_up:
                    _note_given_up(context, queue, len(moving))
            if is_durable:
                targets = [target for target in all_targets if target.is_durable]
                if len(targets) < len(all_targets):
                    transient = [target for target in all_targets if not target.is_durable]
                    yield from _copy(context, queue, moving, transient, reason)
            if targets:
                ids = tuple([target.id for target in targets])
                ttls_ms = [target.definition.message_ttl_ms for target in targets]
                wall_ms = context.now.wall_ms
                expires_ms = tuple([wall_ms + ttl_ms if ttl_ms else 0 for ttl_ms in ttls_ms])
                if any(ttls_ms):
                    context.expiry.expect(ids)
                yield len(ids) // 2
                record = Move(None, 0, queue.id, moving, ids, reason, expires_ms, wall_ms)
                context.writer.append(record, is_durable)
                yield from context.state.finish_in_steps()
            else:
                context.writer.append(Dequeue(None, None, 0, queue.id, moving, reason), is_durable)
            yield len(moving) * MOVED_AS_TARGETS + len(all_targets)
    for room in rooms:
        if room.queue.definition.is_evicting:
            yield from evict_in_steps(context, room.queue)


class _Room:
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


class _Asked:
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
        self.cost += 1 + found.steps // _STEPS_PER_US
        self._said[selector] = found.is_selected
        return found.is_selected


_Runs = list[tuple[Sequence[Queue], tuple[QueuePosition, ...]]]
"""Positions, in order, with the queues that they go to."""


def _by_targets(
    context: Context,
    queue: Queue,
    rooms: Sequence[_Room],
    asked: _Asked,
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
            ttls = copied if room.queue.is_durable or not is_durable else copied | {_ttl_ms(room.queue)}
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
    _note_steps(context, what)


def _note_given_up(context: Context, queue: Queue, count: int) -> None:
    """Some messages are gone, since nobody knows where they belong."""
    _note_steps(context, f"{count} dead letters of queue {shown(queue.name)} go nowhere")


def _note_steps(context: Context, what: str) -> None:
    text = f"{what}: bindings of their exchange take more than {PUBLISH_STEPS_MAX} steps"
    context.note_refusal(LimitReached("publish_steps_max", ErrorCode.TOO_LARGE, text))


def _copy(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], targets: Sequence[Queue], reason: int
) -> Iterator[int]:
    """Durable messages for transient queues: by their content, which says why they are dead letters. A reference of a transient
    queue to the content that the store has of them would not keep it there, and on some replica the body may be away.
    """
    by_ttl: dict[int, list[QueueId]] = {}
    for target in targets:
        by_ttl.setdefault(_ttl_ms(target), []).append(target.id)
    messages = queue.messages(positions)
    assert len(messages) == len(positions), f"{queue}: a body is away"
    said = [
        with_deaths(
            message.properties,
            deaths_of(queue, position, reason, context.now.wall_ms),
            queue.annotations.get(position, b""),
        )
        for position, message in zip(positions, messages, strict=True)
    ]
    yield len(targets) + MOVED_AS_TARGETS * len(said)
    for ttl_ms, found in by_ttl.items():
        ids, expires_ms = tuple(found), context.now.wall_ms + ttl_ms if ttl_ms else 0
        if expires_ms:
            context.expiry.expect(ids)
        copies = tuple(
            [
                Message(ids, properties, message.body, expires_ms, message.is_durable, message.priority)
                for properties, message in zip(said, messages, strict=True)
            ]
        )
        context.writer.append(Publish(None, None, 0, copies), False, len(ids) * len(copies))
        yield from context.state.finish_in_steps()
        yield MOVED_AS_TARGETS * len(copies) + len(ids)


# --- where they go --------------------------------------------------------------------------------------------------------


def dead_letter_exchange(definition: DeclareQueue) -> str | None:
    """Where dead letters of a queue go to; "": the default exchange, which a routing key alone means, too. None: nowhere."""
    if definition.dead_letter_exchange is None and definition.dead_letter_key:
        return ""
    return definition.dead_letter_exchange


def _ways_at_once(context: Context, queue: Queue, reason: int) -> Ways | None:
    """Where dead letters of a queue go to, if that is found at once; None: `find_ways` finds it in steps."""
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


def find_ways(context: Context, queue: Queue, reason: int) -> Generator[int, None, Ways]:
    """The same in steps that say what they cost; nothing may be declared or bound between."""
    found = _ways_at_once(context, queue, reason)
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
        yield 1 + len(queues) // 2 + (selectors.spent - before) // _STEPS_PER_US
    ids = sorted(certain.union(chosen_by))
    yield len(ids)
    ways = _without_own(context, queue, reason, ids)
    yield len(ids)
    return ways._replace(chosen_by=chosen_by, questions=questions)


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
        yield 1 + steps // _STEPS_PER_US
    exchange.matcher.give_up(key)
    return None


def _without_own(context: Context, queue: Queue, reason: int, targets: Sequence[QueueId]) -> Ways:
    """What expires does not go to the queue that it is in: it would go round for ever, and nobody would ever have asked for
    that.
    """
    by_id = context.state.queues.by_id
    is_own_left_out = reason == DequeueReason.EXPIRED
    return Ways(tuple([by_id[target] for target in targets if not (is_own_left_out and target == queue.id)]))


def _ttl_ms(queue: Queue) -> int:
    return queue.definition.message_ttl_ms
