"""Succession: who leads a set next when its primary stops on purpose, and when it goes back to its first broker (DESIGN 2, C4).

Law: the order of the entry's `brokers` is the preference. A set is given only to whom is in sync with its memory; it goes back
while it lacks no member, has lacked none for a while, and nobody said who should lead it. A broker that keeps losing it is
given it less and less often.
"""

from collections.abc import Collection
from dataclasses import dataclass

from lockstep.core.cluster_map import SetMap
from lockstep.core.ids import BrokerId, Epoch, SetName

FORGET_MS = 3_600_000
"""A set that has not gone back for so long goes back as if it were the first time."""
DOUBLINGS_MAX = 6
"""Of the time that a set lacks no member before it goes back: from half a minute, half an hour."""


def successor(set_map: SetMap, broker: BrokerId, whole: Collection[BrokerId]) -> BrokerId | None:
    """The first in the set's order that may lead it in the place of `broker`; None: nobody else may.

    `whole`: brokers that run and are in sync with their memory. A backup alone is none: it never stands.
    """
    return next((one for one in set_map.brokers if one != broker and one in whole), None)


@dataclass(slots=True)
class _Whole:
    """Since when a set that this broker leads has lacked no member."""

    epoch: Epoch
    since_ms: int


@dataclass(slots=True)
class _GivenBack:
    """How often this process has given a set back, lately, and when it did so last."""

    times: int
    at_ms: int


class GivingBack:
    """Lives as long as the broker process: finds which of the sets that it leads are due to go back to their first brokers."""

    def __init__(self, broker: BrokerId, wait_ms: int) -> None:
        """`wait_ms`: how long a set lacks no member before it goes back; doubled for each time that it did lately."""
        self._broker = broker
        self._wait_ms = wait_ms
        self._whole: dict[SetName, _Whole] = {}
        self._given_back: dict[SetName, _GivenBack] = {}

    def due(
        self, set_map: SetMap, whole: Collection[BrokerId], is_serving: bool, is_chosen: bool, now_ms: int
    ) -> BrokerId | None:
        """The broker that this set is to be given to now, None: it stays. Asked again and again, once a second or so.

        `is_serving`: this broker serves it; `is_chosen`: by somebody who said that it should lead.
        """
        name = set_map.set_name
        first = set_map.brokers[0] if set_map.brokers else self._broker
        is_led_here = (
            is_serving and not is_chosen and set_map.primary == self._broker and first != self._broker
        )
        if not is_led_here or not all(broker in whole for broker in set_map.brokers):
            self._whole.pop(name, None)
            return None
        since = self._whole.setdefault(name, _Whole(set_map.epoch, now_ms))
        if since.epoch != set_map.epoch:
            since.epoch, since.since_ms = set_map.epoch, now_ms
        return first if now_ms - since.since_ms >= self._wait_of(name, now_ms) else None

    def given(self, set_name: SetName, now_ms: int) -> None:
        """It is being given back, or that was tried."""
        before = self._given_back.get(set_name)
        times = before.times if before is not None and now_ms - before.at_ms < FORGET_MS else 0
        self._given_back[set_name] = _GivenBack(times + 1, now_ms)
        self._whole.pop(set_name, None)

    def _wait_of(self, set_name: SetName, now_ms: int) -> int:
        before = self._given_back.get(set_name)
        if before is None or now_ms - before.at_ms >= FORGET_MS:
            return self._wait_ms
        return self._wait_ms << min(before.times, DOUBLINGS_MAX)
