"""Who counts: the in-sync set as etcd has it, a change of it under way, and learners that are guarded (R3, R4, R8).

Law: an index is committed when it is durable at every counted member: those of the entry in force, and from a guard or the
sending of a swap on also those of the entry to be. A change never sent is dropped at once; one that was sent counts until a later
swap of one's own has moved the revision: until then the old one could still land (history 4). Nothing is committed while an entry
that may be in force has fewer than `min_in_sync` members (R4, histories 12 and 22).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.effects import MapRead
from lockstep.core.ids import BrokerId, DiskId, LogIndex

_Members = tuple[tuple[Member, ...], tuple[Member, ...]]
"""(in sync, learners) of an entry."""


class SwapState(Enum):
    """Where the change under way stands."""

    NONE = "none"
    SENT = "sent"
    IN_DOUBT = "in doubt"
    """Its answer was lost; the next swap settles it."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A learner that is counted already; it is swapped in when durable up to `index` (the note's queue guard)."""

    member: Member
    index: LogIndex
    uncuttable: LogIndex
    """Nothing up to here can be cut on it: everybody in its set must hold that much, or could lead without (history 18)."""


class Membership:
    """Lives as long as the epoch; driven by the primary core, which sends the swaps that it plans."""

    def __init__(self, own: Member, set_map: SetMap, revision: int) -> None:
        self.own = own
        self.set_map = set_map
        self.revision = revision
        self.swap_state = SwapState.NONE
        self.durable: dict[Member, LogIndex] = {}
        """What each replica said on its last subscription is durable and agrees with this log; kept when that has ended."""
        self.guards: dict[Member, Guard] = {}
        self._change = set_map.change
        self._targets: list[SetMap] = []
        """Entries that were sent and not settled; any of them may be in force."""

    def subscribed(self, member: Member, agreed: LogIndex) -> None:
        """A replica subscribed, whose disk has this log up to `agreed`: what was said of that disk before is no longer so."""
        for other in self.durable:
            if other.disk == member.disk:
                self.durable[other] = min(self.durable[other], agreed)
        self.durable[member] = agreed

    def counted(self) -> Collection[Member]:
        """Every member that an index waits for. Whoever asks does not care in which order."""
        if not self._targets and not self.guards:
            return self.set_map.in_sync  # Nearly always.
        return {*self.in_sync_perhaps(), *self.guards}

    def in_sync_perhaps(self) -> Collection[Member]:
        """Every member that an entry which may be in force has in sync: any of them may be promoted."""
        if not self._targets:
            return self.set_map.in_sync
        return {*self.set_map.in_sync, *(member for target in self._targets for member in target.in_sync)}

    def is_below_minimum(self) -> bool:
        """Whether an entry that may be in force has too few members to complete anything."""
        entry = self.set_map
        is_small = len(entry.in_sync) < entry.min_in_sync
        return is_small or any(len(target.in_sync) < target.min_in_sync for target in self._targets)

    def commit_candidate(self) -> LogIndex:
        """Highest index that may be committed now; 0 while nothing may be."""
        if self.is_below_minimum():
            return LogIndex(0)
        return min([self.durable.get(member, LogIndex(0)) for member in self.counted()])

    def plan(self, lost: set[BrokerId]) -> SetMap | None:
        """The next entry worth a swap: guarded learners that are ready come in, or a lost member goes. None: leave it.

        `lost`: brokers with an in-sync entry whose replica is not reachable. An own swap in doubt is always followed by another,
        which moves the revision whatever became of it.
        """
        if not lost and not self.guards and self.swap_state is not SwapState.IN_DOUBT:
            return None  # Nearly always.
        changed = self._with_ready_learners(lost) or self._without_lost_member(lost)
        if changed is None and self.swap_state is SwapState.IN_DOUBT:
            changed = (self.set_map.in_sync, self.set_map.learners)
        if changed is None:
            return None
        in_sync, learners = changed
        # `change` grows over every swap sent, landed or not: that is how a swap is recognised as this one.
        self._change += 1
        return replace(
            self.set_map,
            in_sync=in_sync,
            learners=learners,
            change=self._change,
            changed_by=self.own.incarnation,
        )

    def sent(self, target: SetMap) -> None:
        """The swap is on its way: from now on its members count too."""
        self._targets.append(target)
        self.swap_state = SwapState.SENT

    @property
    def read(self) -> MapRead:
        """The entry as etcd has it: all of this epoch were written by this process."""
        return MapRead(self.revision, self.set_map.encode())

    def confirmed(self, set_map: SetMap, revision: int) -> None:
        """A swap of this process landed: older ones can never land any more."""
        self.set_map, self.revision = set_map, revision
        self._targets.clear()
        self.swap_state = SwapState.NONE
        for member in set_map.in_sync:
            self.guards.pop(member, None)

    def in_doubt(self) -> None:
        """The answer was lost and the entry still has the old revision: it may land later."""
        self.swap_state = SwapState.IN_DOUBT

    def failed(self) -> None:
        """A compare failed: the last target never lands. Others in doubt stay."""
        self._targets.pop()
        self.swap_state = SwapState.IN_DOUBT if self._targets else SwapState.NONE

    def is_own(self, set_map: SetMap) -> bool:
        """Whether an entry read from etcd is one of the swaps not settled yet."""
        return any(target == set_map for target in self._targets)

    def latest_target(self) -> SetMap:
        """The swap sent last."""
        return self._targets[-1]

    def _with_ready_learners(self, lost: set[BrokerId]) -> _Members | None:
        """As many guarded learners that are ready as may come in one swap, with which those leave whose places they take (R4).

        In one swap: where most disks of a minimum were lost no learner could come while the others' lost disks are in the set.
        """
        ready = [
            member for member, guard in self.guards.items() if self.durable.get(member, 0) >= guard.index
        ]
        for uncuttable in sorted({self.guards[member].uncuttable for member in ready}, reverse=True):
            coming = [
                member
                for member in sorted(ready)
                if self.guards[member].uncuttable <= uncuttable <= self._durable_on(member.disk)
            ]
            in_sync, learners = self._with(coming, lost)
            if coming and all(self._durable_on(entry.disk) >= uncuttable for entry in in_sync):
                return in_sync, learners
        return None

    def _with(self, coming: list[Member], lost: set[BrokerId]) -> _Members:
        """The entry's members with these learners in the set: each in the place of its broker's entry, or of a lost member that
        cannot be removed below the minimum (R4).
        """
        current, brokers = self.set_map, {member.broker for member in coming}
        in_sync = [entry for entry in current.in_sync if entry.broker not in brokers]
        lost_entries = [entry for entry in in_sync if entry.broker in lost and entry != self.own]
        learners = [entry for entry in current.learners if entry.broker not in brokers]
        newcomers = sum(current.member(broker) is None for broker in brokers)
        is_removable = len(current.in_sync) > current.min_in_sync
        for entry in lost_entries[: 0 if is_removable else newcomers]:
            in_sync.remove(entry)
            learners.append(entry)
        return tuple(sorted([*in_sync, *coming])), tuple(sorted(learners))

    def _durable_on(self, disk: DiskId) -> int:
        """What a disk holds of this log, whichever memory said so."""
        return max((index for member, index in self.durable.items() if member.disk == disk), default=0)

    def _without_lost_member(self, lost: set[BrokerId]) -> _Members | None:
        current = self.set_map
        if len(current.in_sync) - 1 < current.min_in_sync:
            return None
        for entry in current.in_sync:
            if entry.broker in lost and entry.broker != self.own.broker:
                in_sync = tuple(other for other in current.in_sync if other != entry)
                learners = tuple(sorted({*current.learners, entry}))
                return in_sync, learners
        return None
