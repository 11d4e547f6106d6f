"""Cluster view: what etcd says of one cluster, as last read or watched (DESIGN R1).

Law: it only moves forward. What is older than what it knows of the same set is dropped, and when the watch is lost everything is
read again, so whoever listens hears the newest of everything, though not every step on the way.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.inputs import AnyInput, CandidatesSeen, LeaseKeySeen, MapSeen, PresencesSeen
from lockstep.core.lineage import Lineage
from lockstep.core.stamps import NO_STAMPS, Stamp, Stamps
from lockstep.runtime.etcd import DeleteEvent, Entry, Event, PutEvent

_log = logging.getLogger("lockstep.cluster_view")


@dataclass(slots=True)
class SetView:
    """What etcd says of one resource set."""

    set_map: SetMap | None = None
    map_bytes: bytes = b""
    map_revision: int = 0
    lease_holder: Incarnation | None = None
    presences: dict[BrokerId, tuple[Incarnation, int]] = field(default_factory=dict)
    """Incarnation and mod_revision of each broker's presence key."""
    as_of: int = 0
    """Revision of the last full read of the set: events up to it are contained."""
    event_revision: int = 0
    """Of the last event since then: an older read is dropped."""


@dataclass(frozen=True, slots=True)
class MemberEntry:
    """A broker as it registered itself."""

    broker: BrokerId
    address: str
    """host:port for clients and other brokers."""
    incarnation: Incarnation

    def encode(self) -> bytes:
        return json.dumps({"address": self.address, "incarnation": self.incarnation}, sort_keys=True).encode()


