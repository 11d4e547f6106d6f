"""What a backup says to its own store: the requests of one memory in one epoch."""

from lockstep.core.effects import TellStore
from lockstep.core.ids import DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.replication import SubscriptionAccepted
from lockstep.core.store_protocol import (
    AcceptDamage,
    AnyStoreRequest,
    AppendFrames,
    BeginInstall,
    EndInstall,
    InstallItems,
    LoadState,
    OpenSet,
    SetAside,
    StateItem,
    Truncate,
)
from services.backup.core.backup_memory import FoundDamage


class StoreWords:
    """Lives as long as its backup core; makes effects and remembers the commit index that was told."""

    def __init__(self, set_name: SetName, epoch: Epoch, incarnation: Incarnation) -> None:
        self._head = (set_name, epoch, incarnation)
        self.told_commit = LogIndex(0)

    def open(self) -> TellStore:
        return self._tell(OpenSet(*self._head))

    def load(self) -> TellStore:
        return self._tell(LoadState(*self._head, takes_blocks=True))

    def append(self, frames: tuple[bytes, ...], commit_index: LogIndex) -> TellStore:
        self.told_commit = commit_index
        return self._tell(AppendFrames(*self._head, frames, commit_index))

    def truncate(self, after: LogIndex) -> TellStore:
        return self._tell(Truncate(*self._head, after))

    def begin_install(self, accepted: SubscriptionAccepted) -> TellStore:
        self.told_commit = LogIndex(0)
        return self._tell(
            BeginInstall(
                *self._head, accepted.snapshot_index, accepted.epochs, accepted.time_ms, accepted.reigns
            )
        )

    def install(self, items: tuple[StateItem, ...]) -> TellStore:
        return self._tell(InstallItems(*self._head, items))

    def end_install(self) -> TellStore:
        return self._tell(EndInstall(*self._head))

    def set_aside(self, disk: DiskId) -> TellStore:
        return self._tell(SetAside(*self._head, disk))

    def accept_damage(self, found: FoundDamage | None) -> TellStore:
        """`found`: what the store does not know of it."""
        if found is None or not found.first:
            return self._tell(AcceptDamage(*self._head))
        return self._tell(AcceptDamage(*self._head, found.disk, found.first, found.reason))

    def _tell(self, request: AnyStoreRequest) -> TellStore:
        return TellStore(self._head[0], request)
