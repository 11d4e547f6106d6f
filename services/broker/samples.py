"""What a broker shows at /metrics."""

from collections.abc import Iterator

from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.driver import Driver
from lockstep.runtime.metrics import Sample
from services.broker.core.replica import Replica
from services.broker.event_samples import event_samples
from services.broker.events.planner import Planner
from services.broker.lease_loop import LeaseLoop
from services.broker.own_disk import OwnDisk
from services.broker.set_samples import set_samples
from services.broker.status_report import StatusReport
from services.primary.server import PrimaryService
from services.primary.sessions import SessionsService


class BrokerSamples:
    """Lives as long as the process; read at each scrape, on the event loop."""

    def __init__(
        self,
        driver: Driver,
        sessions: SessionsService,
        primary: PrimaryService,
        lease: LeaseLoop,
        report: StatusReport,
        own_disk: OwnDisk,
        planner: Planner,
    ) -> None:
        self._driver = driver
        self._sessions = sessions
        self._primary = primary
        self._lease = lease
        self._report = report
        self._own_disk = own_disk
        self._planner = planner

    def read(self) -> Iterator[Sample]:
        driver = self._driver
        yield Sample("lockstep_inputs_total", driver.inputs_total)
        yield Sample("lockstep_drains_total", driver.drains_total)
        yield Sample("lockstep_core_busy_seconds_total", driver.busy_seconds)
        yield Sample("lockstep_tick_lag_seconds", driver.tick_lag_seconds)
        yield Sample("lockstep_client_streams", self._sessions.streams)
        yield Sample("lockstep_backup_waiting_bytes", self._primary.waiting_bytes())
        left_ms = max(0, self._lease.serve_until_ms - boottime_ms())
        yield Sample("lockstep_lease_left_seconds", left_ms / 1000)
        yield Sample("lockstep_lost_sets", len(self._own_disk.lost_sets))
        yield Sample("lockstep_silent_witnesses", self._report.silent_witnesses)
        for set_name in driver.set_names:
            core = driver.core(set_name)
            if isinstance(core, Replica):
                yield from set_samples(core, self._report.replica(set_name))
        yield from event_samples(driver, self._planner)
