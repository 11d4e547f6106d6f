"""What a replica knows of its set from etcd, and how that compares with what its disk remembers (DESIGN R1).

Law: whoever is ahead of etcd in epoch or revision, or differs in generation, starts nothing (history 13). A disk takes over
another generation only from a primary that it follows, because its replica was there when it changed, or because the entry names
it and was rebuilt from what it remembers.
"""

from lockstep.core.cluster_map import SetMap
from lockstep.core.effects import TellStore
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName
from lockstep.core.inputs import LeaseKeySeen, MapSeen, PresencesSeen
from lockstep.core.store_protocol import RememberMap, SetOpened


class SetFacts:
    """Lives as long as its replica, which drives it."""

    def __init__(self, set_name: SetName) -> None:
        self._set_name = set_name
        self.set_map: SetMap | None = None
        self.revision = 0
        """mod_revision of the entry."""
        self._generation = ""
        self._map_bytes = b""
        self.lease_holder: Incarnation | None = None
        self.is_lease_key_known = False
        self.presences: dict[BrokerId, tuple[Incarnation, int]] = {}
        self._judged: SetOpened | None = None
        self._is_generation_other = False
        self._remembered = (0, "")
        """(revision, generation) that the store has, or was told."""

    @property
    def is_led(self) -> bool:
        """Whether somebody holds the lease key, or may: it was not read yet."""
        return self.lease_holder is not None or not self.is_lease_key_known

    def map_seen(self, given: MapSeen) -> bool:
        """The entry as read or watched; answers whether it is news. After `rebuild-map` revisions may begin anew."""
        is_old = given.mod_revision < self.revision and given.generation == self._generation
        if is_old and given.set_map is not None:
            return False
        self.set_map, self.revision = given.set_map, given.mod_revision
        self._map_bytes, self._generation = given.map_bytes, given.generation
        return True

    def written(self, set_map: SetMap, revision: int) -> None:
        """This process has written the entry."""
        self.set_map, self.revision, self._map_bytes = set_map, revision, set_map.encode()

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
            self._judged = opened
            self._is_generation_other = bool(opened.generation) and opened.generation != self._generation
        if is_following or self._is_rebuilt_from(opened):
            self.trust_generation()

    def _is_rebuilt_from(self, opened: SetOpened | None) -> bool:
        set_map = self.set_map
        if opened is None or set_map is None:
            return False
        return opened.generation in set_map.supersedes and set_map.names_disk(opened.disk)

    def trust_generation(self) -> None:
        """This disk belongs to the present generation: by a primary's word, or an operator's."""
        self._is_generation_other = False

    def is_ahead_of_etcd(self, opened: SetOpened) -> bool:
        """Whether the disk has seen more than etcd shows, or something else."""
        if self._is_generation_other or self.set_map is None:
            return True
        is_same = opened.generation == self._generation
        return opened.highest_epoch > self.set_map.epoch or (is_same and opened.map_revision > self.revision)

    def store_lost(self) -> None:
        """What it was told may not have reached it."""
        self._remembered = (0, "")

    def opened(self, opened: SetOpened) -> None:
        """What the store has, from itself: what it was told before it may have refused."""
        self._remembered = (opened.map_revision, opened.generation)

    def remember(self, epoch: Epoch, incarnation: Incarnation) -> TellStore | None:
        """Let the store keep the entry, unless it has it or must not."""
        state = (self.revision, self._generation)
        if self._remembered == state or self._is_generation_other:
            return None
        self._remembered = state
        request = RememberMap(
            self._set_name, epoch, incarnation, self._map_bytes, self.revision, self._generation
        )
        return TellStore(self._set_name, request)
