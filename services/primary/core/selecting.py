"""Selectors of consumers and of bindings: which messages they are for, and what asking them, and looking for them, may cost.

Law: a message that cannot be asked (it was not sent by AMQP, is malformed where the selector looks, or would cost too much) is
selected by none. A publish that would cost too much is refused, for good. Compiling selectors, asking those of bindings, and
comparing keys and headers with many bindings have a share of the loop's time and no more, however many commands want it: what
exceeds it raises `LongSelection` and goes on later. A publish that goes to many queues takes of the same share, so that others
have their turn behind each of them. A binding with a selector is for the messages that the selector matches, on exchanges of any
kind; a queue gets a message once, through however many bindings. Records name queues: only the primary routes and asks selectors.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.amqp.selector import SELECTOR_CHARS_MAX, Selector, compile_selector
from lockstep.core.amqp.selector_row import EVALUATION_STEPS_MAX, TooCostly
from lockstep.core.clock import Now
from lockstep.core.commands import OutgoingMessage
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.exchanges import Exchange
from lockstep.core.ids import QueueId
from lockstep.core.routing import ExchangeMatcher, QueueIds, Targets

COMPILED_CHARS_MAX = 512 * 1024
"""Text of selectors that are kept compiled: some ten megabytes, a hundred at worst."""
STEPS_PER_US = 10
"""Steps of selectors, and of comparing keys."""
STEPS_PER_LOOK = 10
"""So many steps of a selector count as one more message that a view looked at."""
STEPS_PER_CHAR = 15
"""What compiling takes for each character of a text."""
COMPARED_MANY = 256
"""Comparing a key, or headers, with less (`ExchangeMatcher.compared`) takes nothing: it is a common one."""
COMPARED_IN_ALL = 4096
"""The same of all messages of a publish, each of which is compared by itself."""
STEPS_PER_QUEUE = 40
"""What a publish that goes to many queues takes for each: about half of what that is, for it needs no rest as long as itself."""
STEPS_PER_PLACE = 4
"""The same for each place that such a publish gets in queues, if they are looked at one by one."""
QUEUES_MANY = 64
"""A publish to fewer takes nothing: it is a common one."""
PLACES_MANY = 4000
"""But for one that gets more places in them, which may be more than one step's work."""
SHARE_STEPS = 50_000
"""At a time: some milliseconds."""
STEPS_PER_MS = 5_000
"""What the share grows by: half of the loop's time."""
BEGUN_MAX = 3
"""A publish that was begun so often, because bindings changed while it had its turns, is done with nothing between."""
PUBLISH_STEPS_MAX = 10_000_000
"""What bindings may cost one publish, with their selectors: a second of the processor, for 10,000 messages with 20 usual ones."""
_STEPS_SHIFT = 2
"""So many queues that a selector leads to take a step, as a power of two."""


class LongSelection(Exception):
    """The share is used up: nothing was done yet, and the message of the client is to be taken again later."""

    def __init__(self, asking: "Asking | None" = None) -> None:
        super().__init__("selectors have had their share")
        self.asking = asking


def check_places(places: int, places_max: int) -> None:
    """Raises `LimitReached` TOO_LARGE when a command would bring its messages to so many places in queues."""
    if places > places_max:
        raise LimitReached(
            "command_places_max",
            ErrorCode.TOO_LARGE,
            f"the messages of one command would get more than {places_max} places in queues: publish less at once",
            command_places_max=places_max,
        )


class Look(NamedTuple):
    """What came of asking a selector about a message."""

    is_selected: bool
    steps: int
    is_too_costly: bool = False

    @property
    def looked(self) -> int:
        """What it cost in messages that a view looks at (`delivery_turn_max`)."""
        return 1 + self.steps // STEPS_PER_LOOK


_MALFORMED = Look(False, 0)
DEAD_LETTERS_COSTLY_MAX = 3
"""Dead letters of one part that may be too costly for the selectors of a queue that they may go to."""
DEAD_LETTER_STEPS_MAX = 1_000
"""For those behind them: a tenth of a millisecond, which is much for a usual selector."""


