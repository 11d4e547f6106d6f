"""Votes "no", put into a primary's hands at a moment that a scenario chooses."""

from typing import TYPE_CHECKING

from lockstep.core.ids import BrokerId, SetName, TransactionKey
from lockstep.core.inputs import BackupSaid
from lockstep.core.replication import Refuse

if TYPE_CHECKING:
    from tests.simulation.staging.stage import Stage


def refuse(stage: "Stage", by: BrokerId, key: TransactionKey) -> None:
    """The refusal that `by` would send if its store's reserve were exhausted reaches the primary now."""
    replica = stage.replica(by)
    primary = stage.world.brokers[stage.map.primary]
    stream = next(
        stream
        for stream, found in primary.replicas[SetName("s1")].primary.backups.by_stream.items()  # type: ignore[union-attr]
        if found.member.broker == by
    )
    reason = "the store's reserve is exhausted"
    said = Refuse(replica.set_name, stage.epoch, by, replica.incarnation, key, reason)
    primary.feed(BackupSaid(replica.set_name, stream, said))
