"""Builders of one set's events that are kept where they got to, so that whoever goes on there or behind reads no log twice.

Law: who goes on gets a copy, and what is kept does not change. A builder holds what is open at its place, as every replica does:
however much log lies between a transaction's begin and its end, it takes no memory.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from lockstep.core.ids import LogIndex
from lockstep.core.set_state import SetState
from services.broker.core.events.builder import EventBuilder
from services.broker.core.events.state_names import StateNames

BUILDERS_MAX = 8
"""A plan and those who read what it planned begin at one place, and each goes on where it ended."""
COLLECTORS_MAX = 4
"""A reader that gave up comes back for the same; few are so far behind at once."""
COLLECTED_BYTES_MIN = 8 * 1024 * 1024
"""Of log: what is read again as quickly takes no place from what needs several calls."""


class KeptBuilders:
    """Of one set; lives as long as the process."""

    def __init__(self) -> None:
        self._state: SetState | None = None
        self._ends = _Shelf(BUILDERS_MAX)
        """Where readings ended, by their positions."""
        self._collectors = _Shelf(COLLECTORS_MAX)
        """By the place up to which they collect; they may have been left before it."""

    def follow(self, state: SetState) -> None:
        """Names come from this state from now on; those of a replica that was loaded again since do not go on."""
        if state is not self._state:
            self.clear()
            self._state = state

    def at(self, after: LogIndex) -> EventBuilder:
        """For a reading from `after` on."""
        known = self._ends.find(after)
        return known.copy() if known is not None else EventBuilder(self._names(), after)

    def collector(self, first: LogIndex, until: LogIndex) -> EventBuilder:
        """One that knows what is open from `first` on, as near to `until` as any that is kept."""
        usable = [
            builder
            for builder in chain(self._ends, self._collectors)
            if builder.known_after <= first <= builder.position <= until
        ]
        if not usable:
            return EventBuilder(self._names(), first, is_collecting=True)
        nearest = max(usable, key=lambda builder: builder.position)
        return nearest.copy(is_collecting=True)

    def keep(self, builder: EventBuilder) -> None:
        """Where a reading ended. Of two at one place the one stays that knows more."""
        known = self._ends.find(builder.position)
        if known is None or builder.known_after <= known.known_after:
            self._ends.put(builder.position, builder)

    def keep_collector(self, collector: EventBuilder, until: LogIndex) -> None:
        """How far somebody got who collects up to `until`."""
        if collector.collected_bytes >= COLLECTED_BYTES_MIN:
            self._collectors.put(until, collector)

    def clear(self) -> None:
        self._ends.clear()
        self._collectors.clear()

    def _names(self) -> StateNames:
        assert self._state is not None, "there is a state to follow"
        return StateNames(self._state)


class _Shelf:
    """Builders of one kind, as many as there is room for; what was not used for longest goes first."""

    def __init__(self, builders_max: int) -> None:
        self._builders_max = builders_max
        self._builders: OrderedDict[LogIndex, EventBuilder] = OrderedDict()

    def __iter__(self) -> Iterator[EventBuilder]:
        return iter(self._builders.values())

    def find(self, place: LogIndex) -> EventBuilder | None:
        found = self._builders.get(place)
        if found is not None:
            self._builders.move_to_end(place)
        return found

    def put(self, place: LogIndex, builder: EventBuilder) -> None:
        self._builders[place] = builder
        self._builders.move_to_end(place)
        if len(self._builders) > self._builders_max:
            self._builders.popitem(last=False)

    def clear(self) -> None:
        self._builders.clear()