def look(
    selector: Selector,
    properties: bytes,
    delivery_count: int,
    is_durable: bool,
    steps_max: int = EVALUATION_STEPS_MAX,
) -> Look:
    """Whether the selector matches a message. `delivery_count`: of deliveries that failed."""
    try:
        return Look(*selector.ask(properties, delivery_count, is_durable, steps_max))
    except TooCostly:
        return Look(False, steps_max, True)
    except Rejected:
        return _MALFORMED


class Selectors:
    """Selectors, each compiled once, and their share of the loop. Lives as long as the epoch."""

    def __init__(self) -> None:
        self._compiled: dict[str, Selector | Rejected] = {}
        self._chars = 0
        self._left = SHARE_STEPS
        self._left_at_ms = 0
        """On CLOCK_BOOTTIME."""
        self.spent = 0
        """Steps, since the epoch began."""
        self.resumed: Asking | None = None
        """Of the publish that is taken again just now."""
        self.too_costly = 0
        """Messages that a selector of a binding was not asked about: dead letters, which nobody can refuse."""

    def has_share(self, now: Now) -> bool:
        """Whether there is something left."""
        if now.boottime_ms > self._left_at_ms:
            grown = (now.boottime_ms - self._left_at_ms) * STEPS_PER_MS
            self._left, self._left_at_ms = min(SHARE_STEPS, self._left + grown), now.boottime_ms
        return self._left > 0

    def check_share(self, now: Now) -> None:
        """Raises `LongSelection` if nothing is left of it."""
        if not self.has_share(now):
            raise LongSelection

    def pay(self, steps: int) -> None:
        """So many steps were taken."""
        self._left -= steps
        self.spent += steps

    def compiled(self, text: str, now: Now) -> Selector:
        """The selector that `text` is; raises `Rejected` INVALID_ARGUMENT, and `LongSelection`."""
        found = self._known(text, now)
        if isinstance(found, Rejected):
            raise Rejected(found.code, found.message, **found.details)
        return found

    def of(self, text: str, now: Now | None) -> Selector | None:
        """The selector of a binding; None if it is none: another version of this program took it for one.

        Raises `LongSelection`, unless `now` is None: it is needed whatever it takes.
        """
        found = self._known(text, now)
        return None if isinstance(found, Rejected) else found

    def _known(self, text: str, now: Now | None) -> Selector | Rejected:
        found = self._compiled.get(text)
        if found is not None:
            return found
        if now is not None and not self.has_share(now):
            raise LongSelection
        chars = min(len(text), SELECTOR_CHARS_MAX)
        self.pay(chars * STEPS_PER_CHAR)
        if self._chars + chars > COMPILED_CHARS_MAX:
            self._compiled.clear()
            self._chars = 0
        self._chars += chars
        try:
            found = compile_selector(text)
        except Rejected as error:
            found = error.with_traceback(None)
        self._compiled[text] = found
        return found

    def asking(self, exchange: Exchange, places_max: int) -> "Asking":
        """For a publish to this exchange, which may get so many places: if that was interrupted, and nothing was bound or unbound
        since, it goes on.
        """
        resumed, self.resumed = self.resumed, None
        if resumed is not None and resumed.fits(exchange.matcher):
            resumed.begin()
            return resumed
        begun = resumed.begun + 1 if resumed is not None else 1
        return Asking(self, exchange.matcher, begun, places_max)


