"""What a broker shows at /metrics."""

from collections.abc import Iterator

from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.driver import Driver
from lockstep.runtime.metrics import Sample
from lockstep.wire.v1 import cluster_pb2 as pb
from services.broker.doubt_samples import doubt_samples
from services.broker.event_samples import event_samples
from services.broker.events.planner import Planner
from services.broker.lease_loop import LeaseLoop
from services.broker.status_report import StatusReport
from services.primary.server import PrimaryService
from services.primary.sessions import SessionsService


class BrokerSamples:
    """Lives as long as the process; read by the metrics server's thread."""

    def __init__(
        self,
        driver: Driver,
        sessions: SessionsService,
        primary: PrimaryService,
        lease: LeaseLoop,
        report: StatusReport,
        planner: Planner,
    ) -> None:
        self._driver = driver
        self._sessions = sessions
        self._primary = primary
        self._lease = lease
        self._report = report
        self._planner = planner

    def read(self) -> Iterator[Sample]:
        driver = self._driver
        yield Sample("lockstep_inputs_total", "Inputs handled by cores.", driver.inputs_total)
        yield Sample("lockstep_drains_total", "Batches in which they were fed.", driver.drains_total)
        yield Sample("lockstep_core_busy_seconds_total", "Time spent in cores.", driver.busy_seconds)
        yield Sample("lockstep_tick_lag_seconds", "How late the last tick was.", driver.tick_lag_seconds)
        yield Sample("lockstep_client_streams", "Open streams of clients.", self._sessions.streams)
        yield Sample(
            "lockstep_backup_waiting_bytes", "What waits for backups.", self._primary.waiting_bytes()
        )
        left_ms = max(0, self._lease.serve_until_ms - boottime_ms())
        yield Sample(
            "lockstep_lease_left_seconds", "Time for which the lease still allows serving.", left_ms / 1000
        )
        for set_name in driver.set_names:
            yield from _of_replica(self._report.replica(set_name))
        yield from doubt_samples(driver)
        yield from event_samples(driver, self._planner)


def _of_replica(replica: pb.Replica) -> Iterator[Sample]:
    labels = {"set": replica.resource_set}
    for name, help_text, value in (
        ("epoch", "Epoch of the replica.", replica.epoch),
        ("commit_index", "Highest index known to be committed.", replica.commit_index),
        ("log_end", "Last index of its log.", replica.log_end),
        ("is_primary", "1 while it serves as primary.", float(replica.role == pb.ROLE_PRIMARY)),
        ("is_in_sync", "1 while it is a backup in sync.", float(replica.role == pb.ROLE_BACKUP)),
        ("queues", "Queues.", replica.queues),
        ("messages", "Messages in all queues.", replica.messages),
        ("sessions", "Sessions of clients.", replica.sessions),
        ("open_transactions", "Transactions that are not prepared.", replica.open_transactions),
        ("prepared_transactions", "Branches that wait for their coordinator.", replica.prepared_transactions),
        ("tx_queue_bytes", "Content of tx-queues that are not released.", replica.tx_queue_bytes),
    ):
        yield Sample(f"lockstep_set_{name}", help_text, value, labels)
