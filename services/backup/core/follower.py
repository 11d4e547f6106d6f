"""Follower: a replica that is a backup and nothing else, for a process that has only this role (`python -m services.backup`).

Law: it follows whoever the map names as primary, in the map's epoch, and never stands for promotion. So it puts no presence
key: one that says "a member with its memory is here" would keep those away who can be promoted (DESIGN R5).
"""

from lockstep.core.clock import Now
from lockstep.core.cluster_map import SetMap
from lockstep.core.effects import AnyEffect, MarkSetBack, Note, TellStore
from lockstep.core.etcd_comparison import EtcdComparison, mark_set_back
from lockstep.core.ids import BrokerId, Incarnation, SetName
from lockstep.core.inputs import AnyInput, LeaseKeySeen, MapSeen, StoreConnected, StoreLost
from lockstep.core.lineage import Lineage
from lockstep.core.store_protocol import RememberMap, SetOpened
from services.backup.core.backup import BackupCore
from services.backup.core.backup_memory import BackupState, FoundDamage, LogStanding
from services.backup.core.faults import Faults
from services.backup.core.settings import BackupSettings

MARKED_EVERY_MS = 1_000


class Follower:
    """Lives as long as its process serves the set; driven by the driver."""

    def __init__(
        self, set_name: SetName, broker: BrokerId, incarnation: Incarnation, settings: BackupSettings
    ) -> None:
        self.set_name = set_name
        self.broker = broker
        self._process = incarnation
        self._memory_number = 0
        self.faults = Faults()
        self.backup: BackupCore | None = None
        self._settings = settings
        self._seen: MapSeen | None = None
        self._lease_holder: Incarnation | None = None
        self._found_damage: FoundDamage | None = None
        """The own disk lost what was acknowledged (R10), and may not know: it is damaged for as long as this process lives."""
        self._remembered = (0, 0, "")
        """(the entry's revision, etcd's own, stamp) that the store was told."""
        self._judged: SetOpened | None = None
        self._is_settled = False
        """A primary has taken the disk since it was opened."""
        self._lost: MarkSetBack | None = None
        """What the disk remembers and etcd lacks, since it was opened; until that is back, or the map was rebuilt."""
        self._marked_ms = -MARKED_EVERY_MS
        self._is_store_connected = False

    @property
    def incarnation(self) -> Incarnation:
        """Names this replica's present memory (R12)."""
        return Incarnation(f"{self._process}.{self._memory_number}")

    def handle(self, given: AnyInput, now: Now, more_follow: bool = False) -> list[AnyEffect]:
        """Take one input; returns effects to perform in order. What a backup does gathers in its outboxes: nothing waits."""
        effects: list[AnyEffect] = []
        match given:
            case MapSeen():
                if self._is_news(given):
                    self._seen = given
            case LeaseKeySeen():
                self._lease_holder = given.holder
            case StoreConnected():
                self._is_store_connected = True
            case StoreLost():
                self._is_store_connected = False
                self._remembered = (0, 0, "")
            case _:
                pass
        if self.backup is not None:
            effects += self.backup.handle(given, now)
            self._found_damage = self.backup.found_damage
        if self._seen is not None and not self.faults.is_resting(now):
            effects += self._follow(self._seen.set_map, now)
            effects += self._judge(self._seen, now)
            effects += self._remember(self._seen)
        return effects

    def end_by_fault(self, error: Exception, now: Now) -> list[AnyEffect]:
        """As a replica's."""
        backup, self.backup = self.backup, None
        opened = backup.opened if backup is not None else None
        found = self.faults.found(error, opened.disk if opened is not None else None, now)
        self._found_damage = found or self._found_damage
        self._memory_number += 1
        return backup.end_by_fault() if backup is not None else []

    def _follow(self, set_map: SetMap | None, now: Now) -> list[AnyEffect]:
        """Have a backup core for the epoch that the map names; give a damaged disk up once nobody counts on it (R10)."""
        backup = self.backup
        if set_map is None:
            self.backup = None
            return [*backup.end(), *backup.drop_memory()] if backup is not None else []
        effects: list[AnyEffect] = []
        if backup is not None and backup.has_lost_memory:
            # The map may still name the incarnation whose memory is gone: nobody may take this replica for it.
            effects += [*backup.end(), *backup.drop_memory()]
            backup = None
            self._memory_number += 1
        if backup is not None and backup.epoch != set_map.epoch and backup.state is BackupState.LOADING:
            # It serves the next epoch as well, and a big disk is not to be begun anew for each.
            return effects
        if backup is not None and backup.epoch == set_map.epoch:
            opened, is_free = backup.opened, backup.may_set_aside(set_map, self._lease_holder)
            if opened is None or not is_free or self._standing(opened) is LogStanding.AHEAD:
                return []
            self._remembered = (0, 0, "")
            return backup.set_aside()
        copy, is_whole, stream = None, False, self._memory_number * 1_000_000
        if backup is not None:
            effects += backup.end()
            copy, is_whole, stream = backup.copy, backup.can_stand_unrestarted, backup.stream
        primary = set_map.primary if set_map.epoch and set_map.primary != self.broker else None
        self.backup = BackupCore(
            self.set_name,
            self.broker,
            self.incarnation,
            set_map.epoch,
            primary,
            copy,
            is_whole,
            stream,
            self._settings,
            self._standing,
            self._found_damage,
        )
        effects.append(Note(self.set_name, "follows", f"{primary} in epoch {set_map.epoch}"))
        if self._is_store_connected:
            effects += self.backup.begin(now)
        return effects

    def _is_news(self, given: MapSeen) -> bool:
        """After `rebuild-map` revisions may begin anew."""
        seen = self._seen
        return seen is None or given.mod_revision >= seen.mod_revision or given.generation != seen.generation

    def _judge(self, seen: MapSeen, now: Now) -> list[AnyEffect]:
        """A disk that knows more than etcd has etcd say so, as a broker's does; and it keeps what it knows meanwhile."""
        backup, opened = self.backup, self.backup.opened if self.backup is not None else None
        if backup is None or opened is None or (self._is_settled and opened is self._judged):
            return []
        self._compare(opened, seen)
        if backup.state is BackupState.FOLLOWING:
            self._is_settled, self._lost = True, None
        if self._lost is None or seen.is_set_back or now.boottime_ms - self._marked_ms < MARKED_EVERY_MS:
            return []
        self._marked_ms = now.boottime_ms
        return [self._lost]

    def _compare(self, opened: SetOpened, seen: MapSeen) -> None:
        if opened is not self._judged:
            self._judged, self._is_settled = opened, False
        lacking = _etcd(seen).lacking(opened, seen.set_map)
        mark = mark_set_back(self.set_name, opened.disk, lacking, seen.generation)
        self._lost = mark if lacking.is_anything and not self._is_settled else None

    def _standing(self, opened: SetOpened) -> LogStanding:
        """As a broker's."""
        seen = self._seen
        if seen is None:
            return LogStanding.OURS
        self._compare(opened, seen)
        if self._lost is not None:
            return LogStanding.AHEAD
        is_left_out = not self._is_settled and _etcd(seen).is_left_out(opened, seen.set_map)
        return LogStanding.LEFT_OUT if is_left_out else LogStanding.OURS

    def _remember(self, seen: MapSeen) -> list[AnyEffect]:
        """The store keeps the last map (R1)."""
        newest = seen.stamps.newest
        stamp = newest.encode() if newest is not None else ""
        backup, state = self.backup, (seen.mod_revision, seen.etcd_revision, stamp)
        if backup is None or backup.opened is None or self._remembered == state:
            return []
        if self._standing(backup.opened) is not LogStanding.OURS:
            return []
        self._remembered = state
        remember = RememberMap(
            self.set_name,
            backup.epoch,
            self.incarnation,
            seen.map_bytes,
            seen.mod_revision,
            seen.generation,
            seen.etcd_revision,
            stamp,
        )
        return [TellStore(self.set_name, remember)]


def _etcd(seen: MapSeen) -> EtcdComparison:
    lineage = Lineage(seen.generation, seen.earlier_generations)
    return EtcdComparison(lineage, seen.mod_revision, seen.etcd_revision, seen.stamps)
