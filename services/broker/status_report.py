"""Status report: what this broker knows of the cluster, and its own part in every set that it serves.

Law: it only reads. Figures of a primary stand at its log's end, those of a backup at what it has applied, be it half of what a
record does; nobody may take them for committed, and nothing is decided by them. A state may be of millions of messages: its hash
is made in turns with everything else that the process has to do, or the leases of all its sets would end meanwhile.
"""

import asyncio

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import StateDigest
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.wire.v1 import cluster_pb2 as pb
from services.backup.core.backup import BackupCore
from services.backup.core.backup_memory import BackupState
from services.broker.core.replica import Replica
from services.broker.own_disk import OwnDisk
from services.primary.core.primary import PrimaryCore

HASHED_ITEMS = 200
"""In one turn: about a millisecond."""
CLEARED_SECONDS = 0.001
"""Between two steps of clearing a state whose hash is wanted."""
HASH_PAUSE = 4.0
"""Times that a hash took, until the next one: hashes take a fifth of the time at most, however many ask for them."""


class StatusReport:
    """Lives as long as the process; part of the Cluster service."""

    def __init__(
        self,
        broker: BrokerId,
        process: Incarnation,
        cluster: str,
        view: ClusterView,
        driver: Driver,
        own_disk: OwnDisk,
    ) -> None:
        self._broker = broker
        self._process = process
        self._cluster = cluster
        self._view = view
        self._driver = driver
        self._own_disk = own_disk
        self._hashing = asyncio.Lock()
        """Whoever hashes keeps the references of a whole state."""
        self._hash_not_before = 0.0
        """Seconds of the event loop's clock."""
        self._next_hashes: dict[SetName, asyncio.Task[pb.Replica]] = {}
        """Those that have not begun: whoever asks meanwhile gets the same."""

    async def get_status(self, request: pb.GetClusterStatusRequest) -> pb.GetClusterStatusResponse:
        view = self._view
        replicas = [
            await self._hashed_replica(name) if request.with_state_hash else self.replica(name)
            for name in self._driver.set_names
        ]
        return pb.GetClusterStatusResponse(
            broker=self._broker,
            incarnation=self._process,
            cluster=self._cluster,
            generation=view.generation,
            members=[
                pb.GetClusterStatusResponse.Member(
                    broker=broker, address=member.address, incarnation=view.running.get(broker, "")
                )
                for broker, member in sorted(view.members.items())
            ],
            sets=[self._resource_set(set_name) for set_name in sorted(view.sets) if view.set_map(set_name)],
            replicas=replicas,
            lost_sets=self._own_disk.lost_sets,
            silent_witnesses=view.silent_witnesses,
            view_age_ms=_age(view.silent_from_ms, boottime_ms()),
        )

    @property
    def silent_witnesses(self) -> int:
        """Brokers that are waited for since all were down."""
        return len(self._view.silent_witnesses)

    def has_opened_its_store(self) -> bool:
        """Whether every replica here has what its disk holds; with an empty disk, too, or a damaged one."""
        return not any(
            isinstance(core := self._driver.core(name), Replica)
            and core.backup is not None
            and core.backup.state is BackupState.OPENING
            for name in self._driver.set_names
        )

    async def _hashed_replica(self, set_name: SetName) -> pb.Replica:
        """With the hash of the state that the other figures are of, which is no older than this call."""
        hashing = self._next_hashes.get(set_name)
        if hashing is None:
            hashing = self._next_hashes[set_name] = asyncio.ensure_future(self._hash(set_name))
            hashing.add_done_callback(_hear_failure)
        return await asyncio.shield(hashing)

    async def _hash(self, set_name: SetName) -> pb.Replica:
        loop = asyncio.get_running_loop()
        async with self._hashing:
            await asyncio.sleep(max(0.0, self._hash_not_before - loop.time()))
            del self._next_hashes[set_name]
            begun_at = loop.time()
            await self._until_whole(set_name)
            report, state = self.replica(set_name), self._state(set_name)
            if state is not None:
                # At once, before anything else is applied; what is read of it then is as it was.
                report.state_hash = await hash_in_turns(state)
            self._hash_not_before = loop.time() + HASH_PAUSE * (loop.time() - begun_at)
            return report

    async def _until_whole(self, set_name: SetName) -> None:
        """What reading the state would do in one go is done in turns: its replica goes on with what is half done."""
        while (state := self._state(set_name)) is not None:
            core = self._driver.core(set_name)
            if isinstance(core, Replica) and core.is_half_done:
                await asyncio.sleep(CLEARED_SECONDS)
            elif state.clearing.queues:
                for _ in state.clearing.until_cleared():
                    await asyncio.sleep(CLEARED_SECONDS)
            else:
                return

    def replica(self, set_name: SetName) -> pb.Replica:
        """This broker's replica of a set. Raises `Rejected` NOT_FOUND."""
        core = self._driver.core(set_name)
        if not isinstance(core, Replica):
            raise Rejected(
                ErrorCode.NOT_FOUND, f"no replica of {set_name[:80]!r} here", set_name=set_name[:80]
            )
        report = pb.Replica(resource_set=set_name, log_end=core.log_end)
        if core.primary is not None:
            _describe_primary(report, core.primary, core.is_serving, boottime_ms())
            if self._view.is_set_back and not report.trouble:
                # It was promoted before anybody said so; whose disk knows more does not follow it, and may be gone.
                report.trouble = self._set_back
        elif core.backup is not None:
            is_in_sync = core.set_map is not None and core.set_map.member(self._broker) is not None
            _describe_backup(report, core.backup, is_in_sync, boottime_ms())
            epoch = self._own_disk.epoch_ahead(set_name) or core.backup.fenced_at
            if epoch:
                # Its store refuses the epoch of etcd: the replica itself never gets to see what is there.
                report.trouble = _ahead_of_etcd(f"epoch {epoch}")
            elif self._view.is_set_back and core.is_ahead_of_etcd:
                report.trouble = self._set_back
            elif core.is_ahead_of_etcd and core.backup.opened is not None:
                report.trouble = _ahead_of_etcd(f"generation {core.backup.opened.generation!r}")
        elif core.faults.last:
            report.role = pb.ROLE_STOPPED
            report.trouble = f"it ended by a fault and begins anew: {core.faults.last}"
        if (state := self._state(set_name)) is not None:
            _describe_state(report, state)
        return report

    @property
    def _set_back(self) -> str:
        return f"etcd was set back: {self._view.set_back_by}; see lockstep cluster rebuild-map"

    def _state(self, set_name: SetName) -> SetState | None:
        """What the replica here has in memory; None: nothing yet, or there is none."""
        core = self._driver.core(set_name)
        if not isinstance(core, Replica):
            return None
        if core.primary is not None:
            return core.primary.context.state
        copy = core.backup.copy if core.backup is not None else None
        return copy.state if copy is not None else None

    def _resource_set(self, set_name: SetName) -> pb.GetClusterStatusResponse.ResourceSet:
        view = self._view.sets[set_name]
        set_map = view.set_map
        assert set_map is not None, "sets without an entry are not reported"
        return pb.GetClusterStatusResponse.ResourceSet(
            name=set_name,
            epoch=set_map.epoch,
            primary=set_map.primary,
            in_sync=[member.broker for member in set_map.in_sync],
            learners=[member.broker for member in set_map.learners],
            brokers=set_map.brokers,
            min_in_sync=set_map.min_in_sync,
            is_led=view.lease_holder is not None,
        )