class ClusterView:
    """Lives as long as the process; told by `EtcdWatcher` and by whoever reads a set again. It never calls anybody."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.generation = ""
        self._lineage_value = b""
        self.silent_from_ms = 0
        """Since when nothing is heard of etcd, by CLOCK_BOOTTIME: all this may be as old; 0: each change is heard."""
        self.etcd_revision = 0
        """etcd's own, the highest that was seen in this lineage."""
        self.stamps = NO_STAMPS
        self.stamps_value = b""
        """As it was read."""
        self.stamps_revision = 0
        """mod_revision of their key; 0: it is absent."""
        self.witnesses: dict[BrokerId, str] = {}
        """Tokens of witnesses that hold their keys."""
        self.stamp: Stamp | None = None
        """The newest that was seen in this lineage, also where etcd lacks it now."""
        self.set_back_by = ""
        """What etcd says of its having been set back; "": it was not."""
        self.members: dict[BrokerId, MemberEntry] = {}
        self.running: dict[BrokerId, Incarnation] = {}
        """Processes that hold their running key, whatever sets they serve."""
        self.sets: dict[SetName, SetView] = {}
        self.directory: dict[tuple[str, str], SetName] = {}
        """(queue or exchange, name) -> set."""
        self._candidates: dict[SetName, list[str]] = {}
        """As the sets heard last that they are others."""

    @property
    def lineage(self) -> Lineage:
        """The generation with those before it whose disks are of the same history."""
        try:
            return Lineage.read(self.generation, self._lineage_value)
        except ValueError as error:
            _log.error("event=bad_lineage %s", error)
            return Lineage(self.generation)

    @property
    def is_set_back(self) -> bool:
        return bool(self.set_back_by)

    @property
    def is_stamp_lost(self) -> bool:
        """Whether etcd lacks a stamp that this process has seen: it was set back meanwhile."""
        return self.stamps.lacks(self.stamp)

    @property
    def silent_witnesses(self) -> list[BrokerId]:
        """Those that have not answered the last roll call and do not live to do it, sorted: they have to come back."""
        return sorted(
            one.broker
            for one in self.stamps.witnesses
            if not one.has_answered and self.witnesses.get(one.broker) != one.token
        )

    def stamps_put(self, value: bytes, revision: int) -> None:
        """This process has put these stamps there."""
        if revision > self.stamps_revision:
            self._put_stamps(value, revision)
            self._note_stamp()

    def saw(self, revision: int) -> bool:
        """An answer of etcd had this revision; whether it is news."""
        is_news = revision > self.etcd_revision
        self.etcd_revision = max(revision, self.etcd_revision)
        return is_news

    def set_map(self, set_name: SetName) -> SetMap | None:
        view = self.sets.get(set_name)
        return view.set_map if view is not None else None

    def address(self, broker: BrokerId) -> str | None:
        """Where a broker said that it listens."""
        member = self.members.get(broker)
        return member.address if member is not None else None

    def candidates(self, set_name: SetName) -> list[str]:
        """Addresses of the brokers that may serve a set: the primary first, then in order of preference."""
        set_map = self.set_map(set_name)
        if set_map is None:
            return []
        others = [broker for broker in set_map.brokers if broker != set_map.primary]
        brokers = [set_map.primary, *others] if set_map.primary else others
        return [address for broker in brokers if (address := self.address(broker))]

    def running_key(self, broker: BrokerId) -> str:
        """Held under a process's lease: it runs, whatever it serves; for `status`."""
        return f"{self.keys.prefix}running/{broker}"

    def is_in_sync(self, broker: BrokerId) -> bool:
        """Whether it is in sync in every set that names it, as etcd says: with its memory, not only with its disk (R12)."""
        return all(
            broker in self.whole_members(set_name)
            for set_name, view in self.sets.items()
            if view.set_map is not None and broker in view.set_map.brokers
        )

    def whole_members(self, set_name: SetName) -> list[BrokerId]:
        """Brokers that run and are in sync with the memory that the map names."""
        view = self.sets.get(set_name)
        if view is None or view.set_map is None:
            return []
        found = []
        for member in view.set_map.in_sync:
            presence = view.presences.get(member.broker)
            if presence is not None and presence[0] == member.incarnation:
                found.append(member.broker)
        return found

    # What is read

    def names_in(self, entries: Iterable[Entry], names: dict[tuple[str, str], SetName]) -> list[Entry]:
        """Adds those that are of the directory to `names`; answers the others. For who reads very many, and does so in turns."""
        others: list[Entry] = []
        for entry in entries:
            if (name := self._directory_name(entry.key)) is not None:
                names[name] = SetName(entry.value.decode(errors="replace"))
            else:
                others.append(entry)
        return others

    def read_all(
        self,
        entries: Iterable[Entry],
        revision: int,
        names: dict[tuple[str, str], SetName] | None = None,
        stamps_before: int | None = None,
        seen_before: int = 0,
    ) -> list[AnyInput]:
        """Everything under the cluster's prefix, read at one revision, but for `names`, which were found in it before; returns
        what all sets should hear. `stamps_before`: `stamps_revision` when it was asked for; stamps that this process has put
        since then, behind `revision`, stay. None: just now. `seen_before`: `etcd_revision` when it was asked for; an etcd that
        answers with less was set back, and what it had of the sets since is not there any more.
        """
        by_set: dict[SetName, list[Entry]] = {name: [] for name in self.sets}
        if revision < seen_before:
            self.sets = {}
        self.members, self.running, self.directory = {}, {}, names or {}
        before, stamps, stamps_revision = self.lineage, self.stamps_value, self.stamps_revision
        is_put_meanwhile = stamps_before is not None and stamps_before != stamps_revision
        self.generation, self._lineage_value, self.set_back_by = "", b"", ""
        self._no_stamps()
        self.witnesses = {}
        for entry in entries:
            set_name = self._set_of(entry.key)
            if set_name is None:
                self._put_other(entry)
            else:
                by_set.setdefault(set_name, []).append(entry)
        if not self._goes_on_from(before.generation):
            self.etcd_revision, self.stamp = 0, None
        elif is_put_meanwhile and stamps_revision > revision:
            # What it lacks was not there yet: etcd was not set back.
            self._put_stamps(stamps, stamps_revision)
        self._note_stamp()
        self.saw(revision)
        inputs: list[AnyInput] = []
        for set_name in sorted(by_set):
            inputs += self.read_set(set_name, by_set[set_name], revision)
        return inputs

    def read_set(self, set_name: SetName, entries: Iterable[Entry], revision: int) -> list[AnyInput]:
        """All keys of one set, read at one revision; returns what the set should hear."""
        known = self.sets.get(set_name)
        if known is not None and revision < max(known.as_of, known.event_revision):
            return []
        self.saw(revision)
        view = SetView(as_of=revision)
        # A deleted entry was deleted by some revision up to this one.
        view.map_revision = revision
        self.sets[set_name] = view
        for entry in entries:
            self._put_in_set(set_name, view, entry)
        return self.everything_of(set_name) + self._new_candidates([set_name])

    def map_seen(self, set_name: SetName) -> MapSeen:
        """The set's entry, with what is known of etcd by now."""
        return self._map_seen(set_name, self.sets.get(set_name, SetView()))

    def everything_of(self, set_name: SetName) -> list[AnyInput]:
        """What a core of this set should hear to know what is known."""
        view = self.sets.get(set_name, SetView())
        return [
            self._map_seen(set_name, view),
            LeaseKeySeen(set_name, view.lease_holder),
            self._presences_seen(set_name, view),
        ]

    # What is watched

    def apply(self, events: Iterable[Event]) -> list[AnyInput]:
        """Events in order; returns what the sets that they concern should hear."""
        maps: dict[SetName, None] = {}
        leases: dict[SetName, None] = {}
        presences: dict[SetName, None] = {}
        is_member_new = False
        for event in events:
            key = event.entry.key if isinstance(event, PutEvent) else event.key
            set_name = self._set_of(key)
            if set_name is None:
                is_member_new = is_member_new or key.startswith(self.keys.members)
                before = self.generation
                if isinstance(event, PutEvent):
                    self._put_other(event.entry)
                else:
                    self._delete_other(event.key)
                if key in (self.keys.generation, self.keys.lineage, self.keys.set_back):
                    if not self._goes_on_from(before):
                        self.etcd_revision, self.stamp = 0, None
                    maps.update(dict.fromkeys(sorted(self.sets)))
                continue
            view = self.sets.setdefault(set_name, SetView())
            revision = event.entry.mod_revision if isinstance(event, PutEvent) else event.mod_revision
            self.saw(revision)
            if revision <= view.as_of:
                continue
            view.event_revision = revision
            if isinstance(event, PutEvent):
                self._put_in_set(set_name, view, event.entry)
            else:
                self._delete_in_set(set_name, view, event)
            if key == self.keys.set_map(set_name):
                maps[set_name] = None
            elif key == self.keys.set_lease(set_name):
                leases[set_name] = None
            else:
                presences[set_name] = None
        self._note_stamp()
        inputs: list[AnyInput] = [self._map_seen(name, self.sets[name]) for name in maps]
        inputs += [LeaseKeySeen(name, self.sets[name].lease_holder) for name in leases]
        inputs += [self._presences_seen(name, self.sets[name]) for name in presences]
        return inputs + self._new_candidates(sorted(self.sets) if is_member_new else maps)

    # Inside

    def _new_candidates(self, set_names: Iterable[SetName]) -> list[AnyInput]:
        """What those of these sets should hear whose candidates have changed."""
        found: list[AnyInput] = []
        for set_name in set_names:
            candidates = self.candidates(set_name)
            if candidates != self._candidates.get(set_name, []):
                self._candidates[set_name] = candidates
                found.append(CandidatesSeen(set_name))
        return found

    def _map_seen(self, set_name: SetName, view: SetView) -> MapSeen:
        return MapSeen(
            set_name,
            view.set_map,
            view.map_revision,
            view.map_bytes,
            self.generation,
            self.lineage.earlier,
            self.etcd_revision,
            self.is_set_back,
            self.stamps,
        )

    def _goes_on_from(self, generation: str) -> bool:
        """Whether revisions of before compare with those of now."""
        return not generation or generation in self.lineage

    def _put_stamps(self, value: bytes, revision: int) -> None:
        try:
            self.stamps, self.stamps_value, self.stamps_revision = Stamps.decode(value), value, revision
        except ValueError as error:
            _log.error("event=bad_stamps %s", error)

    def _no_stamps(self) -> None:
        self.stamps, self.stamps_value, self.stamps_revision = NO_STAMPS, b"", 0

    def _note_stamp(self) -> None:
        if not self.is_stamp_lost:
            self.stamp = self.stamps.newest or self.stamp

    @staticmethod
    def _presences_seen(set_name: SetName, view: SetView) -> PresencesSeen:
        presences = tuple(
            (broker, incarnation, revision)
            for broker, (incarnation, revision) in sorted(view.presences.items())
        )
        return PresencesSeen(set_name, presences)

    def _set_of(self, key: str) -> SetName | None:
        if not key.startswith(self.keys.sets):
            return None
        return SetName(key[len(self.keys.sets) :].partition("/")[0])

    def _put_in_set(self, set_name: SetName, view: SetView, entry: Entry) -> None:
        presences = self.keys.presences(set_name)
        if entry.key == self.keys.set_map(set_name):
            try:
                view.set_map = SetMap.decode(entry.value)
            except ValueError as error:
                _log.error("set=%s event=bad_map_entry %s", set_name, error)
                return
            view.map_bytes, view.map_revision = entry.value, entry.mod_revision
        elif entry.key == self.keys.set_lease(set_name):
            view.lease_holder = Incarnation(entry.value.decode(errors="replace"))
        elif entry.key.startswith(presences):
            broker = BrokerId(entry.key[len(presences) :])
            view.presences[broker] = (Incarnation(entry.value.decode(errors="replace")), entry.mod_revision)

    def _delete_in_set(self, set_name: SetName, view: SetView, event: DeleteEvent) -> None:
        presences = self.keys.presences(set_name)
        if event.key == self.keys.set_map(set_name):
            view.set_map, view.map_bytes, view.map_revision = None, b"", event.mod_revision
        elif event.key == self.keys.set_lease(set_name):
            view.lease_holder = None
        elif event.key.startswith(presences):
            view.presences.pop(BrokerId(event.key[len(presences) :]), None)

    def _put_other(self, entry: Entry) -> None:
        keys = self.keys
        if entry.key == keys.generation:
            self.generation = entry.value.decode(errors="replace")
        elif entry.key == keys.lineage:
            self._lineage_value = entry.value
        elif entry.key == keys.set_back:
            self.set_back_by = entry.value.decode(errors="replace") or "?"
        elif entry.key == keys.stamps:
            if entry.mod_revision > self.stamps_revision:
                self._put_stamps(entry.value, entry.mod_revision)
        elif entry.key.startswith(keys.witnesses):
            self.witnesses[BrokerId(entry.key[len(keys.witnesses) :])] = entry.value.decode(errors="replace")
        elif entry.key.startswith(keys.members):
            broker = BrokerId(entry.key[len(keys.members) :])
            try:
                fields = json.loads(entry.value)
                member = MemberEntry(broker, str(fields["address"]), Incarnation(fields["incarnation"]))
            except (ValueError, KeyError, TypeError):
                _log.error("broker=%s event=bad_member_entry", broker)
                return
            self.members[broker] = member
        elif entry.key.startswith(running := self.running_key(BrokerId(""))):
            broker = BrokerId(entry.key[len(running) :])
            self.running[broker] = Incarnation(entry.value.decode(errors="replace"))
        elif (name := self._directory_name(entry.key)) is not None:
            self.directory[name] = SetName(entry.value.decode(errors="replace"))

    def _delete_other(self, key: str) -> None:
        keys = self.keys
        if key == keys.generation:
            self.generation = ""
        elif key == keys.lineage:
            self._lineage_value = b""
        elif key == keys.set_back:
            self.set_back_by = ""
        elif key == keys.stamps:
            self._no_stamps()
        elif key.startswith(keys.witnesses):
            self.witnesses.pop(BrokerId(key[len(keys.witnesses) :]), None)
        elif key.startswith(keys.members):
            self.members.pop(BrokerId(key[len(keys.members) :]), None)
        elif key.startswith(running := self.running_key(BrokerId(""))):
            self.running.pop(BrokerId(key[len(running) :]), None)
        elif (name := self._directory_name(key)) is not None:
            self.directory.pop(name, None)

    def _directory_name(self, key: str) -> tuple[str, str] | None:
        for kind in ("queue", "exchange"):
            prefix = self.keys.directory(kind, "")
            if key.startswith(prefix):
                return kind, key[len(prefix) :]
        return None
