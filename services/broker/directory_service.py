"""Directory: which resource set has a name, and who may serve it (DESIGN 2: names are unique in the cluster, etcd decides).

Law: "nobody has it" is only said after etcd was asked; the view may lag behind a claim made through another broker.
"""

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SetName
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import EtcdClient
from lockstep.wire.v1 import cluster_pb2 as pb
from services.broker.core.replica import Replica
from services.broker.name_lookups import NameLookups
from services.broker.own_disk import OwnDisk

NAME_BYTES_MAX = 255
"""AMQP's short string, as the primary checks it too."""

_KINDS = {pb.LocateRequest.KIND_QUEUE: "queue", pb.LocateRequest.KIND_EXCHANGE: "exchange"}


class Directory:
    """Lives as long as the process; part of the Cluster service."""

    def __init__(
        self, etcd: EtcdClient, lookups: NameLookups, view: ClusterView, driver: Driver, own_disk: OwnDisk
    ) -> None:
        self._etcd = etcd
        self._lookups = lookups
        self._view = view
        self._driver = driver
        self._own_disk = own_disk

    async def locate(self, request: pb.LocateRequest) -> pb.LocateResponse:
        """Raises `Rejected` NOT_FOUND, UNKNOWN_SET, UNAVAILABLE, or INVALID_ARGUMENT."""
        if request.kind == pb.LocateRequest.KIND_SET:
            set_name = await self._set(request.name)
        else:
            kind = self._kind(request.kind, request.name)
            owner = await self.owner(kind, request.name)
            if owner is None:
                self._own_disk.refuse_lost()
                raise Rejected(ErrorCode.NOT_FOUND, f"no {kind} {request.name!r}", **{kind: request.name})
            set_name = owner
        epoch, commit_index, candidates = self._place(set_name)
        return pb.LocateResponse(
            resource_set=set_name, epoch=epoch, commit_index=commit_index, candidates=candidates
        )

    # Inside

    def _place(self, set_name: SetName) -> tuple[int, int, list[str]]:
        """(epoch, commit index here, candidates)."""
        set_map = self._view.set_map(set_name)
        replica = self._driver.core(set_name)
        commit_index = replica.commit_index if isinstance(replica, Replica) else 0
        return set_map.epoch if set_map is not None else 0, commit_index, self._view.candidates(set_name)

    async def _set(self, name: str) -> SetName:
        """As `set_or_only`. Raises `Rejected` UNAVAILABLE, too: for one that this broker has not heard of yet."""
        try:
            return self.set_or_only(name)
        except Rejected:
            is_name = name.isprintable() and "/" not in name and len(name.encode()) <= NAME_BYTES_MAX
            if not name or not is_name or not await self._is_in_etcd(SetName(name)):
                raise
        text = f"this broker has not heard of resource set {name!r} yet, which etcd has"
        raise Rejected(ErrorCode.UNAVAILABLE, text, set_name=name)

    async def _is_in_etcd(self, name: SetName) -> bool:
        return await self._lookups.value(self._view.keys.set_map(name)) is not None

    def set_or_only(self, name: str) -> SetName:
        """The set of that name; "": the only one there is. Raises `Rejected` UNKNOWN_SET."""
        if name:
            if self._view.set_map(SetName(name)) is None:
                self._own_disk.refuse_lost(SetName(name))
                raise Rejected(ErrorCode.UNKNOWN_SET, f"no resource set {name[:80]!r}", set_name=name[:80])
            return SetName(name)
        names = [name for name, view in sorted(self._view.sets.items()) if view.set_map is not None]
        if len(names) != 1:
            self._own_disk.refuse_lost()
            raise Rejected(
                ErrorCode.UNKNOWN_SET, f"there are {len(names)} resource sets: name one", set_names=names[:20]
            )
        return names[0]

    @staticmethod
    def _kind(kind: "pb.LocateRequest.Kind.ValueType", name: str) -> str:
        word = _KINDS.get(kind)
        if word is None:
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT, "a name in the directory is a queue's or an exchange's"
            )
        if not name or len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT, f"a {word} name has 1 to {NAME_BYTES_MAX} bytes of printable text"
            )
        return word

    async def owner(self, kind: str, name: str) -> SetName | None:
        """The set that has the name of a queue or exchange (`kind`); None if nobody has."""
        known = self._view.directory.get((kind, name))
        if known is not None:
            return known
        value = await self._lookups.value(self._view.keys.directory(kind, name))
        return SetName(value.decode(errors="replace")) if value is not None else None
