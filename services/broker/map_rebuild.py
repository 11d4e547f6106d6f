"""`rebuild-map`: asks all disks, decides by `map_rebuilding`, fences, and gives the cluster a map again (DESIGN R1).

Law: disks are compared with etcd as it is when all of them were asked: that may take minutes, and they come to know more
meanwhile; but who leads, and in which epoch, was the same before. Nothing is written while a set that needs an entry cannot get
one. What is written first does nothing by itself: fences stop who might still write, and names are taken before any set starts
that could give them to another. Entries and the new generation come last, by compare with what was read; so a run that ends in
the middle is simply run again.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Sequence

from lockstep.core.cluster_map import Keys
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.etcd import (
    OPERATIONS_MAX,
    Absent,
    Compare,
    Delete,
    EtcdClient,
    Operation,
    Put,
    ValueEquals,
    as_read,
)
from lockstep.wire.v1 import cluster_pb2 as pb
from lockstep.wire.v1 import store_pb2
from services.broker.core.map_rebuilding import (
    DiskFound,
    EtcdKnows,
    SetPlan,
    Verdict,
    directory_of,
    plan_set,
    with_all_seen,
)
from services.broker.forwarding import Forwarding
from services.broker.own_disk import SURVEY_SECONDS, OwnDisk
from services.broker.rebuild_codec import disk_found, encode_plans

_log = logging.getLogger("lockstep.rebuild_map")

LED_SECONDS = 10.0
"""How long the command waits to see the rebuilt sets led; a promotion takes a few tenths of a second."""
LEASE_MARGIN_SECONDS = 1.0
ROUNDS_MAX = 5
LOOKS_MAX = 3
"""While etcd changes under them: a survey takes a moment, unless a broker hangs."""
_POLL_SECONDS = 0.05

_Surveys = dict[BrokerId, store_pb2.SurveyResponse]
_Fences = Sequence[tuple[SetName, Epoch]]


class MapRebuild:
    """Lives as long as the process; part of the Cluster service. Keeps nothing between two calls."""

    def __init__(
        self,
        broker: BrokerId,
        process: Incarnation,
        etcd: EtcdClient,
        view: ClusterView,
        forwarding: Forwarding,
        own_disk: OwnDisk,
        lease_seconds: float,
        damage_found: Callable[[SetName, DiskId], str],
    ) -> None:
        """`damage_found`: what the replica here has found to be wrong with that disk of a set; "": nothing."""
        self._broker = broker
        self._process = process
        self._etcd = etcd
        self._view = view
        self._forwarding = forwarding
        self._own_disk = own_disk
        self._lease_seconds = lease_seconds
        self._damage_found = damage_found

    async def survey_disk(self, request: pb.SurveyDiskRequest) -> pb.SurveyDiskResponse:
        """What the disk of this broker holds. Raises `Rejected` IN_USE where a set is to be fenced that somebody leads."""
        fences = [(SetName(fence.resource_set), Epoch(fence.epoch)) for fence in request.fences]
        for set_name, epoch in fences:
            view = self._view.sets.get(set_name)
            if view is not None and view.lease_holder is not None:
                text = f"set {set_name!r} is led by {view.lease_holder}: it is not fenced for a rebuilt map"
                raise Rejected(ErrorCode.IN_USE, text, set_name=set_name, epoch=epoch)
        survey = await self._own_disk.survey(with_names=request.with_names, fences=fences)
        for one in survey.sets:
            one.found_by_broker = self._damage_found(SetName(one.set.resource_set), DiskId(one.set.disk))
        return pb.SurveyDiskResponse(broker=self._broker, survey=survey)

    async def rebuild_map(self, request: pb.RebuildMapRequest) -> pb.RebuildMapResponse:
        """Raises `Rejected` (ILLEGAL_STATE) when a set cannot be rebuilt, or something changed meanwhile: no entry is written."""
        without = frozenset(request.without)
        known, surveys, silent, plans = await self._look(without)
        if request.rebuild and any(plan.is_lead_doubtful for plan in plans):
            # A lease that came back with etcd, and that nobody renews, has ended then.
            await asyncio.sleep(self._lease_seconds + LEASE_MARGIN_SECONDS)
            known, surveys, silent, plans = await self._look(without)
        response = encode_plans(plans, silent)
        rebuilt = [plan for plan in plans if plan.verdict is Verdict.REBUILT]
        if not request.rebuild:
            return response
        stuck = [plan for plan in plans if plan.verdict is Verdict.STUCK]
        if stuck:
            problems = "; ".join(f"{plan.set_name}: {plan.problem}" for plan in stuck)
            raise Rejected(
                ErrorCode.ILLEGAL_STATE, problems, set_names=[plan.set_name for plan in stuck][:20]
            )
        if not rebuilt and not known.is_set_back:
            return response
        await self._fence(known.members, rebuilt, without)
        if rebuilt:
            # Who led before etcd lost its data, or was given up, may still answer, until the lease that it had ends (R6).
            await asyncio.sleep(self._lease_seconds + LEASE_MARGIN_SECONDS)
        response.names, disputed = await self._restore_names(plans, surveys)
        response.disputed_names.extend(disputed)
        is_told = any(disk.is_broker_ahead for plan in plans for disk in plan.disks)
        response.generation = await self._write(known, rebuilt, is_set_back=known.is_set_back or is_told)
        await self._until_led([plan.set_name for plan in rebuilt])
        for one in response.sets:
            view = self._view.sets.get(SetName(one.name))
            one.is_led = view is not None and view.lease_holder is not None
        return response

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _look(
        self, without: Collection[str]
    ) -> tuple[ClusterView, _Surveys, list[BrokerId], list[SetPlan]]:
        """(what etcd knows, what the disks say, brokers that could not be asked, what follows from that). Raises `Rejected`
        (ILLEGAL_STATE) where etcd does not stay as it is for as long as that takes.
        """
        known = await self._read_etcd()
        for _ in range(LOOKS_MAX):
            before = known
            surveys, silent = await self._survey_all(before.members, with_names=True, fences=())
            known = await self._read_etcd()
            if _goes_on_from(known, before):
                return known, surveys, silent, self._plan(known, surveys, without)
        raise Rejected(
            ErrorCode.ILLEGAL_STATE, "etcd has changed while the disks were looked at: run it again"
        )

    async def _read_etcd(self) -> ClusterView:
        """etcd as it is now; this process's own view may lag."""
        known = ClusterView(self._view.keys)
        known.read_all(*await self._etcd.get_prefix(known.keys.prefix))
        return known

    async def _survey_all(
        self, brokers: Collection[BrokerId], *, with_names: bool, fences: _Fences
    ) -> tuple[_Surveys, list[BrokerId]]:
        """(what the disks say, brokers that could not be asked)."""
        request = pb.SurveyDiskRequest(
            with_names=with_names,
            fences=[pb.SurveyDiskRequest.Fence(resource_set=name, epoch=epoch) for name, epoch in fences],
        )
        names = sorted(brokers)
        answers = await asyncio.gather(*(self._survey(broker, request) for broker in names))
        surveys = {
            broker: answer for broker, answer in zip(names, answers, strict=True) if answer is not None
        }
        return surveys, [broker for broker in names if broker not in surveys]

    async def _survey(
        self, broker: BrokerId, request: pb.SurveyDiskRequest
    ) -> store_pb2.SurveyResponse | None:
        try:
            if broker == self._broker:
                return (await self.survey_disk(request)).survey
            answer = await self._forwarding.to_broker(
                broker,
                "Cluster/SurveyDisk",
                request,
                pb.SurveyDiskResponse,
                is_read=True,
                seconds=SURVEY_SECONDS,
            )
        except LockstepError as error:
            _log.warning("broker=%s event=disk_not_surveyed %s", broker, error.message)
            return None
        # Another process may have the address by now.
        return answer.survey if answer.broker == broker else None

    def _plan(self, known: ClusterView, surveys: _Surveys, without: Collection[str]) -> list[SetPlan]:
        found: dict[SetName, list[DiskFound]] = {name: [] for name in known.sets}
        for broker, survey in surveys.items():
            for one in survey.sets:
                found.setdefault(SetName(one.set.resource_set), []).append(disk_found(broker, one))
        found = with_all_seen(found, known.lineage, known.etcd_revision, known.stamps)
        plans = []
        for set_name in sorted(found):
            etcd = _etcd_knows(known, set_name).in_sight_of(found)
            given_up = _given_up(without, set_name)
            plan = plan_set(set_name, etcd, found[set_name], surveys.keys(), given_up, self._process)
            if plan is not None:
                plans.append(plan)
        return plans

    # --- writing ------------------------------------------------------------------------------------------------------

    async def _fence(
        self, brokers: Collection[BrokerId], rebuilt: Sequence[SetPlan], without: Collection[str]
    ) -> None:
        """No primary of before can write to these disks any more; and none has since they were surveyed, also not to one that was
        not the longest then: it may be that now, with what was acknowledged meanwhile.
        """
        for plan in rebuilt:
            assert plan.entry is not None, "a set that is rebuilt has an entry"
            given_up = _given_up(without, plan.set_name)
            holders = [disk.broker for disk in plan.disks if not disk.trouble and disk.broker in brokers]
            surveys, _ = await self._survey_all(
                holders, with_names=False, fences=[(plan.set_name, plan.entry.epoch)]
            )
            now = {
                broker: disk_found(broker, one)
                for broker, survey in surveys.items()
                for one in survey.sets
                if one.set.resource_set == plan.set_name
            }
            for disk in plan.disks:
                if disk.trouble or disk.broker in given_up:
                    continue
                again = now.get(disk.broker)
                if again is None or _place(again) != _place(disk):
                    raise Rejected(
                        ErrorCode.ILLEGAL_STATE,
                        f"the disk of {disk.broker} has changed while it was looked at: run it again",
                        set_name=plan.set_name,
                        broker=disk.broker,
                    )

    async def _restore_names(self, plans: Sequence[SetPlan], surveys: _Surveys) -> tuple[int, list[str]]:
        """(names that the directory did not have, names that several sets have)."""
        names = {plan.set_name: _names_of(plan, surveys) for plan in plans}
        owners, disputed = directory_of(names)
        keys, restored = self._view.keys, 0
        for _ in range(ROUNDS_MAX):
            directory = (await self._read_etcd()).directory
            missing = [(name, owner) for name, owner in owners.items() if name not in directory]
            if not missing:
                disputed += [name for name, owner in owners.items() if directory[name] != owner]
                return restored, sorted({name for _, name in disputed})
            for start in range(0, len(missing), OPERATIONS_MAX):
                chunk = missing[start : start + OPERATIONS_MAX]
                absent: list[Compare] = [Absent(keys.directory(*name)) for name, _ in chunk]
                puts: list[Operation] = [Put(keys.directory(*name), owner.encode()) for name, owner in chunk]
                if (await self._etcd.transact(absent, puts)).succeeded:
                    restored += len(chunk)
        raise Rejected(ErrorCode.ILLEGAL_STATE, "the directory of names keeps changing: run it again")

    async def _write(self, known: ClusterView, rebuilt: Sequence[SetPlan], is_set_back: bool) -> str:
        """The new generation with the entries. `is_set_back`: so they were planned; if not, and a broker has come since that says
        it of etcd, they are planned anew.
        """
        keys, generation = known.keys, str(uuid.uuid4())
        before = known.generation.encode()
        # Once at least: that etcd was set back is over with a new generation, also where every set is led.
        for start in range(0, max(1, len(rebuilt)), OPERATIONS_MAX // 2):
            chunk = rebuilt[start : start + OPERATIONS_MAX // 2]
            compares: list[Compare] = [_is_generation(keys, before)]
            # A new lineage: in a new etcd, or one that was set back, revisions and stamps of before compare with nothing.
            operations: list[Operation] = [
                Put(keys.generation, generation.encode()),
                Delete(keys.lineage),
                Delete(keys.set_back),
            ]
            if start == 0 and not is_set_back:
                compares.append(Absent(keys.set_back))
            if start == 0:
                # Later, there may be stamps of the new generation.
                operations.append(Delete(keys.stamps))
            for plan in chunk:
                assert plan.entry is not None, "a set that is rebuilt has an entry"
                view = known.sets.get(plan.set_name)
                is_there = view is not None and view.set_map is not None
                revision = view.map_revision if view is not None and is_there else 0
                compares += [
                    *as_read(
                        keys.set_map(plan.set_name), view.map_bytes if view is not None else b"", revision
                    ),
                    Absent(keys.set_lease(plan.set_name)),
                ]
                operations.append(Put(keys.set_map(plan.set_name), plan.entry.encode()))
                _log.critical(
                    "set=%s event=map_rebuilt epoch=%d in_sync=%s given_up=%s generation=%s by an operator",
                    plan.set_name,
                    plan.entry.epoch,
                    ",".join(member.broker for member in plan.entry.in_sync),
                    ",".join(plan.unheard),
                    generation,
                )
            if not (await self._etcd.transact(compares, operations)).succeeded:
                raise Rejected(ErrorCode.ILLEGAL_STATE, "etcd has changed meanwhile: run it again")
            before = generation.encode()
        return generation

    async def _until_led(self, set_names: Sequence[SetName]) -> None:
        deadline = asyncio.get_running_loop().time() + LED_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            views = [self._view.sets.get(set_name) for set_name in set_names]
            if all(view is not None and view.lease_holder is not None for view in views):
                return
            await asyncio.sleep(_POLL_SECONDS)


def _given_up(without: Collection[str], set_name: SetName) -> set[BrokerId]:
    """Whose disks of a set an operator gives up: each is a broker's name, or, for one set alone, that of the set before it, as in
    `orders:B3`.
    """
    return {BrokerId(name.removeprefix(f"{set_name}:")) for name in without}


def _etcd_knows(known: ClusterView, set_name: SetName) -> EtcdKnows:
    """What etcd says of one set."""
    view = known.sets.get(set_name)
    return EtcdKnows(
        known.set_map(set_name),
        view.map_revision if view is not None else 0,
        view is not None and view.lease_holder is not None,
        known.lineage,
        known.etcd_revision,
        known.stamps,
        known.is_set_back,
    )


def _goes_on_from(known: ClusterView, before: ClusterView) -> bool:
    """Whether what disks have said in between may be compared with the later of the two; all that are known now were asked."""
    set_names = known.sets.keys() | before.sets.keys()
    return known.members.keys() <= before.members.keys() and all(
        _etcd_knows(known, set_name).goes_on_from(_etcd_knows(before, set_name)) for set_name in set_names
    )


def _is_generation(keys: Keys, generation: bytes) -> Compare:
    return ValueEquals(keys.generation, generation) if generation else Absent(keys.generation)


def _place(disk: DiskFound) -> tuple[DiskId, Epoch, LogIndex]:
    return disk.disk, disk.last_epoch, disk.log_end


def _names_of(plan: SetPlan, surveys: _Surveys) -> list[tuple[str, str]]:
    """(kind, name) of what the best disk of the set has."""
    named = plan.entry.in_sync if plan.entry is not None else ()
    disks = [disk for disk in plan.disks if not disk.trouble]
    disks = [disk for disk in disks if disk.disk in {member.disk for member in named}] or disks
    if not disks:
        return []
    best = max(disks, key=lambda disk: (disk.last_epoch, disk.log_end))
    (one,) = (one for one in surveys[best.broker].sets if one.set.resource_set == plan.set_name)
    return [("queue", name) for name in one.queues] + [("exchange", name) for name in one.exchanges]
