"""Selectors: nobody is given or shown what his selector does not match; and a browser is shown each message once, in order."""

from collections.abc import Iterator

from tests.simulation.checkers.record import Record, seconds
from tests.simulation.colours import SELECTED
from tests.simulation.history import Browsed, Delivered
from tests.simulation.log_model import Copy


def is_selected(selector: str, copy: Copy) -> bool:
    """Whether a selector of the simulated clients matches a message."""
    return not selector or copy.properties == SELECTED[selector]


def check(record: Record) -> Iterator[str]:
    history = record.history
    handed: list[Delivered | Browsed] = [*history.deliveries, *history.browses]
    for given in handed:
        copies = record.copies(given.set_name, given.queue) if given.selector else {}
        for seen in given.messages if given.selector else ():
            copy = copies.get(seen.position)
            if copy is not None and not is_selected(given.selector, copy):
                yield (
                    f"{given.client} got {seen.body[:24]!r} of {given.queue} at {seconds(given.time_us)}, and its selector is "
                    f"{given.selector!r}"
                )
    for browsed in history.browses:
        positions = [browsed.after, *(seen.position for seen in browsed.messages)]
        if positions != sorted(set(positions)):
            yield (
                f"{browsed.client} was shown positions {positions[1:6]} of {browsed.queue} at {seconds(browsed.time_us)}, "
                f"behind {positions[0]}: not in order, or again"
            )