def _hear_failure(hashing: "asyncio.Task[pb.Replica]") -> None:
    """Whoever asked may have gone."""
    if not hashing.cancelled():
        hashing.exception()


async def hash_in_turns(state: SetState) -> str:
    """As `state_hash`, of the state as it is now; "" if its replica gives it up before all of it was read."""
    digest = StateDigest()
    for number, item in enumerate(state.items_in_pieces(bodies=False)):
        if item is None or number % HASHED_ITEMS == 0:
            await asyncio.sleep(0)
            if state.is_taken_apart:
                return ""
        if item is not None:
            digest.add(item)
    return digest.hexdigest()


def _describe_primary(report: pb.Replica, primary: PrimaryCore, is_serving: bool, now_ms: int) -> None:
    report.epoch = primary.epoch
    report.commit_index = primary.commit_index
    report.role = pb.ROLE_PRIMARY if is_serving else pb.ROLE_PROMOTING
    report.trouble = primary.stopped
    report.tx_queue_bytes = primary.context.tx_queues.bytes
    report.age_ms = _age(primary.committed_ms, now_ms)
    report.lease_ms = max(0, primary.streams.serve_until_ms - now_ms)
    in_sync = {member.broker for member in primary.membership.set_map.in_sync}
    followers = {one.member.broker: one.acknowledged for one in primary.backups.by_stream.values()}
    for broker in sorted(in_sync | followers.keys()):
        if broker != primary.membership.own.broker:
            report.followers.add(
                broker=broker, durable_index=followers.get(broker, 0), is_in_sync=broker in in_sync
            )


def _age(since_ms: int, now_ms: int) -> int:
    return max(0, now_ms - since_ms) if since_ms else 0


def _describe_backup(report: pb.Replica, backup: BackupCore, is_in_sync: bool, now_ms: int) -> None:
    report.epoch = backup.epoch
    report.age_ms = _age(backup.heard_ms, now_ms)
    report.commit_index = backup.copy.commit_index if backup.copy is not None else 0
    if backup.state is BackupState.DAMAGED:
        report.role = pb.ROLE_STOPPED
        report.trouble = f"the disk is damaged: {backup.opened.damage if backup.opened else ''}"
    elif backup.state is BackupState.OPENING:
        report.role = pb.ROLE_UNSPECIFIED
        report.trouble = "waits for its store"
    elif backup.state is BackupState.FOLLOWING and is_in_sync:
        report.role = pb.ROLE_BACKUP
    else:
        report.role = pb.ROLE_LEARNER
        report.trouble = "" if backup.state is BackupState.FOLLOWING else backup.state.value


def _ahead_of_etcd(seen: str) -> str:
    return f"its disk has seen {seen}, etcd does not show it: see lockstep cluster rebuild-map"


def _describe_state(report: pb.Replica, state: SetState) -> None:
    report.state_index = state.applied
    report.open_transactions = state.transactions.open_count
    report.prepared_transactions = state.transactions.prepared_count
    report.sessions = len(state.sessions.by_key)
    report.queues = len(state.queues.by_id)
    report.messages = sum(queue.length for queue in state.queues.by_id.values())
