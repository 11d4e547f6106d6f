"""A coordinator's end of its stream to etcd: its presence under a lease, and the decision log.

Law: as the real ones (`services/coordinator/presence.py`, `log_port.py`): a change is sent once, without an answer it is in
doubt; who finds its lease gone registers anew before it begins anything.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.core.branch_names import GenerationTag, generation_tag
from lockstep.core.decision_log import DecisionKeys, LogView, RevisionSeen, SetBackWatch
from lockstep.runtime.decision_log import is_believed
from lockstep.runtime.etcd_values import Entry, Get, GetDone, Put, TransactionResult, as_read
from services.coordinator.core.messages import (
    Decide,
    DeleteTransaction,
    ListLog,
    LogInDoubt,
    LogListed,
    LogRead,
    LogSeen,
    ReadLog,
    WriteParticipants,
)
from services.coordinator.log_changes import AnyLogAnswer, AnyLogChange, AnyLogEffect, LogChanges
from tests.simulation.etcd import Etcd
from tests.simulation.etcd_session import IN_DOUBT, EtcdSession
from tests.simulation.etcd_transactions import entries, transact
from tests.simulation.loop import MS, SECOND

if TYPE_CHECKING:
    from tests.simulation.coordinator import Coordinator

LEASE_US = 2 * SECOND
RENEW_US = LEASE_US // 5
RETRY_US = 100 * MS


class CoordinatorEtcd:
    """Lives as long as its coordinator process."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator = coordinator
        self._world = coordinator.world
        cluster = self._world.keys.cluster
        self.key = DecisionKeys(cluster).coordinator(coordinator.incarnation)
        self.revision = 0
        self.generation: GenerationTag | None = None
        self.generation_value = b""
        self._lease = 0
        self._watch = SetBackWatch()
        self._changes = LogChanges(cluster, self, self._watch)
        self._session = EtcdSession(
            self._world.loop, self._world.network, coordinator.host, lambda keys: None, is_watching=False
        )
        self._be_present()

    def close(self) -> None:
        self._session.close()

    # --- presence -----------------------------------------------------------------------------------------------------

    def _be_present(self) -> None:
        if self._coordinator.is_alive:
            self._coordinator.post(self._register if self.revision == 0 else self._renew)

    def _later(self, pause_us: int) -> None:
        self._world.loop.after(pause_us, self._be_present)

    def _register(self) -> None:
        lease = self._world.random.getrandbits(40) + 1
        key, generation_key, asked = self.key, self._world.keys.generation, self._asked()

        def register(etcd: Etcd) -> object:
            etcd.grant(lease, LEASE_US)
            return transact(etcd, [], [Put(key, b"", lease), Get(generation_key)])

        def take(result: object) -> None:
            if not isinstance(result, TransactionResult):
                self._later(RETRY_US)
                return
            self._lease, self.revision = lease, result.revision
            self._read_generation(result, asked)

        self._call(register, take)

    def _renew(self) -> None:
        lease, generation_key, asked = self._lease, self._world.keys.generation, self._asked()

        def renew(etcd: Etcd) -> object:
            return transact(etcd, [], [Get(generation_key)]) if etcd.renew(lease) else None

        def take(result: object) -> None:
            if isinstance(result, TransactionResult):
                self._read_generation(result, asked)
                return
            if result is None:
                self._world.branches.reach("coordinator's presence lost")
                self.revision = 0
            self._later(RETRY_US)

        self._call(renew, take)

    def _asked(self) -> tuple[RevisionSeen, int]:
        """What was seen before a question, and when it is asked by the process's own clock."""
        return self._watch.seen, self._coordinator.boottime_ms

    def _read_generation(self, result: TransactionResult, asked: tuple[RevisionSeen, int]) -> None:
        found = result.responses[-1]
        if isinstance(found, GetDone) and found.entry is not None:
            self.generation_value = found.entry.value
            self.generation = generation_tag(found.entry.value.decode())
            is_believed(self._watch, result.revision, found.entry.value.decode(), asked[0])
            self._coordinator.feed(LogSeen(asked[1]))
        self._later(RENEW_US)

    # --- the decision log ---------------------------------------------------------------------------------------------

    def perform(self, effect: AnyLogEffect, asked_ms: int, then: Callable[[AnyLogAnswer], None]) -> None:
        """`then` gets the answer, later, once. `asked_ms`: as for `LogPort.perform`."""
        changes = self._changes
        match effect:
            case ReadLog():
                self._read(effect, then)
            case (
                Decide(needs_roll=True)
                | WriteParticipants(needs_roll=True)
                | DeleteTransaction(needs_roll=True)
            ):

                def change(answer: LogRead | LogInDoubt) -> None:
                    if isinstance(answer, LogInDoubt) or answer.view.is_unattested:
                        then(LogInDoubt(effect.ticket))
                    else:
                        self._begin_change(effect, asked_ms, then)

                self._read(ReadLog(effect.ticket, effect.global_id), change, is_own=True)
            case ListLog():
                self._call(
                    lambda etcd: entries(etcd, changes.keys.prefix),
                    lambda result: then(
                        _listed(changes, effect, result)
                        if isinstance(result, list)
                        else LogInDoubt(effect.ticket)
                    ),
                )
            case _:
                self._begin_change(effect, asked_ms, then)

    def _begin_change(
        self, effect: AnyLogChange, asked_ms: int, then: Callable[[AnyLogAnswer], None]
    ) -> None:
        if isinstance(effect, DeleteTransaction) and effect.outcome is not None:
            self._leave_outcome(effect, asked_ms, then)
        else:
            self._change(effect, 0, asked_ms, then)

    def _read(
        self, effect: ReadLog, then: Callable[[LogRead | LogInDoubt], None], *, is_own: bool = False
    ) -> None:
        """As `LogPort._read`."""
        changes, seen, sent_ms = self._changes, self._changes.revision_seen, self._now_ms()

        def take(result: object) -> None:
            if not isinstance(result, TransactionResult):
                then(LogInDoubt(effect.ticket))
                return
            answer = changes.read(effect, result, seen, sent_ms)
            if changes.is_roll_to_be_called(answer, is_own=is_own):
                self._call_the_roll(answer.view)
            then(answer)

        self._call(lambda etcd: transact(etcd, [], changes.view_operations(effect.global_id)), take)

    def _now_ms(self) -> int:
        return self._world.loop.now_us // MS

    def _call_the_roll(self, view: LogView) -> None:
        """As `RollCalls.call`."""
        key, sent_ms, roll_call = self._world.keys.stamps, self._now_ms(), self._changes.roll_call
        asked = roll_call.call(view.stamps, view.revision, sent_ms)
        if asked is None:
            return
        stamp, called = asked
        is_as_read = as_read(key, view.stamps_value, view.stamps_revision)
        compares = self._world.parts.compared(is_as_read)

        def take(result: object) -> None:
            if isinstance(result, TransactionResult) and result.succeeded:
                self._world.branches.reach("coordinator called the roll")
                roll_call.called(stamp, sent_ms)
            elif result is IN_DOUBT:
                roll_call.in_doubt()

        self._call(lambda etcd: transact(etcd, compares, [Put(key, called.encode())]), take)

    def _leave_outcome(
        self, effect: DeleteTransaction, asked_ms: int, then: Callable[[AnyLogAnswer], None]
    ) -> None:
        """Under a lease of its own, which nobody renews."""
        lease = self._world.random.getrandbits(40) + 1
        outcome_us = self._coordinator.limits.outcome_ms * MS

        def granted(result: object) -> None:
            if result is IN_DOUBT:
                then(LogInDoubt(effect.ticket))
            else:
                self._change(effect, lease, asked_ms, then)

        self._call(lambda etcd: etcd.grant(lease, outcome_us), granted)

    def _change(
        self, effect: AnyLogChange, outcome_lease: int, asked_ms: int, then: Callable[[AnyLogAnswer], None]
    ) -> None:
        change = self._changes.change(effect, outcome_lease, self._coordinator.boottime_ms - asked_ms)
        if change is None:
            self._world.loop.after(1 * MS, self._coordinator.post, then, LogInDoubt(effect.ticket))
            return
        operations, seen = self._changes.view_operations(effect.global_id), self._changes.revision_seen
        sent_ms = self._now_ms()

        def take(result: object) -> None:
            if isinstance(result, TransactionResult):
                then(self._changes.changed(effect, result, seen, sent_ms))
            else:
                self._world.branches.reach("decision log in doubt")
                then(LogInDoubt(effect.ticket))

        self._call(lambda etcd: transact(etcd, *change, operations), take)

    def _call(self, operation: Callable[[Etcd], object], take: Callable[[object], None]) -> None:
        self._session.call(operation, lambda result: self._coordinator.post(take, result))


def _listed(changes: LogChanges, effect: ListLog, found: list[Entry]) -> LogListed:
    listing = changes.listing()
    listing.take(found)
    return changes.listed(effect, listing)
