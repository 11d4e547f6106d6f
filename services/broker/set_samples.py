"""What a broker shows at /metrics of a resource set: of its own replica, and of the set itself while it leads it.

Law: what is true of the set is told by its serving primary alone, so a sum over all brokers counts it once.
"""

from collections.abc import Iterator
from heapq import nlargest

from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.metrics import Sample
from lockstep.wire.v1 import cluster_pb2 as pb
from services.broker.core.replica import Replica
from services.broker.doubt_samples import doubt_samples
from services.primary.core.figures import OUTCOMES
from services.primary.core.primary import PrimaryCore

QUEUES_SHOWN_MAX = 100
"""Queues of a set that are shown one by one, the deepest first: each is a series that Prometheus keeps for weeks."""


def set_samples(core: Replica, report: pb.Replica) -> Iterator[Sample]:
    """`report`: what the replica says of itself, as to operators."""
    labels = {"set": report.resource_set}
    yield from _of_replica(report, labels)
    yield Sample("lockstep_disk_unusable", float(core.is_disk_unusable), labels)
    yield from _counted(core, labels)
    primary = core.primary
    if primary is not None and core.is_serving:
        yield from _of_set(primary, report, labels)
        yield from doubt_samples(primary, labels)


def _of_replica(report: pb.Replica, labels: dict[str, str]) -> Iterator[Sample]:
    yield Sample("lockstep_epoch", report.epoch, labels)
    yield Sample("lockstep_commit_index", report.commit_index, labels)
    yield Sample("lockstep_log_end", report.log_end, labels)
    yield Sample("lockstep_is_primary", float(report.role == pb.ROLE_PRIMARY), labels)
    yield Sample("lockstep_is_in_sync", float(report.role == pb.ROLE_BACKUP), labels)


def _counted(core: Replica, labels: dict[str, str]) -> Iterator[Sample]:
    """Since the process began, over all its reigns."""
    figures = core.figures
    for outcome in OUTCOMES:
        yield Sample("lockstep_tx_total", figures.ended[outcome], {**labels, "outcome": outcome})
    yield Sample("lockstep_messages_enqueued_total", figures.enqueued, labels)
    yield Sample("lockstep_messages_dequeued_total", figures.dequeued, labels)
    yield Sample("lockstep_dead_letters_lost_total", figures.dead_letters_lost, labels)
    yield Sample("lockstep_dead_letters_limited_total", figures.dead_letters_limited, labels)
    yield Sample("lockstep_session_resumes_total", figures.resumed, labels)
    yield Sample("lockstep_fenced_requests_total", figures.fenced, labels)
    yield Sample("lockstep_commit_seconds", figures.commit_seconds, labels)
    yield Sample("lockstep_failover_seconds", core.reigns.failover_seconds, labels)
    yield Sample("lockstep_set_faults_total", core.faults.count, labels)


def _of_set(primary: PrimaryCore, report: pb.Replica, labels: dict[str, str]) -> Iterator[Sample]:
    set_map = primary.membership.set_map
    yield Sample("lockstep_in_sync_size", len(set_map.in_sync), labels)
    yield Sample("lockstep_in_sync_reachable", primary.in_sync_reachable, labels)
    yield Sample("lockstep_min_in_sync", set_map.min_in_sync, labels)
    yield Sample("lockstep_set_brokers", len(set_map.brokers), labels)
    since_ms = primary.waits_since_ms
    waiting_ms = boottime_ms() - since_ms if since_ms else 0
    yield Sample("lockstep_commit_waiting_seconds", waiting_ms / 1000, labels)
    for follower in report.followers:
        lag = max(0, report.log_end - follower.durable_index)
        yield Sample("lockstep_replication_lag_entries", lag, {**labels, "backup": follower.broker})
    yield Sample("lockstep_queues", report.queues, labels)
    yield Sample("lockstep_messages", report.messages, labels)
    queues = primary.context.state.queues.by_id.values()
    for queue in nlargest(QUEUES_SHOWN_MAX, queues, key=lambda queue: (queue.length, -queue.id)):
        yield Sample("lockstep_queue_messages", queue.length, {**labels, "queue": queue.name})
    yield Sample("lockstep_sessions", report.sessions, labels)
    yield Sample("lockstep_tx_open", report.open_transactions, labels)
    yield Sample("lockstep_tx_prepared", report.prepared_transactions, labels)
    yield Sample("lockstep_tx_queue_bytes", report.tx_queue_bytes, labels)
