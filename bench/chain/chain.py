"""All hops together, and who comes when."""

from collections.abc import Callable
from pathlib import Path
from typing import Self

from bench.cases import Case
from bench.chain.backup import BackupHop
from bench.chain.clients import ClientsHop
from bench.chain.hop import SET, Hop
from bench.chain.primary import PrimaryHop
from bench.chain.store import StoreHop
from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.ids import BrokerId, Epoch, Incarnation

_EPOCH = Epoch(1)


class Chain:
    """One case's set, until it is left. Nothing in it happens but by `work`; time stands still while there is any."""

    def __init__(
        self, folder: Path, case: Case, around: Callable[[Hop], None] = lambda hop: hop.turn()
    ) -> None:
        """Data directories are made in `folder`; `around` has each turn done."""
        self._around = around
        self._now = Now(1_000, 1_700_000_000_000)
        stores, members = [], []
        for broker in ("b1", "b2", "b3"):
            incarnation = Incarnation(f"incarnation of {broker}")
            stores.append(StoreHop(folder / broker, _EPOCH, incarnation))
            members.append(Member(BrokerId(broker), stores[-1].disk, incarnation))
        first = members[0]
        brokers = tuple(member.broker for member in members)
        set_map = SetMap(
            SET, _EPOCH, first.broker, first.incarnation, tuple(members), (), brokers, 2, 1, first.incarnation
        )
        self._primary = PrimaryHop(first, set_map, stores[0], self._read_now)
        backups = [
            BackupHop(member, first.broker, _EPOCH, store, self._read_now)
            for member, store in zip(members[1:], stores[1:], strict=True)
        ]
        self._clients = ClientsHop(self._primary, case)
        self._stores = stores
        self.hops: tuple[Hop, ...] = (self._clients, self._primary, *backups, *stores)
        """The first of each name is the one that is counted."""
        self._primary.begin()
        for member, backup in zip(members[1:], backups, strict=True):
            self._primary.add_backup(member.broker, backup, backup.frames)
            backup.begin(self._primary, self._primary.subscribe, self._primary.acknowledge)
        self._settle()
        for client in self._clients.clients:
            client.begin()
            self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self._stores:
            store.close()

    def fill(self, transactions: int) -> None:
        """What `transactions` of each client take from their queues."""
        for client in self._clients.clients:
            client.fill(transactions)
        self._settle()

    def work(self, transactions: int) -> None:
        """So many transactions of each client, from the first command to the last answer."""
        for client in self._clients.clients:
            client.start(transactions)
        self._settle()
        left = [client.due for client in self._clients.clients if client.due]
        assert not left, f"{len(left)} clients wait"

    def _settle(self) -> None:
        """Turns in order, until nobody has anything to do and the primary waits for no time."""
        while True:
            while any(hop.has_work for hop in self.hops):
                for hop in self.hops:
                    if hop.has_work:
                        self._around(hop)
                        hop.aside()
            if self._primary.wakes_at is None:
                return
            self._now = Now(max(self._now.boottime_ms, self._primary.wakes_at), self._now.wall_ms)
            self._primary.wake()

    def _read_now(self) -> Now:
        return self._now
