"""Subscriptions to committed events: which groups there are, up to where each is done, and the names of queues and exchanges
that are gone.

Law: all of it is durable and a function of durable records alone, so that every store knows from its own state what is owed
(DESIGN 5, 7). A group's floor never falls. The name of what was deleted is kept while an event that names it may be owed, and
for the last `DELETED_KEPT` deletions in any case; from where on all names are known is kept for ever.
"""

import msgspec

from lockstep.core.ids import ExchangeId, LogIndex, QueueId
from lockstep.core.items import META_KEY, Changes, deleted_resource_key, subscription_key
from lockstep.core.records import Begins

DELETED_KEPT = 1_024
"""Deletions whose names stay although nobody is owed anything: for those who read without a group."""


class Group(msgspec.Struct, frozen=True, array_like=True):
    """One group in one resource set."""

    id: LogIndex
    """Of the record that opened it here."""
    name: str
    floor: LogIndex
    """Everything at or below it is done with."""
    is_started: bool = False
    """False: it holds what it may begin with, and waits for the consistent cut at which it begins."""
    is_left_behind: bool = False
    """True: it is owed nothing any more, and goes nowhere. Its name stays: a group that is not there at all where others have
    begun is taken for one that came before its set did, and is given everything.
    """
    begins: Begins = ()
    """Where it begins in every set, as this one has decided; empty: another does, or an older version had it begin."""


class DeletedResource(msgspec.Struct, frozen=True, array_like=True):
    """A durable queue or exchange that is gone."""

    name: str
    index: LogIndex
    """Of the record that deleted it."""


class Subscriptions:
    """Those of one resource set's state, which alone changes them."""

    __slots__ = ("_changes", "_deleted", "by_id", "by_name", "names_from")

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.by_id: dict[LogIndex, Group] = {}
        self.by_name: dict[str, Group] = {}
        self._deleted: dict[int, DeletedResource] = {}
        """By the id of the queue or exchange, in the order of their deletions."""
        self.names_from = LogIndex(0)
        """Of the last deletion whose name was let go: only what was committed behind it has all its names here."""

    @property
    def floor(self) -> LogIndex | None:
        """What no group is owed: everything at or below; None without a group that is owed anything."""
        return min((group.floor for group in self.owed()), default=None)

    def owed(self) -> list[Group]:
        """All groups but those that were left behind."""
        return [group for group in self.by_id.values() if not group.is_left_behind]

    def open(self, group: Group) -> None:
        """A new group; its name is not taken, but by one that was left behind: that goes."""
        known = self.by_name.get(group.name)
        if known is not None:
            # A primary that does not know of such groups took it for closed.
            assert known.is_left_behind, f"group {group.name} is open"
            self.close(known.id)
        self._keep(group)

    def advance(self, group_id: LogIndex, floor: LogIndex, begins: Begins = ()) -> None:
        """A group is done with everything at or below `floor`; nothing for one that is closed or was left behind. `begins`: said
        when it begins.
        """
        group = self.by_id.get(group_id)
        if group is not None and not group.is_left_behind:
            self._keep(
                msgspec.structs.replace(
                    group,
                    floor=LogIndex(max(floor, group.floor)),
                    is_started=True,
                    begins=group.begins if group.is_started else begins,
                )
            )
            self._prune()

    def leave_behind(self, group_id: LogIndex) -> None:
        """A group is owed nothing any more, and keeps its name until it is closed; nothing for one that is closed."""
        group = self.by_id.get(group_id)
        if group is not None:
            self._keep(msgspec.structs.replace(group, is_left_behind=True))
            self._prune()

    def close(self, group_id: LogIndex) -> None:
        """End a group; nothing for one that is closed."""
        group = self.by_id.pop(group_id, None)
        if group is not None:
            del self.by_name[group.name]
            self._changed(subscription_key(group_id))
            self._prune()

    def resource_deleted(self, resource: QueueId | ExchangeId, name: str, index: LogIndex) -> None:
        """A durable queue or exchange was deleted by the record at `index`."""
        self._deleted[resource] = DeletedResource(name, index)
        self._changed(deleted_resource_key(resource))
        self._prune()

    def deleted(self, resource: int) -> DeletedResource | None:
        return self._deleted.get(resource)

    def all_deleted(self) -> list[tuple[int, DeletedResource]]:
        """By id."""
        return sorted(self._deleted.items())

    def restore(
        self, groups: list[Group], deleted: list[tuple[int, DeletedResource]], names_from: LogIndex
    ) -> None:
        """Take over a snapshot's."""
        self.names_from = names_from
        for group in sorted(groups, key=lambda group: group.id):
            self.by_id[group.id] = self.by_name[group.name] = group
        self._deleted.update(sorted(deleted, key=lambda pair: pair[1].index))

    def _keep(self, group: Group) -> None:
        self.by_id[group.id] = self.by_name[group.name] = group
        self._changed(subscription_key(group.id))

    def _prune(self) -> None:
        floor = self.floor
        while len(self._deleted) > DELETED_KEPT:
            resource, oldest = next(iter(self._deleted.items()))
            if floor is not None and oldest.index > floor:
                break
            del self._deleted[resource]
            self.names_from = oldest.index
            self._changed(deleted_resource_key(resource))
            self._changed(META_KEY)

    def _changed(self, key: bytes) -> None:
        if self._changes.listener is not None:
            self._changes.listener.items_changed((key,))
