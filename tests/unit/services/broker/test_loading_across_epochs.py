"""A replica whose disk takes long to load, while others go on leading the set."""

from lockstep.core.effects import OpenSubscription, TellStore
from lockstep.core.inputs import Woken
from lockstep.core.store_protocol import LoadState
from services.backup.core.backup_memory import BackupState
from services.backup.core.settings import BackupSettings
from services.broker.core.settings import ReplicaSettings
from tests.unit.services.replicas import SET, MemoryStore, ReplicaBench, entry, frames, member, seen


def test_what_is_being_loaded_serves_the_next_epoch_too() -> None:
    """Else a set with a big disk would wait for as many loads as it changes its primary meanwhile."""
    settings = ReplicaSettings(backup=BackupSettings(piece_cost=1))
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 20), commit=20), settings)
    bench.hold_lease()
    bench.see_key("b.0")
    bench.feed(seen(entry(1, member("b")), 10))
    states = []
    for epoch in (1, 2, 3):
        bench.feed(seen(entry(epoch, member("c")), 10 + epoch))
        bench.ms += 1
        bench.feed(Woken(SET))
        assert bench.replica.backup is not None
        states.append((bench.replica.backup.state, bench.replica.backup.epoch))
    assert states == [(BackupState.LOADING, 1)] * 3
    for _ in range(100):
        bench.ms += 1
        bench.feed(Woken(SET))
    loads = [told for told in bench.wanted(TellStore) if isinstance(told.request, LoadState)]
    assert len(loads) == 1
    last = bench.wanted(OpenSubscription)[-1]
    assert (last.broker, last.subscribe.epoch, last.subscribe.log_end) == ("c", 3, 20)
