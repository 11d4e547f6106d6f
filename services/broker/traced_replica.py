"""A replica whose transactions are traced: what the primary does for one, and when its backups have it.

Law: a span says only what is committed, or rolled back for good: it is made when the commit index is behind the record.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from lockstep.core.branch_names import branch_name
from lockstep.core.clock import Now
from lockstep.core.effects import AnyEffect, TellPrimary, TellStore
from lockstep.core.ids import BrokerId, Incarnation, LogIndex, SetName, TransactionKey, transaction_id
from lockstep.core.inputs import AnyInput
from lockstep.core.records import Dequeue, Publish
from lockstep.core.replication import Acknowledge
from lockstep.core.store_protocol import AppendFrames
from lockstep.core.xid import Xid
from lockstep.runtime.append_tracing import AppendTracing
from lockstep.runtime.tracing import Span, Trace, now_ns, place_of, trace_of, trace_of_distributed
from services.broker.core.replica import Replica
from services.broker.core.settings import ReplicaSettings
from services.primary.core.primary import PrimaryCore

if TYPE_CHECKING:
    from lockstep.runtime.tracing_sdk import Tracing


class _Ended(NamedTuple):
    at: LogIndex
    transaction: TransactionKey
    what: str
    begun_ns: int
    appended_ns: int
    messages: int


class _Observer:
    """Lives as long as its transaction is open here."""

    def __init__(self, key: TransactionKey, ended: "deque[_Ended]") -> None:
        self._key = key
        self._ended = ended
        self._begun_ns = now_ns()
        self._messages = 0

    def publish(self, index: LogIndex, record: Publish) -> None:
        self._messages += len(record.messages)

    def accept(self, index: LogIndex, record: Dequeue) -> None:
        self._messages += len(record.positions)

    def prepare(self, index: LogIndex) -> None:
        pass

    def commit(self, index: LogIndex) -> None:
        self._end(index, "committed")

    def rollback(self, index: LogIndex) -> None:
        self._end(index, "rolled_back")

    def _end(self, index: LogIndex, what: str) -> None:
        self._ended.append(_Ended(index, self._key, what, self._begun_ns, now_ns(), self._messages))


class _Observers:
    """The factory of a replica's observers."""

    hears_whole = True

    def __init__(self) -> None:
        self.ended: deque[_Ended] = deque()

    def create(self, key: TransactionKey) -> _Observer:
        return _Observer(key, self.ended)


class TracedReplica(Replica):
    """As a replica, in a process that traces."""

    def __init__(
        self,
        set_name: SetName,
        broker: BrokerId,
        incarnation: Incarnation,
        settings: ReplicaSettings,
        tracing: "Tracing",
        generation: Callable[[], str],
    ) -> None:
        """`generation` of the cluster."""
        super().__init__(set_name, broker, incarnation, settings)
        self._tracing = tracing
        self._generation = generation
        self._observers = _Observers()
        self.factories = (self._observers,)
        self._backup_appends = AppendTracing(
            tracing, set_name, "backup", generation, **self._broker_attribute
        )
        self._led: PrimaryCore | None = None

    @property
    def _broker_attribute(self) -> dict[str, str]:
        return {"lockstep.broker": self.broker}

    def handle(self, given: AnyInput, now: Now, more_follow: bool = False) -> list[AnyEffect]:
        effects = super().handle(given, now, more_follow)
        if self.primary is not self._led:
            self._led = self.primary
            self._backup_appends.cut()
            self._observers.ended.clear()
        if self.primary is not None:
            self._look(self.primary)
        else:
            self._follow_appends(effects)
        return effects

    def _follow_appends(self, effects: list[AnyEffect]) -> None:
        for effect in effects:
            match effect:
                case TellStore(request=AppendFrames(frames=frames)):
                    self._backup_appends.begun(frames)
                case TellPrimary(message=Acknowledge(log_end=log_end)):
                    self._backup_appends.durable(log_end)

    def _look(self, primary: PrimaryCore) -> None:
        ended, generation = self._observers.ended, self._generation()
        while ended and ended[0].at <= primary.commit_index:
            one = ended.popleft()
            if not generation:
                continue
            name = transaction_id(self.set_name, one.transaction)
            attributes = {
                **place_of(self.set_name, one.transaction, one.at),
                "lockstep.outcome": one.what,
                "lockstep.messages": one.messages,
                **self._broker_attribute,
            }
            trace = trace_of(generation, name)
            span = Span("primary", one.begun_ns, attributes, self._links(primary, one.transaction))
            self._tracing.record(trace, span)
            self._tracing.record(trace, Span("commit", one.appended_ns, attributes))

    @staticmethod
    def _links(primary: PrimaryCore, key: TransactionKey) -> list[Trace]:
        """To the distributed transaction that it is a branch of, if it is one of our coordinator."""
        outcome = primary.context.state.outcomes.get(key)
        if outcome is None or not outcome.xid:
            return []
        try:
            name = branch_name(Xid.decode(outcome.xid))
        except ValueError:
            return []
        return [trace_of_distributed(name.global_id.hex())] if name is not None else []
