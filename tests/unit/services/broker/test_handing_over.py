"""A process that stops gives each set that it leads to the first in its order that may lead it, and waits until it is led."""

import asyncio
from dataclasses import replace
from typing import cast

from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.ids import BrokerId, Epoch, SetName
from lockstep.core.inputs import AnyInput, HandOver
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd_values import Entry, PutEvent
from services.broker.handing_over import hand_over
from tests.unit.services.replicas import entry, member

A, B, C = BrokerId("a"), BrokerId("b"), BrokerId("c")
KEYS = Keys("c")


class Stopping:
    """Broker a is about to stop; what it feeds is kept, and done by whoever takes a set over, if anybody does."""

    def __init__(self, *sets: SetMap, present: str = "abc", takes_over: bool = True) -> None:
        self.view = ClusterView(KEYS)
        self.fed: list[AnyInput] = []
        self.set_names = [one.set_name for one in sets]
        self._takes_over = takes_over
        self._revision = 1
        for one in sets:
            self._put(KEYS.set_map(one.set_name), one.encode())
            for broker in present:
                self._put(KEYS.presence(one.set_name, BrokerId(broker)), f"{broker}.0".encode())

    def feed(self, given: AnyInput) -> None:
        self.fed.append(given)
        if isinstance(given, HandOver) and self._takes_over:
            asyncio.get_running_loop().call_later(0.05, self._lead, given)

    def _lead(self, given: HandOver) -> None:
        set_map = self.view.set_map(given.set_name)
        assert set_map is not None
        led = replace(set_map, primary=given.to, epoch=Epoch(set_map.epoch + 1))
        self._put(KEYS.set_map(given.set_name), led.encode())

    def _put(self, key: str, value: bytes) -> None:
        self._revision += 1
        self.view.apply([PutEvent(Entry(key, value, self._revision, self._revision, 0))])

    async def stop(self, seconds_max: float = 10.0) -> float:
        """Answers how long it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await hand_over(A, cast(Driver, self), self.view, seconds_max)
        return loop.time() - began


def led_by(broker: str, name: str, *order: BrokerId) -> SetMap:
    others = [member(one) for one in order if one != broker]
    return replace(entry(3, member(broker), *others), set_name=SetName(name), brokers=order)


async def test_each_set_goes_to_the_first_in_its_order_and_is_waited_for() -> None:
    stopping = Stopping(led_by("a", "s1", A, C, B), led_by("a", "s2", B, A, C), led_by("b", "s3", A, B, C))
    assert await stopping.stop() < 5
    assert stopping.fed == [HandOver(SetName("s1"), C), HandOver(SetName("s2"), B)]
    leaders = [found.primary for name in ("s1", "s2") if (found := stopping.view.set_map(SetName(name)))]
    assert leaders == [C, B]


async def test_whoever_is_first_and_not_there_is_passed_over() -> None:
    stopping = Stopping(led_by("a", "s1", A, C, B), present="ab")
    await stopping.stop()
    assert stopping.fed == [HandOver(SetName("s1"), B)]


async def test_a_set_that_nobody_can_take_is_not_waited_for() -> None:
    stopping = Stopping(led_by("a", "s1", A), led_by("a", "s2", A, B), present="a")
    assert await stopping.stop() < 5
    assert stopping.fed == []


async def test_a_set_that_nobody_takes_is_waited_for_as_long_as_was_said() -> None:
    stopping = Stopping(led_by("a", "s1", A, B), takes_over=False)
    assert await stopping.stop(seconds_max=0.2) >= 0.2
    assert stopping.fed == [HandOver(SetName("s1"), B)]
