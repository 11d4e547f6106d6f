"""How surveys arrive and how `rebuild-map` answers: between `map_rebuilding` and the wire."""

from collections.abc import Sequence

from lockstep.core.ids import BrokerId, DiskId, Epoch, LogIndex
from lockstep.runtime.epochs_codec import decode_epochs, decode_reigns
from lockstep.wire.v1 import cluster_pb2 as pb
from lockstep.wire.v1 import store_pb2
from services.broker.core.map_rebuilding import DiskFound, SetPlan, Verdict

_VERDICTS = {
    Verdict.LED: pb.RebuildMapResponse.VERDICT_LED,
    Verdict.CURRENT: pb.RebuildMapResponse.VERDICT_CURRENT,
    Verdict.REBUILT: pb.RebuildMapResponse.VERDICT_REBUILT,
    Verdict.UNHEARD: pb.RebuildMapResponse.VERDICT_UNHEARD,
    Verdict.STUCK: pb.RebuildMapResponse.VERDICT_STUCK,
}


def disk_found(broker: BrokerId, one: store_pb2.SurveyedSet) -> DiskFound:
    """What a broker's survey says of one set."""
    return DiskFound(
        broker,
        DiskId(one.set.disk),
        Epoch(one.last_epoch),
        LogIndex(one.set.log_end),
        Epoch(one.set.highest_epoch),
        one.map_bytes,
        one.map_revision,
        one.generation,
        one.trouble or one.set.damage,
        one.etcd_revision,
        one.stamp,
        decode_epochs(one.epochs),
        decode_reigns(one.epochs),
        LogIndex(one.set.commit_index),
        LogIndex(one.set.snapshot_index),
        one.found_by_broker,
    )


def encode_plans(plans: Sequence[SetPlan], silent: Sequence[BrokerId]) -> pb.RebuildMapResponse:
    """The answer, as long as nothing was written."""
    response = pb.RebuildMapResponse(silent_brokers=silent)
    for plan in plans:
        entry = plan.entry
        response.sets.add(
            name=plan.set_name,
            verdict=_VERDICTS[plan.verdict],
            epoch=entry.epoch if entry is not None else 0,
            in_sync=[member.broker for member in entry.in_sync] if entry is not None else (),
            problem=plan.problem,
            given_up=plan.unheard if entry is not None else (),
            is_led=plan.verdict is Verdict.LED,
            disks=[
                pb.RebuildMapResponse.FoundDisk(
                    broker=disk.broker,
                    disk=disk.disk,
                    last_epoch=disk.last_epoch,
                    log_end=disk.log_end,
                    highest_epoch=disk.highest_epoch,
                    generation=disk.generation,
                    map_revision=disk.map_revision,
                    trouble=disk.trouble or disk.found_by_broker,
                    etcd_revision=disk.etcd_revision,
                )
                for disk in plan.disks
            ],
        )
    return response
