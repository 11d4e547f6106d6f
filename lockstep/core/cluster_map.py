"""The cluster map: one entry per resource set in etcd (DESIGN R1), and the words for its keys.

Law: an entry is changed only by compare on its mod_revision and its value (an etcd that was set back gives its revisions once
more), one change at a time; `change` and `changed_by` let a process recognise a swap as its own when the answer was lost. It is
JSON, so that an operator can read it with any etcd client.
"""

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

from lockstep.core.ids import EPOCH_MAX, BrokerId, DiskId, Epoch, Incarnation, SetName


class Member(NamedTuple):
    """A replica as the map names it: broker, the disk that holds its log, the process that holds its memory."""

    broker: BrokerId
    disk: DiskId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class SetMap:
    """One resource set's entry."""

    set_name: SetName
    epoch: Epoch
    """0: created and never served; the first of `brokers` may promote itself with an empty disk."""
    primary: BrokerId
    primary_incarnation: Incarnation
    in_sync: tuple[Member, ...]
    """The primary among them."""
    learners: tuple[Member, ...]
    brokers: tuple[BrokerId, ...]
    """Configured replicas in order of preference; the first becomes the first primary."""
    min_in_sync: int
    change: int
    """Grows with every swap of `changed_by`."""
    changed_by: Incarnation
    """Process that wrote this version."""
    supersedes: tuple[str, ...] = ()
    """Generations that the disks remembered from which `rebuild-map` made this entry: one that it names may still do so."""
    is_forked: bool = False
    """It was made where an epoch may have begun twice: beside another entry, of an etcd that may have been set back. Of the log
    of a disk that it does not name, and that remembers an earlier generation, nothing is known to be of this history."""

    def member(self, broker: BrokerId) -> Member | None:
        """The in-sync entry of a broker, or None."""
        return next((member for member in self.in_sync if member.broker == broker), None)

    def names_disk(self, disk: DiskId) -> bool:
        """Whether an in-sync entry names this disk."""
        return any(member.disk == disk for member in self.in_sync)

    def is_rival_of(self, other: "SetMap") -> bool:
        """Whether the two are of an epoch that has begun twice: etcd was set back between."""
        return self.epoch == other.epoch and self.primary_incarnation != other.primary_incarnation

    def encode(self) -> bytes:
        members = {
            role: [member._asdict() for member in getattr(self, role)] for role in ("in_sync", "learners")
        }
        return json.dumps(asdict(self) | members, sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> "SetMap":
        """Raises `ValueError` for anything that is no map entry."""
        try:
            fields = json.loads(data)
            members = {
                name: tuple(
                    Member(BrokerId(m["broker"]), DiskId(m["disk"]), Incarnation(m["incarnation"]))
                    for m in fields[name]
                )
                for name in ("in_sync", "learners")
            }
            found = SetMap(
                set_name=SetName(fields["set_name"]),
                epoch=Epoch(int(fields["epoch"])),
                primary=BrokerId(fields["primary"]),
                primary_incarnation=Incarnation(fields["primary_incarnation"]),
                in_sync=members["in_sync"],
                learners=members["learners"],
                brokers=tuple(BrokerId(broker) for broker in fields["brokers"]),
                min_in_sync=int(fields["min_in_sync"]),
                change=int(fields["change"]),
                changed_by=Incarnation(fields["changed_by"]),
                supersedes=tuple(str(generation) for generation in fields.get("supersedes", ())),
                is_forked=bool(fields.get("is_forked", False)),
            )
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a cluster map entry: {error}") from error
        members_named = [*found.in_sync, *found.learners]
        names = [found.set_name, found.primary, found.primary_incarnation, found.changed_by, *found.brokers]
        if not all(isinstance(name, str) for named in (names, *members_named) for name in named):
            raise ValueError("not a cluster map entry: a name that is no text")
        if not 0 <= found.epoch <= EPOCH_MAX:
            raise ValueError(f"not a cluster map entry: no set comes to epoch {found.epoch}")
        return found


def default_min_in_sync(brokers: int) -> int:
    """R3: 1 with one or two brokers, 2 from three on."""
    return 1 if brokers <= 2 else 2


@dataclass(frozen=True, slots=True)
class Keys:
    """etcd keys of one cluster; `cluster` is a name without slashes."""

    cluster: str

    @property
    def prefix(self) -> str:
        return f"/lockstep/{self.cluster}/"

    @property
    def generation(self) -> str:
        """Cluster generation (R1): a UUID, changed by rebuild-map and accepted data loss."""
        return f"{self.prefix}generation"

    @property
    def lineage(self) -> str:
        """Which generations were before (`Lineage`); absent: none that counts."""
        return f"{self.prefix}lineage"

    @property
    def set_back(self) -> str:
        """There while etcd is known to lack what it had: a disk has seen a higher revision. Who and what, in words; `rebuild-map`
        deletes it.
        """
        return f"{self.prefix}set-back"

    @property
    def stamps(self) -> str:
        """What disks remember of this etcd, and whose disks were compared (`Stamps`); `rebuild-map` deletes it."""
        return f"{self.prefix}stamps"

    @property
    def witnesses(self) -> str:
        return f"{self.prefix}witnesses/"

    def witness(self, broker: BrokerId) -> str:
        """Under its process's lease; value: the token of its comparison. While it is there, the witness lives."""
        return f"{self.witnesses}{broker}"

    @property
    def sets(self) -> str:
        return f"{self.prefix}sets/"

    def set_map(self, set_name: SetName) -> str:
        return f"{self.sets}{set_name}/map"

    def set_lease(self, set_name: SetName) -> str:
        """Held under the primary's process lease; its absence allows a promotion (R5, R6)."""
        return f"{self.sets}{set_name}/lease"

    @property
    def members(self) -> str:
        return f"{self.prefix}members/"

    def member(self, broker: BrokerId) -> str:
        """Addresses of a broker; stays when it stops."""
        return f"{self.members}{broker}"

    def presences(self, set_name: SetName) -> str:
        return f"{self.sets}{set_name}/presence/"

    def presence(self, set_name: SetName, broker: BrokerId) -> str:
        """Value: the incarnation of the set's replica on that broker, under its process lease (R1, R5).

        One key per set and not per process: a process that lost its memory of one set only (a deposed primary) stays a good
        member of its other sets.
        """
        return f"{self.presences(set_name)}{broker}"

    def directory(self, kind: str, name: str) -> str:
        """`kind` is queue or exchange; value: the resource set's name."""
        return f"{self.prefix}directory/{kind}/{name}"
