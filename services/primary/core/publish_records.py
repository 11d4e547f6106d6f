"""What a publish brings as records, none of which is too much for a step of whoever applies it.

Law: a record has one durability, and a message in it the queues for which it is the same: what differs by queue (durability,
expiry) is there twice. Every queue keeps the order of its messages.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from operator import attrgetter

from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.commands import OutgoingMessage, PublishCommand
from lockstep.core.ids import QueueId
from lockstep.core.pieces import at_once
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.records import Message
from services.primary.core.context import Context
from services.primary.core.publish_routes import Routed, TargetIds

PLACES_IN_ONE = 2000
"""What messages of one record get in all queues together, where each place is looked at: some milliseconds' work, on each
replica. More are published by several records."""
ALIKE_PLACES_IN_ONE = 200_000
"""The same of messages that are alike: each queue gets a range, and nobody looks at more than their names before some of them
leave without the others."""
_IS_DURABLE, _TTL_MS = attrgetter("is_durable"), attrgetter("ttl_ms")
_RECORDED = attrgetter("is_durable", "expires_ms", "priority")
_MANY = 32
"""Messages from which on a loop takes longer than iterators, which take as long to be made as 20 messages."""
_KINDS_SHIFT = 3
"""So many queues are told apart in a microsecond, as a power of two."""
_Part = tuple[bool, int, TargetIds]
"""(durable, the queues' time to live or 0, queues)"""


@dataclass(slots=True)
class Run:
    """What one record publishes: no more than is put into its queues in one step, unless a message alone has more queues."""

    is_durable: bool
    messages: list[Message]
    are_alike: bool
    """It is known that they differ in their contents alone, never expire and have the default priority."""
    places: int
    """What they get in all queues together."""

    def is_like(self, message: Message) -> bool:
        """Whether they all stay alike with this one, of which the same is known."""
        first = self.messages[0]
        return self.are_alike and first.queues is message.queues and first.is_durable is message.is_durable

    def room_for(self, message: Message, is_alike: bool) -> int:
        """How many messages more it may get that go where this one does."""
        most = ALIKE_PLACES_IN_ONE if is_alike and self.is_like(message) else PLACES_IN_ONE
        return (most - self.places) // len(message.queues)


def runs_of_one(context: Context, command: PublishCommand, routed: Routed) -> list[Run]:
    """What goes to one queue, or nowhere, as records."""
    asked = command.messages
    if isinstance(asked, AlikeMessages) and routed:
        # Nearly always.
        [(targets, messages)] = routed
        [(is_durable, ttl_ms, queues)] = _parts(context, targets, asked.is_durable)
        return [Run(is_durable, _messages(context, messages, ttl_ms, queues), False, len(messages))]
    return at_once(runs_in_steps(context, command, Parts(context), routed))


def runs_in_steps(
    context: Context, command: PublishCommand, parts: "Parts", routed: Routed
) -> Generator[int, None, list[Run]]:
    """The messages as records, in steps that say what they cost: what differs by queue (durability, expiry) is there twice. Every
    queue keeps their order.
    """
    asked = command.messages
    # No queue gets messages in both kinds of records then.
    is_of_one_kind = isinstance(asked, AlikeMessages) or len(set(map(_IS_DURABLE, asked))) <= 1
    runs = _Runs(is_of_one_kind)
    for targets, messages in routed:
        if is_of_one_kind:
            stretches: list[Sequence[OutgoingMessage]] = [messages]
        else:
            stretches = [list(alike) for _, alike in groupby(messages, _IS_DURABLE)]
        for stretch in stretches:
            for is_durable, ttl_ms, queues in parts.of(targets, stretch[0].is_durable):
                runs.add(is_durable, _messages(context, stretch, ttl_ms, queues))
                yield len(stretch) + parts.cost()
    return runs.made


class _Runs:
    """Records of one publish as they are made. Every queue keeps the order of its messages."""

    def __init__(self, is_of_one_kind: bool) -> None:
        """`is_of_one_kind`: no queue gets messages both in durable records and in others."""
        self.made: list[Run] = []
        self._is_of_one_kind = is_of_one_kind
        self._last: dict[bool, Run] = {}
        """Of each kind."""

    def add(self, is_durable: bool, messages: list[Message]) -> None:
        """Messages for the same queues, at least one, in records of this kind: as many as it takes."""
        are_alike, queues = _are_alike(messages), len(messages[0].queues)
        begin, run = 0, self._open(is_durable)
        while begin < len(messages):
            count = run.room_for(messages[0], are_alike) if run is not None else 0
            if run is None or count < 1:
                run = self._last[is_durable] = Run(is_durable, [], are_alike, 0)
                self.made.append(run)
                count = max(1, (ALIKE_PLACES_IN_ONE if are_alike else PLACES_IN_ONE) // queues)
            elif not (are_alike and run.is_like(messages[0])):
                run.are_alike = False
            some = messages[begin : begin + count]
            run.messages += some
            run.places += len(some) * queues
            begin += count

    def _open(self, is_durable: bool) -> Run | None:
        """The record of this kind that may get more."""
        if self._is_of_one_kind:
            return self._last.get(is_durable)
        return self.made[-1] if self.made and self.made[-1].is_durable is is_durable else None


def _are_alike(messages: Sequence[Message]) -> bool:
    """Whether messages for the same queues are so in a record (`Alike`)."""
    first = messages[0]
    if first.expires_ms or first.priority != PRIORITY_DEFAULT:
        return False
    return len(messages) == 1 or len(set(map(_RECORDED, messages))) == 1


def _parts(context: Context, targets: TargetIds, is_durable: bool) -> list[_Part]:
    """What a message becomes."""
    by_id = context.state.queues.by_id
    if len(targets) == 1:
        queue = by_id[targets[0]]
        return [(is_durable and queue.is_durable, queue.definition.message_ttl_ms, targets)]
    kinds = [
        (is_durable and queue.is_durable, queue.definition.message_ttl_ms)
        for queue in [by_id[target] for target in targets]
    ]
    if kinds.count(kinds[0]) == len(kinds):
        return [(*kinds[0], targets)]
    found: dict[tuple[bool, int], list[QueueId]] = {}
    for target, kind in zip(targets, kinds, strict=True):
        found.setdefault(kind, []).append(target)
    return [(*kind, tuple(queues)) for kind, queues in found.items()]


class Parts:
    """What messages become by the queues that they go to: looked at once. Lives as long as one admission."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[tuple[int, bool], list[_Part]] = {}
        """By the identity of the queues, which the routes keep."""
        self._looked_at = 0

    def of(self, targets: TargetIds, is_durable: bool) -> list[_Part]:
        known = id(targets), is_durable
        found = self._known.get(known)
        if found is None:
            found = self._known[known] = _parts(self._context, targets, is_durable)
            self._looked_at += len(targets)
        return found

    def cost(self) -> int:
        """Of what was looked at since it was asked for last."""
        looked_at, self._looked_at = self._looked_at, 0
        return looked_at >> _KINDS_SHIFT


def _messages(
    context: Context, messages: Sequence[OutgoingMessage], ttl_ms: int, queues: TargetIds
) -> list[Message]:
    """They expire by their own time to live or the queues', whichever is shorter."""
    if isinstance(messages, AlikeMessages) and not (ttl_ms or messages.ttl_ms):
        properties, is_durable = messages.properties, messages.is_durable
        priority, bodies = messages.priority, messages.bodies
        if priority != PRIORITY_DEFAULT:
            return [Message(queues, properties, body, 0, is_durable, priority) for body in bodies]
        if len(bodies) < _MANY:
            return [Message(queues, properties, body, 0, is_durable) for body in bodies]
        return list(map(Message, repeat(queues), repeat(properties), bodies, repeat(0), repeat(is_durable)))
    if not ttl_ms and not any(map(_TTL_MS, messages)):
        return [
            Message(queues, each.properties, each.body, 0, each.is_durable, each.priority)
            for each in messages
        ]
    context.expiry.expect(queues)
    now_ms = context.now.wall_ms
    spans = [min(each.ttl_ms or ttl_ms, ttl_ms or each.ttl_ms) for each in messages]
    return [
        Message(
            queues, each.properties, each.body, now_ms + span if span else 0, each.is_durable, each.priority
        )
        for each, span in zip(messages, spans, strict=True)
    ]
