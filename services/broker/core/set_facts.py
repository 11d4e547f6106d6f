"""What a replica knows of its set from etcd, and how that compares with what its disk remembers (DESIGN R1).

Law: whoever is ahead of etcd in epoch, revision or stamp, knows another primary of the epoch that it has, or is of another
lineage of generations, starts nothing (history 13).
A disk takes over another generation only from a primary that it follows, because its replica was there when it changed, because
loss was accepted in whichever set since (the same lineage), or because the entry names it and was rebuilt from what it remembers.
"""

from lockstep.core.cluster_map import SetMap
from lockstep.core.effects import MapRead, TellStore
from lockstep.core.etcd_comparison import EtcdComparison, Lacking
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName
from lockstep.core.inputs import LeaseKeySeen, MapSeen, PresencesSeen
from lockstep.core.lineage import Lineage
from lockstep.core.stamps import NO_STAMPS, Stamp
from lockstep.core.store_protocol import RememberMap, SetOpened
from services.backup.core.backup_memory import LogStanding


class SetFacts:
    """Lives as long as its replica, which drives it."""

    def __init__(self, set_name: SetName) -> None:
        self._set_name = set_name
        self.set_map: SetMap | None = None
        self.revision = 0
        """mod_revision of the entry."""
        self._lineage = Lineage()
        self._etcd_revision = 0
        self._stamps = NO_STAMPS
        self._stamp: Stamp | None = None
        """The newest that was seen in this lineage, also where etcd lacks it now."""
        self.is_set_back = False
        """etcd says so of itself."""
        self._found_set_back_in = ""
        """The last generation in which the disk knew more than etcd had."""
        self._found_lost: set[Stamp] = set()
        """The stamps that it lacked then."""
        self._map_bytes = b""
        self._shown: MapSeen | None = None
        """What etcd showed last in the place of the entry, which is newer: it is on its way, or etcd was set back behind it."""
        self.lease_holder: Incarnation | None = None
        self.is_lease_key_known = False
        self.presences: dict[BrokerId, tuple[Incarnation, int]] = {}
        self._judged: SetOpened | None = None
        self._is_generation_other = False
        self._is_settled = False
        """A primary or an operator has said that the disk is of this history, since it was opened."""
        self._remembered = (0, "", 0, "")
        """(revision, generation, etcd's own revision, stamp) that the store has, or was told."""

    @property
    def read(self) -> MapRead:
        """The entry as it was read, or written."""
        return MapRead(self.revision, self._map_bytes)

    @property
    def generation(self) -> str:
        return self._lineage.generation

    @property
    def is_led(self) -> bool:
        """Whether somebody holds the lease key, or may: it was not read yet."""
        return self.lease_holder is not None or not self.is_lease_key_known

    @property
    def is_set_back_untold(self) -> bool:
        """Whether etcd lacks a stamp that was seen in it, and does not say yet that it was set back."""
        return self._stamps.lacks(self._stamp) and not self.is_set_back

    def map_seen(self, given: MapSeen) -> bool:
        """The entry as read or watched; answers whether it is news. After `rebuild-map` revisions may begin anew."""
        lineage = Lineage(given.generation, given.earlier_generations)
        is_same = self._lineage.generation in lineage
        is_old = given.mod_revision < self.revision and is_same
        self._lineage, self._stamps = lineage, given.stamps
        if not is_same:
            self._stamp = given.stamps.newest
        elif not given.stamps.lacks(self._stamp):
            self._stamp = given.stamps.newest or self._stamp
        said, self.is_set_back = self.is_set_back, given.is_set_back
        self._etcd_revision = given.etcd_revision
        if is_same and said and not given.is_set_back:
            self._judge_again(given)
        if is_old and given.set_map is not None:
            # Accepted loss changes the generation and no entry: one that this process has written is newer than what was seen.
            self._shown = given
            return False
        self._take(given)
        return True

    def take_shown(self) -> None:
        """The entry is the one that etcd shows, and no newer one: an operator has said what becomes of the set in this etcd,
        which was set back if it lacks what this process knows.
        """
        if self._shown is not None:
            self._take(self._shown)

    def _take(self, given: MapSeen) -> None:
        self.set_map, self.revision, self._map_bytes = given.set_map, given.mod_revision, given.map_bytes
        self._shown = None

    def written(self, set_map: SetMap, revision: int) -> None:
        """This process has written the entry."""
        self.set_map, self.revision, self._map_bytes = set_map, revision, set_map.encode()
        self._shown = None

    def lease_key_seen(self, given: LeaseKeySeen) -> None:
        self.lease_holder, self.is_lease_key_known = given.holder, True

    def presences_seen(self, given: PresencesSeen) -> None:
        self.presences = {
            broker: (incarnation, revision) for broker, incarnation, revision in given.presences
        }

    # --- the disk -----------------------------------------------------------------------------------------------------

    def judge(self, opened: SetOpened | None, is_following: bool) -> None:
        """Compare what the disk remembers, once for each opening; a primary that takes this replica settles it."""
        if opened is not None and opened is not self._judged:
            self._judged, self._is_settled = opened, False
            self._is_generation_other = bool(opened.generation) and opened.generation not in self._lineage
            if self.is_knowledge_at_stake():
                self._note_set_back(self.lacking(opened).stamp)
        if is_following or self._is_rebuilt_from(opened):
            self.trust_generation()

    def _note_set_back(self, lost: Stamp | None) -> None:
        if self._found_set_back_in != self.generation:
            self._found_set_back_in, self._found_lost = self.generation, set()
        if lost is not None:
            self._found_lost.add(lost)

    def _judge_again(self, given: MapSeen) -> None:
        """Another state of this etcd is here than the one that said of itself that it was set back: perhaps the newer one."""
        judged = self._judged
        etcd = EtcdComparison(self._lineage, given.mod_revision, given.etcd_revision, given.stamps)
        if judged is None or etcd.revision_ahead(judged):
            return
        if all(given.stamps.has(stamp) for stamp in self._found_lost):
            self._found_set_back_in = ""

    def _is_rebuilt_from(self, opened: SetOpened | None) -> bool:
        set_map = self.set_map
        if opened is None or set_map is None:
            return False
        return opened.generation in set_map.supersedes and set_map.names_disk(opened.disk)

    def trust_generation(self) -> None:
        """This disk belongs to the present generation: by a primary's word, or an operator's."""
        self._is_generation_other, self._is_settled = False, True

    def is_ahead_of_etcd(self, opened: SetOpened) -> bool:
        """Whether the disk has seen more than etcd shows, or something else."""
        if self._is_generation_other or self.set_map is None or self.is_set_back:
            return True
        return opened.highest_epoch > self.set_map.epoch or self.lacking(opened).is_anything

    def lacking(self, opened: SetOpened) -> Lacking:
        """What the disk remembers and etcd lacks."""
        return self._etcd.lacking(opened, self.set_map)

    @property
    def _etcd(self) -> EtcdComparison:
        return EtcdComparison(self._lineage, self.revision, self._etcd_revision, self._stamps)

    @property
    def judged(self) -> SetOpened | None:
        """The disk as it was opened last, also while it is being opened for another epoch."""
        return self._judged

    def is_knowledge_at_stake(self) -> bool:
        """Whether the disk tells that etcd was set back; nobody has said yet that it is to follow what etcd has now."""
        judged = self._judged
        if judged is None or self._is_settled:
            return False
        return self.lacking(judged).is_anything

    def standing(self, opened: SetOpened) -> LogStanding:
        """What a replica with this disk may take part with: with nothing while that tells that etcd was set back. Another may
        have begun the epoch in which it last wrote once more, and its log be taken for that one's.
        """
        self.judge(opened, is_following=False)
        if self.is_knowledge_at_stake():
            return LogStanding.AHEAD
        is_left_out = not self._is_settled and self._etcd.is_left_out(opened, self.set_map)
        return LogStanding.LEFT_OUT if is_left_out else LogStanding.OURS

    @property
    def has_compared(self) -> bool:
        """Whether the disk was compared with this etcd, and knew nothing that it lacks."""
        judged = self._judged
        if judged is None or self._found_set_back_in == self.generation:
            return False
        return self._is_settled or not self.is_ahead_of_etcd(judged)

    def store_lost(self) -> None:
        """What it was told may not have reached it."""
        self._remembered = (0, "", 0, "")

    def opened(self, opened: SetOpened) -> None:
        """What the store has, from itself: what it was told before it may have refused."""
        self._remembered = (opened.map_revision, opened.generation, opened.etcd_revision, opened.stamp)

    def remember(self, epoch: Epoch, incarnation: Incarnation) -> TellStore | None:
        """Let the store keep the entry, unless it has it or must not."""
        generation, stamp = self.generation, self._stamp.encode() if self._stamp is not None else ""
        state = (self.revision, generation, self._etcd_revision, stamp)
        if self._remembered == state or self._is_generation_other:
            return None
        if self.is_knowledge_at_stake():
            return (
                None  # A store takes another generation for newer, and has it in the place of what it knows.
            )
        self._remembered = state
        request = RememberMap(
            self._set_name,
            epoch,
            incarnation,
            self._map_bytes,
            self.revision,
            generation,
            self._etcd_revision,
            stamp,
        )
        return TellStore(self._set_name, request)
