"""Giving sets back to their first brokers, as `services/broker/giving_back.py` does, with the real core that says when (C4)."""

from typing import TYPE_CHECKING

from lockstep.core.ids import BrokerId, SetName
from lockstep.core.inputs import HandOver
from services.broker.core.succession import GivingBack
from tests.simulation.etcd import Etcd

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

WHOLE_MS = 10_000
"""How long the turn is kept for a set that was given back, and still lacks a member."""


class GivesBack:
    """Lives as long as its broker process, which calls `look` with every tick."""

    def __init__(self, broker: "Broker", wait_ms: int) -> None:
        self._broker = broker
        self._core = GivingBack(broker.broker, wait_ms)
        self._key = f"{broker.world.keys.prefix}stepping-down"
        self._given: tuple[SetName, BrokerId, int] | None = None
        """What was given to whom, and until when the turn is kept for it."""
        self._is_taking = False

    def look(self) -> None:
        """Give a set that is due, or end the turn in which one was given."""
        if self._given is not None:
            set_name, to, until_ms = self._given
            set_map, whole = self._broker.etcd.in_sync(set_name)
            is_whole = set_map is not None and set_map.primary == to and set(set_map.brokers) == set(whole)
            if is_whole or self._now_ms >= until_ms:
                self._given = None
                self._end()
        elif not self._is_taking:
            for set_name in self._broker.replicas:
                if self._due(set_name) is not None:
                    self._take(set_name)
                    return

    @property
    def _now_ms(self) -> int:
        return self._broker.clocks.now().boottime_ms

    def _due(self, set_name: SetName) -> BrokerId | None:
        set_map, whole = self._broker.etcd.in_sync(set_name)
        replica = self._broker.replicas[set_name]
        if set_map is None:
            return None
        return self._core.due(set_map, whole, replica.is_serving, replica.is_chosen, self._now_ms)

    def _take(self, set_name: SetName) -> None:
        key, holder, lease = self._key, self._broker.incarnation.encode(), self._broker.etcd.keeper.lease_id
        self._is_taking = True

        def take(etcd: Etcd) -> object:
            held = etcd.get(key)
            if (held is not None and held.value != holder) or lease not in etcd.leases:
                return False
            etcd.put(key, holder, lease)
            return True

        self._broker.etcd.session.call(take, lambda result: self._broker.post(self._taken, set_name, result))

    def _taken(self, set_name: SetName, result: object) -> None:
        self._is_taking = False
        to = self._due(set_name)
        if result is not True or to is None:
            if result is not False:
                self._end()
            return
        self._core.given(set_name, self._now_ms)
        self._given = set_name, to, self._now_ms + WHOLE_MS
        self._broker.world.branches.reach("set given back")
        self._broker.feed(HandOver(set_name, to))

    def _end(self) -> None:
        key, holder = self._key, self._broker.incarnation.encode()

        def end(etcd: Etcd) -> None:
            entry = etcd.get(key)
            if entry is not None and entry.value == holder:
                etcd.delete(key)

        self._broker.etcd.session.tell(end)
