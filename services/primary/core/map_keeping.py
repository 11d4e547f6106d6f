"""Keeping the map: which swaps the primary sends, and what it makes of their answers (R3, R4, R8).

Law: one change at a time; the entry that etcd has is the truth, and an entry of this epoch that this process did not write ends
the reign. A member is lost when its stream ended, its process is another, or its presence was there and went; a new primary gives
the others a moment to come. No presence says nothing: a backup alone has none, and one that lost its lease may be back.
"""

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.effects import Note, SwapMap
from lockstep.core.ids import BrokerId, Incarnation
from lockstep.core.inputs import MapSeen, PresencesSeen, SwapAnswered, Verdict
from services.primary.core.backups import Backups
from services.primary.core.context import Context
from services.primary.core.membership import Membership, SwapState
from services.primary.core.reign import ReignOver


class MapKeeping:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, context: Context, membership: Membership, backups: Backups, now: Now) -> None:
        self._context = context
        self._membership = membership
        self._backups = backups
        self._began_ms = now.boottime_ms
        self._request = context.epoch << 32
        """What was asked in an earlier reign of this process is answered to nobody."""
        self._retry_ms = 0
        self._presences: dict[BrokerId, Incarnation] = {}
        self._ever_subscribed: set[Member] = set()
        self._ever_present: set[Member] = set()
        """Members of the entry whose presence key was seen in this reign."""

    def subscribed(self, member: Member) -> None:
        """This member's replica came; from now on it is lost when its stream ends."""
        self._ever_subscribed.add(member)

    def presences_seen(self, given: PresencesSeen) -> None:
        self._presences = {broker: incarnation for broker, incarnation, _ in given.presences}
        in_sync = self._membership.set_map.in_sync
        self._ever_present.update(
            entry for entry in in_sync if self._presences.get(entry.broker) == entry.incarnation
        )

    def plan(self, now: Now, may_serve: bool) -> None:
        """Send the next swap, if there is one worth it and none is under way. `may_serve`: the lease is this process's: who has
        lost it may have a successor that an etcd which was set back does not know.
        """
        membership = self._membership
        if not may_serve:
            return
        if membership.swap_state is SwapState.SENT or now.boottime_ms < self._retry_ms:
            return
        target = membership.plan(self._lost(now))
        if target is not None:
            self._request += 1
            membership.sent(target)
            set_name = self._context.state.set_name
            self._context.effects.append(SwapMap(set_name, self._request, membership.read, target))

    def map_seen(self, given: MapSeen) -> None:
        """The entry as read or watched; raises `ReignOver` when it is not this reign's."""
        membership = self._membership
        if given.set_map is None:
            raise ReignOver("the resource set was deleted")
        if given.set_map.epoch > self._context.epoch:
            raise ReignOver(f"epoch {given.set_map.epoch} began on {given.set_map.primary}")
        if given.mod_revision > membership.revision:
            if not membership.is_own(given.set_map):
                raise ReignOver("the map entry was changed by somebody else")
            self._confirm(given.set_map, given.mod_revision)

    def answered(self, given: SwapAnswered, now: Now) -> None:
        """A swap's answer. After anything but DONE the entry was read again before: one that landed is confirmed already."""
        membership = self._membership
        if given.request != self._request or membership.swap_state is not SwapState.SENT:
            return
        if given.verdict is Verdict.DONE:
            self._confirm(membership.latest_target(), given.mod_revision)
            return
        self._retry_ms = now.boottime_ms + self._context.settings.swap_retry_ms
        if given.verdict is Verdict.FAILED:
            membership.failed()
        else:
            self._note("swap in doubt", f"change {membership.latest_target().change}")
            membership.in_doubt()

    def _confirm(self, set_map: SetMap, revision: int) -> None:
        members = ", ".join(member.broker for member in set_map.in_sync)
        self._note("in sync", f"{members} (change {set_map.change})")
        self._membership.confirmed(set_map, revision)

    def _lost(self, now: Now) -> set[BrokerId]:
        lost = set()
        is_grace_over = now.boottime_ms - self._began_ms > self._context.settings.subscription_grace_ms
        for entry in self._membership.set_map.in_sync:
            if entry == self._membership.own or self._backups.of_member(entry) is not None:
                continue
            if is_grace_over or entry in self._ever_subscribed or self._is_gone(entry):
                lost.add(entry.broker)
        return lost

    def _is_gone(self, entry: Member) -> bool:
        """Whether etcd shows that this member's process is not there any more, or has another memory."""
        present = self._presences.get(entry.broker)
        if present is None:
            return entry in self._ever_present
        return present != entry.incarnation

    def _note(self, event: str, details: str) -> None:
        self._context.effects.append(Note(self._context.state.set_name, event, details))
