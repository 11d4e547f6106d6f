"""Rules of replication switched off: epochs, the swap before the acknowledgement, the commit index, whole transactions, votes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockstep.core.clock import Now
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.inputs import AnyInput, BackupSaid, PrimarySaid
from lockstep.core.records import AnyRecord, Publish
from lockstep.core.replication import Acknowledge, Refuse
from lockstep.core.set_state import SetState
from services.primary.core.gate import CommitGate
from services.primary.core.membership import Membership
from tests.simulation.mutations import Mutation
from tests.simulation.mutations.replicas import HookedReplica
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class EagerMembership(Membership):
    """Counts a member no longer from the moment that its removal is asked for (R3, R4)."""

    def counted(self) -> list[Any]:
        members = set(self._targets[-1].in_sync if self._targets else self.set_map.in_sync)
        return sorted(members)

    def is_below_minimum(self) -> bool:
        return False


class SwapAfterAcknowledging(HookedReplica):
    def promoted(self, primary: Any) -> None:
        primary.membership.__class__ = EagerMembership


class BackupsNotCounted(Membership):
    """Acknowledges what its own disk alone has."""

    def counted(self) -> list[Any]:
        return [self.own]


class AcknowledgeAlone(HookedReplica):
    def promoted(self, primary: Any) -> None:
        primary.membership.__class__ = BackupsNotCounted


class OpenGate(CommitGate):
    """Answers from the log's end, committed or not (R11)."""

    def wait(self, index: LogIndex, release: Callable[[], None]) -> None:
        release()


class ReadBeyondCommitIndex(HookedReplica):
    def promoted(self, primary: Any) -> None:
        primary._gate.__class__ = OpenGate


class TornState(SetState):
    """Shows what an open transaction publishes at once, each record by itself."""

    def apply(self, index: LogIndex, epoch: Epoch, record: AnyRecord, is_durable: bool) -> None:
        if isinstance(record, Publish) and record.transaction is not None:
            record = Publish(record.command, None, record.ordinal, record.messages)
        super().apply(index, epoch, record, is_durable)


class ApplyEachRecordAlone(HookedReplica):
    def handled(self) -> None:
        if self.backup is not None and self.backup.copy is not None:
            self.backup.copy.state.__class__ = TornState


class EpochBlind(HookedReplica):
    """Takes frames and acknowledgements of any epoch for its own (R2)."""

    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, PrimarySaid) and self.backup is not None:
            return replace(
                given, stream=self.backup.stream, message=replace(given.message, epoch=self.backup.epoch)
            )
        if isinstance(given, BackupSaid) and self.primary is not None:
            return replace(given, message=replace(given.message, epoch=self.primary.epoch))
        return given


class RefusalIgnored(HookedReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, BackupSaid) and isinstance(given.message, Refuse):
            refuse = given.message
            alive = Acknowledge(refuse.set_name, refuse.epoch, refuse.broker, refuse.incarnation, LogIndex(0))
            return replace(given, message=alive)
        return given


def _low_reserve(options: Options) -> None:
    options.faults = ("disk reserve low", "kill broker", "pause broker")


def _lost_backups(options: Options) -> None:
    options.faults = ("kill broker", "power loss", "partition", "isolate machine", "cut off from etcd")
    options.fault_gap_us = 2_000_000


MUTATIONS = (
    Mutation(
        "acknowledge alone",
        "R3: acknowledged is what every counted member has on disk",
        lambda: Parts(make_replica=AcknowledgeAlone),
    ),
    Mutation(
        "acknowledge before the swap",
        "R4: what waited for a lost backup completes only after the swap succeeded",
        lambda: Parts(make_replica=SwapAfterAcknowledging),
        _lost_backups,
    ),
    Mutation(
        "read beyond the commit index",
        "R11: nobody sees anything beyond the commit index",
        lambda: Parts(make_replica=ReadBeyondCommitIndex),
    ),
    Mutation(
        "apply each record alone",
        "DESIGN 3: a transaction becomes visible by one record",
        lambda: Parts(make_replica=ApplyEachRecordAlone),
    ),
    Mutation(
        "epochs not checked",
        "R2: a replica refuses lower epochs than it has seen",
        lambda: Parts(make_replica=EpochBlind),
    ),
    Mutation(
        "refusal ignored",
        "DESIGN 3: a transaction refused while open is rolled back",
        lambda: Parts(make_replica=RefusalIgnored),
        _low_reserve,
    ),
)