class Asking:
    """What selectors of bindings say of the messages of one publish. Lives until that is done, in as many turns as it takes."""

    def __init__(self, selectors: Selectors, matcher: ExchangeMatcher, begun: int, places_max: int) -> None:
        """`begun`: how often, with this; it is begun anew when something was bound or unbound meanwhile."""
        self._selectors = selectors
        self._matcher = matcher
        self._version = matcher.version
        self.begun = begun
        self.steps = 0
        """What it has cost, since it was begun."""
        self._places_max = places_max
        self._places = 0
        """That its first messages get."""
        self._done: list[QueueIds] = []
        """Where these go."""
        self._place = 0
        self._matching: Generator[int, None, Targets] | None = None
        """For the messages behind those; None: it has not begun."""
        self._targets: Targets | None = None
        """What that has found."""
        self._chosen: set[QueueId] | None = None
        """Of the message behind those, by its first selectors."""
        self._asked = 0
        """How many."""

    def fits(self, matcher: ExchangeMatcher) -> bool:
        """Whether what was found still holds."""
        return matcher is self._matcher and matcher.version == self._version

    def begin(self) -> None:
        """Its messages come again, from the first one on."""
        self._place = 0

    def known(self, count: int) -> list[QueueIds] | None:
        """The queues of each of the next so many messages, if all have been asked about."""
        end = self._place + count
        if end > len(self._done):
            return None
        found, self._place = self._done[self._place : end], end
        return found

    def queues_of(
        self,
        key: str,
        headers: Mapping[str, str],
        messages: Sequence[OutgoingMessage | AlikeMessages],
        copies: int,
        now: Now,
    ) -> list[QueueIds]:
        """The queues that get each of the next messages, which have this key and these headers and stand for so many each,
        ascending; raises `LimitReached` TOO_LARGE, and `LongSelection`.
        """
        known = self.known(len(messages))
        if known is not None:
            return known
        if self._targets is None:
            self._targets = self._match(key, headers, now)
        targets = self._targets
        if targets.selecting:
            found = [
                self._selected(targets, each.properties, each.is_durable, copies, now) for each in messages
            ]
        else:
            if len(targets.certain) >= QUEUES_MANY:
                self.check_share(now)
            self._take_places(len(targets.certain) * copies * len(messages))
            found = [self._as_before(targets.certain)] * len(messages)
            self._done += found
            self._place += len(found)
        self._targets = None
        return found

    def _match(self, key: str, headers: Mapping[str, str], now: Now) -> Targets:
        self.check_share(now)
        known = self._matcher.remembered(key, headers)
        if known is not None:
            return known
        if self._matching is None:
            self._matching = self._matcher.targets_in_steps(key, headers)
        while True:
            self.check_share(now)
            try:
                cost = next(self._matching)
            except StopIteration as ended:
                self._matching = None
                found: Targets = ended.value
                return found
            self.pay(cost)

    def _selected(
        self, targets: Targets, properties: bytes, is_durable: bool, copies: int, now: Now
    ) -> QueueIds:
        """The queues that get the next message."""
        known = self.known(1)
        if known is not None:
            return known[0]
        if self._chosen is None:
            if len(targets.certain) >= QUEUES_MANY:
                self.check_share(now)
                self.pay(len(targets.certain))
            self._chosen, self._asked = set(targets.certain), 0
        chosen = self._chosen
        while self._asked < len(targets.selecting):
            self.check_share(now)
            text, queues = targets.selecting[self._asked]
            self.pay(1 + (len(queues) >> _STEPS_SHIFT))
            if not chosen.issuperset(queues) and self._is_selected(text, properties, is_durable, now):
                chosen.update(queues)
            self._asked += 1
        self._take_places(len(chosen) * copies)
        found = self._as_before(tuple(sorted(chosen)))
        self._chosen = None
        self._done.append(found)
        self._place += 1
        return found

    def _take_places(self, places: int) -> None:
        """The next messages get so many: where they go is kept until all have been asked about."""
        self._places += places
        check_places(self._places, self._places_max)

    def _as_before(self, found: QueueIds) -> QueueIds:
        """The same queues as one object with those of the message before, if that goes to the same: who has many is compared with
        others no more.
        """
        return self._done[-1] if self._done and self._done[-1] == found else found

    def check_share(self, now: Now) -> None:
        """Raises `LongSelection` if nothing is left of it."""
        if not self._selectors.has_share(now):
            raise LongSelection(self)

    def pay(self, steps: int) -> None:
        """So many steps were taken; raises `LimitReached` TOO_LARGE if the publish has cost too much."""
        self._selectors.pay(steps)
        self.steps += steps
        if self.steps > PUBLISH_STEPS_MAX:
            raise LimitReached(
                "publish_steps_max",
                ErrorCode.TOO_LARGE,
                f"bindings take more than {PUBLISH_STEPS_MAX} steps for one publish: publish less at once",
                steps_max=PUBLISH_STEPS_MAX,
            )

    def _is_selected(self, text: str, properties: bytes, is_durable: bool, now: Now) -> bool:
        selector = self._selectors.of(text, now)
        if selector is None:
            return False
        found = look(selector, properties, 0, is_durable)
        self.pay(found.steps)
        if found.is_too_costly:
            raise TooCostly
        return found.is_selected
