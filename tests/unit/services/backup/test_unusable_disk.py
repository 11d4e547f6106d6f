"""A disk whose bytes are whole and no memory all the same: it is read anew, then it is damaged, and its process goes on (R10)."""

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from lockstep.core.effects import TellStore
from lockstep.core.frames import Frame
from lockstep.core.ids import DiskId, Epoch, Incarnation, LogIndex
from lockstep.core.items import QUEUE
from lockstep.core.records import DeclareExchange
from lockstep.core.store_protocol import (
    AnyStoreAnswer,
    AnyStoreRequest,
    LoadState,
    StateChunk,
    StateItem,
)
from services.backup.core.backup_memory import BackupState
from services.backup.core.loading import Loading
from services.backup.core.settings import BackupSettings
from tests.unit.services.backup.test_in_pieces import SMALL, turns
from tests.unit.services.replicas import SET, BackupBench, MemoryStore, frame, frames

UNUSABLE = frame(1, 3, (DeclareExchange(None, "e", "nonsense", True), True))
PAUSE_MS = 4_000


class Short(MemoryStore):
    """It gives back less than it says."""

    def handle(self, request: AnyStoreRequest) -> list[AnyStoreAnswer]:
        answers = super().handle(request)
        return [
            replace(answer, frames=answer.frames[:2]) if isinstance(answer, StateChunk) else answer
            for answer in answers
        ]


def holding(third: Frame, commit: int = 5) -> MemoryStore:
    return MemoryStore("disk-b", *frames(1, 1, 2), third, *frames(1, 4, 5), commit=commit)


def with_item(item: StateItem) -> MemoryStore:
    store = MemoryStore("disk-b", *frames(1, 1, 5), commit=5)
    store.items.append(item)
    return store


DISKS: dict[str, Callable[[], MemoryStore]] = {
    "a record of a kind that is none": lambda: holding(UNUSABLE),
    "a frame that does not follow": lambda: MemoryStore(
        "disk-b", *frames(1, 1, 2), *frames(1, 4, 5), commit=5
    ),
    "less than there is": lambda: Short("disk-b", *frames(1, 1, 5), commit=5),
    "an item of a kind that is none": lambda: with_item(StateItem(b"?1", b"", True)),
    "a key that is none": lambda: with_item(StateItem(QUEUE, b"", True)),
}


def state(bench: BackupBench) -> BackupState:
    return bench.core.state


def loads(bench: BackupBench) -> int:
    told = [effect.request for effect in bench.effects if isinstance(effect, TellStore)]
    return len([request for request in told if isinstance(request, LoadState)])


@pytest.mark.parametrize("make", DISKS.values(), ids=list(DISKS))
def test_what_is_no_memory_is_read_anew_and_is_damage_then(make: Callable[[], MemoryStore]) -> None:
    bench = BackupBench(make())
    assert state(bench) is BackupState.OPENING
    bench.pass_ms(PAUSE_MS)
    assert state(bench) is BackupState.DAMAGED
    assert loads(bench) == bench.notes().count("not loaded") == 2
    assert bench.subscriptions() == []
    for _ in range(2):
        opened = bench.core.opened
        assert opened is not None and "cannot be loaded" in opened.damage and opened.is_unusable
        bench.lose_store()
        bench.find_store()
        assert state(bench) is BackupState.DAMAGED, "for as long as this process lives"


def test_what_was_no_memory_once_condemns_no_disk() -> None:
    bench = BackupBench(holding(UNUSABLE))
    bench.store.frames = frames(1, 1, 5)
    bench.pass_ms(PAUSE_MS)
    assert state(bench) is BackupState.SUBSCRIBING
    assert bench.subscriptions()[-1].log_end == 5
    bench.lose_store()
    bench.store.disk, bench.store.frames = DiskId("another"), holding(UNUSABLE).frames
    bench.find_store()
    assert state(bench) is BackupState.OPENING, "it was loaded since"


def test_what_is_not_committed_is_not_looked_at() -> None:
    bench = BackupBench(holding(UNUSABLE, commit=2))
    assert bench.subscriptions()[-1].log_end == 5


def test_a_store_that_is_lost_meanwhile_is_asked_again_when_it_is_back() -> None:
    bench = BackupBench(holding(UNUSABLE), settings=SMALL)
    assert state(bench) is BackupState.LOADING
    bench.lose_store()
    turns(bench, 100)
    assert "not loaded" in bench.notes()
    told = len(bench.effects)
    bench.pass_ms(PAUSE_MS)
    assert not [effect for effect in bench.effects[told:] if isinstance(effect, TellStore)]
    bench.find_store()
    turns(bench, 100)
    assert state(bench) is BackupState.OPENING, "all that was read of it is read anew once"


class NoMemory(tuple[bytes, ...]):
    """Frames for which there is none."""

    def __iter__(self) -> Iterator[bytes]:
        raise MemoryError


def test_a_process_that_has_no_memory_left_says_nothing_of_its_disk() -> None:
    loading = Loading(SET, LogIndex(5), LogIndex(5), (), BackupSettings())
    loading.take(StateChunk(SET, Epoch(1), Incarnation("b.0"), (), NoMemory((b"frame",))))
    with pytest.raises(MemoryError):
        for _ in loading.work():
            pass
