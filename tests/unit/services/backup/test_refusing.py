"""A backup's vote "no": who says it, on what, how often and in which form (DESIGN 3)."""

from lockstep.core.effects import TellPrimary
from lockstep.core.frames import Frame
from lockstep.core.ids import Epoch, Incarnation, LogIndex, QueuePosition, TransactionKey, place
from lockstep.core.inputs import PrimaryStreamClosed, Tick
from lockstep.core.replication import Frames, Refuse, SubscriptionAccepted
from lockstep.core.store_protocol import FREE_BYTES_UNKNOWN
from services.backup.core.backup_memory import BackupState
from services.backup.core.settings import BackupSettings
from tests.unit.lockstep.core.history import Log, message
from tests.unit.services.replicas import SET, BackupBench, MemoryStore

E1 = Epoch(1)
RESERVE = BackupSettings().reserve_bytes
REASON = "the store's reserve is exhausted"


class Following:
    """A backup that has all of a log, which is committed as far as it is said to be. Lives for one test."""

    def __init__(self, free_bytes: int = RESERVE - 1) -> None:
        self.log = Log()
        self.log.begin_epoch()
        self.queue = self.log.queue("q")
        self.bench = BackupBench(MemoryStore("disk-b"), 1)
        self.bench.store.free_bytes = free_bytes
        self._sent = 0
        self.accept()
        self.send()

    def accept(self, snapshot_index: int = 0) -> None:
        end = self.bench.store.log_end
        accepted = SubscriptionAccepted(SET, E1, end, LogIndex(snapshot_index), False, (), 0)
        self.bench.hear(accepted)

    def send(self) -> None:
        """What the log got since, and that it is committed."""
        self.log.flush()
        fresh: list[Frame] = self.log.frames[self._sent :]
        self._sent = len(self.log.frames)
        end = LogIndex(self.log.state.applied)
        self.bench.hear(Frames(SET, E1, tuple((each.durable, each.transient) for each in fresh), end))
        self.bench.hear(Frames(SET, E1, (), end))

    def transaction(self, xid: bytes = b"", is_publishing: bool = True) -> TransactionKey:
        """One that is open at the backup; it brings content, or accepts a message."""
        key = self.log.begin(xid)
        if is_publishing:
            self.log.publish(message((self.queue,)), transaction=key)
        else:
            position = place(self.log.publish(message((self.queue,))), 0)
            self.log.dequeue(self.queue, QueuePosition(position), transaction=key)
        self.send()
        return key

    def refusals(self) -> list[Refuse]:
        return [said for said in self.bench.said() if isinstance(said, Refuse)]

    def refused(self) -> list[TransactionKey]:
        return [said.transaction for said in self.refusals()]


def test_a_backup_whose_reserve_is_touched_refuses_what_is_open_and_brings_content() -> None:
    following = Following()
    key, branch = following.transaction(), following.transaction(b"xid")
    following.bench.feed(Tick(SET))
    head = (SET, E1, following.bench.core.broker, Incarnation("b.0"))
    assert following.refusals() == [Refuse(*head, one, REASON) for one in (key, branch)]
    said = [one for one in following.bench.effects if isinstance(one, TellPrimary)]
    streams = {one.stream for one in said if isinstance(one.message, Refuse)}
    assert streams == {following.bench.core.stream}


def test_it_refuses_nothing_while_there_is_room() -> None:
    for free_bytes in (RESERVE, FREE_BYTES_UNKNOWN):
        following = Following(free_bytes)
        following.transaction()
        following.bench.pass_ms(500)
        assert following.refused() == []


def test_it_refuses_nothing_any_more_when_there_is_room_again() -> None:
    following = Following()
    following.bench.store.free_bytes = RESERVE
    following.transaction()
    following.bench.pass_ms(500)
    assert following.refused() == []


def test_what_frees_room_is_not_refused() -> None:
    following = Following()
    following.transaction(is_publishing=False)
    following.bench.pass_ms(500)
    assert following.refused() == []


def test_what_is_prepared_is_not_refused() -> None:
    """A successor could not tell a late "no" from none."""
    following = Following()
    key = following.transaction(b"xid")
    following.log.prepare(key, b"xid")
    following.send()
    following.bench.pass_ms(500)
    assert following.refused() == []


def test_what_is_ended_is_not_refused() -> None:
    following = Following()
    following.log.commit(following.transaction())
    following.log.rollback(following.transaction())
    following.send()
    following.bench.pass_ms(500)
    assert following.refused() == []


def test_a_transaction_is_refused_once_however_long_it_stays_open() -> None:
    following = Following()
    key = following.transaction()
    following.bench.pass_ms(500)
    following.send()
    following.bench.pass_ms(200)
    assert following.refused() == [key]


def test_one_that_opens_later_is_refused_too() -> None:
    following = Following()
    first = following.transaction()
    following.bench.feed(Tick(SET))
    second = following.transaction()
    following.bench.feed(Tick(SET))
    assert following.refused() == [first, second]


def test_nothing_is_refused_without_a_subscription_and_all_that_is_open_in_the_next_one() -> None:
    """A vote may have been lost with the stream that it was said on."""
    following = Following()
    bench = following.bench
    key = following.transaction()
    bench.feed(Tick(SET))
    bench.feed(PrimaryStreamClosed(SET, bench.core.stream))
    bench.feed(Tick(SET))
    bench.pass_ms(200)
    assert bench.core.state is BackupState.SUBSCRIBING
    assert following.refused() == [key]
    following.accept()
    bench.feed(Tick(SET))
    assert following.refused() == [key, key]


def test_a_newcomer_whose_memory_is_not_whole_refuses_nothing() -> None:
    """What it says counts for nothing (R4)."""
    following = Following()
    bench = following.bench
    following.transaction()
    bench.feed(PrimaryStreamClosed(SET, bench.core.stream))
    bench.pass_ms(200)
    following.accept(snapshot_index=int(bench.store.log_end))
    assert bench.core.state is BackupState.JOINING
    bench.feed(Tick(SET))
    assert following.refused() == []
