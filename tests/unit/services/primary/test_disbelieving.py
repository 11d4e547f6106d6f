"""What backups say is believed as far as they can know it: within what they were sent, until they subscribe again."""

import pytest

from lockstep.core.commands import BeginCommand, CommitCommand
from lockstep.core.effects import CloseBackupStream, Note
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SessionId, SessionKey
from lockstep.core.inputs import BackupSaid, BackupStreamClosed, ClientSaid, LeaseExtended, Tick, Woken
from lockstep.core.records import OpenSession
from lockstep.core.replication import Acknowledge, Refuse, Subscribe, SubscriptionRefused
from lockstep.core.requests import AttachSession
from lockstep.core.transaction_states import TransactionState
from lockstep.runtime.log_format import split_words
from services.primary.core.settings import PrimarySettings
from services.primary.core.transacting import append_begin
from tests.unit.services.replicas import SET, PrimaryBench, entry, member

A, B, C = member("a"), member("b"), member("c")
B1 = member("b", 1)
EPOCH_1 = ((Epoch(1), LogIndex(1)),)
FAR = 1 << 62


def subscribe(bench: PrimaryBench, stream: int, *, log_end: int = 1) -> None:
    bench.subscribe(stream, B, log_end=log_end, epochs=EPOCH_1, is_memory_whole=True)


def warnings(bench: PrimaryBench) -> list[str]:
    return [
        effect.details
        for effect in bench.effects
        if isinstance(effect, Note) and effect.event == "acknowledgement disbelieved" and effect.is_warning
    ]


@pytest.mark.parametrize("beyond", [1, FAR])
def test_who_acknowledges_more_than_it_was_sent_is_heard_no_more(beyond: int) -> None:
    bench = PrimaryBench(entry(1, A, B, min_in_sync=2))
    subscribe(bench, 1)
    end = bench.write("sent")
    before = len(bench.effects)
    bench.acknowledge(1, B, end + beyond)
    [refused] = [told for told in bench.told(1, before) if isinstance(told, SubscriptionRefused)]
    assert refused.reason == f"b acknowledged {end + beyond}, and was sent the log up to {end}"
    assert warnings(bench) == [refused.reason]
    assert CloseBackupStream(SET, 1) in bench.effects and not bench.core.stopped
    bench.acknowledge(1, B, end)
    assert bench.core.commit_index == end - 1, "nothing counts that comes behind it"


def test_what_was_acknowledged_beyond_the_log_commits_nothing_later() -> None:
    """A set may lose nobody, and its member is gone: what is written waits, whatever somebody said in its name before."""
    bench = PrimaryBench(entry(1, A, B, min_in_sync=2))
    subscribe(bench, 1)
    bench.acknowledge(1, B, FAR)
    bench.feed(BackupStreamClosed(SET, 1))
    committed = bench.core.commit_index
    bench.write("waits")
    bench.pass_ms(5000)
    assert bench.core.commit_index == committed


def test_what_a_member_has_is_what_it_said_on_its_last_subscription() -> None:
    bench = PrimaryBench(entry(1, A, B, min_in_sync=2))
    subscribe(bench, 1)
    before = bench.write("acknowledged in its name")
    written = bench.write("by somebody who had its name")
    bench.acknowledge(1, B, before)
    assert bench.core.commit_index == before < written
    subscribe(bench, 2, log_end=before)
    bench.write("one more")
    assert bench.core.commit_index == before
    assert bench.core.membership.durable[B] == before


def followed_by_both() -> PrimaryBench:
    """By B on stream 1, and by C on stream 2, which have all."""
    bench = PrimaryBench(entry(1, A, B, C))
    for stream, who in ((1, B), (2, C)):
        bench.subscribe(stream, who, log_end=1, epochs=EPOCH_1, is_memory_whole=True)
    return bench


def test_a_subscription_with_less_takes_back_what_was_said_and_not_what_is_committed() -> None:
    bench = followed_by_both()
    end = bench.write("on two disks")
    bench.acknowledge(1, B, end)
    assert bench.core.commit_index == 1
    bench.subscribe(3, B, log_end=1, epochs=EPOCH_1, is_memory_whole=True)
    bench.acknowledge(2, C, end)
    assert bench.core.commit_index == 1, "b said that it has not what it said it had"
    bench.acknowledge(3, B, end)
    assert bench.core.commit_index == end
    bench.subscribe(4, B, log_end=end, epochs=EPOCH_1, commit_index=end, is_memory_whole=True)
    assert bench.core.commit_index == end


def test_a_disk_that_comes_back_with_less_has_less_in_its_old_name_too() -> None:
    """R12: the restarted process has a name of its own, and the entry still has the old one."""
    bench = followed_by_both()
    end = bench.write("acknowledged, and lost by the disk")
    bench.acknowledge(1, B, end)
    bench.subscribe(3, B1, log_end=1, epochs=EPOCH_1)
    bench.acknowledge(2, C, end)
    assert bench.core.commit_index == 1


def test_a_newcomer_has_nothing_before_it_was_sent_everything() -> None:
    settings = PrimarySettings(retained_bytes_max=0, snapshot_chunk_bytes=64)
    bench = PrimaryBench(entry(1, A), settings=settings)
    for number in range(40):
        bench.write(f"content {number}")
    bench.subscribe(1, B)
    bench.acknowledge(1, B, 1)
    assert warnings(bench) == ["b acknowledged 1, and was sent the log up to 0"]
    assert not bench.core.membership.guards and bench.swaps() == []


def test_a_newcomer_has_what_it_was_sent_behind_its_snapshot() -> None:
    settings = PrimarySettings(retained_bytes_max=0, snapshot_chunk_bytes=64)
    bench = PrimaryBench(entry(1, A), settings=settings)
    for number in range(40):
        bench.write(f"content {number}")
    bench.subscribe(1, B)
    snapshot_index = bench.core.log_end
    bench.write("behind it")
    while bench.core.backups.by_stream[1].snapshot is not None:
        bench.acknowledge(1, B, 0)
    bench.acknowledge(1, B, snapshot_index)
    assert warnings(bench) == []
    end = bench.core.log_end
    bench.acknowledge(1, B, end)
    bench.feed(Tick(SET))
    assert warnings(bench) == [] and bench.swaps()[-1].set_map.in_sync == (A, B)


@pytest.mark.parametrize("broker", ["evil", "a", "b "])
@pytest.mark.parametrize("epoch", [1, 2, FAR])
def test_whom_the_entry_does_not_name_gets_nothing_and_moves_nothing(broker: str, epoch: int) -> None:
    bench = PrimaryBench(entry(1, A, B, min_in_sync=2))
    subscribe(bench, 1)
    before = len(bench.effects)
    said = Subscribe(
        SET,
        Epoch(epoch),
        BrokerId(broker),
        DiskId("new"),
        Incarnation("new"),
        LogIndex(0),
        (),
        LogIndex(0),
        False,
        LogIndex(0),
    )
    bench.feed(BackupSaid(SET, 2, said))
    [refused] = bench.told(2, before)
    assert isinstance(refused, SubscriptionRefused) and "is no backup of this set" in refused.reason
    assert CloseBackupStream(SET, 2) in bench.effects and not bench.core.stopped
    assert list(bench.core.backups.by_stream) == [1], "what a backup had before goes on"
    named = (BrokerId(broker), Incarnation("new"))
    for message in (
        Acknowledge(SET, Epoch(FAR), *named, LogIndex(0)),
        Refuse(SET, Epoch(FAR), *named, (LogIndex(1), Epoch(1)), "no room"),
    ):
        bench.feed(BackupSaid(SET, 2, message))
    assert not bench.core.stopped, "who does not want to hear that says nothing else either"


@pytest.mark.parametrize("comes", ["amid it", "behind it"])
def test_a_vote_against_a_transaction_is_heard_before_a_commit_that_waits(comes: str) -> None:
    """Something is done alone, and the client has said its commit meanwhile."""
    bench = PrimaryBench(entry(1, A, B), settings=PrimarySettings(piece_cost=1))
    subscribe(bench, 1)
    bench.feed(LeaseExtended(SET, 1, bench.now.boottime_ms + 60_000))
    bench.feed(
        ClientSaid(SET, 5, (AttachSession(SET, SessionId("s"), SessionKey(0), Epoch(0), 60_000, 0, ()),))
    )
    bench.feed(ClientSaid(SET, 5, (BeginCommand(1, 0),)))
    context = bench.core.context
    key = (context.writer.log.end, bench.core.epoch)
    context.alone.do(iter([1] * 5))
    bench.feed(Tick(SET))
    bench.feed(ClientSaid(SET, 5, (CommitCommand(2, key, 0),)))
    while comes == "behind it" and context.alone.works:
        bench.feed(Woken(SET))
    bench.feed(BackupSaid(SET, 1, Refuse(SET, Epoch(1), B.broker, B.incarnation, key, "no room")))
    for _ in range(20):
        bench.feed(Woken(SET))
    assert not bench.core.is_alone and context.state.outcome(key).state is TransactionState.ROLLED_BACK


def test_why_a_backup_refuses_is_in_the_log_as_its_words_and_not_as_ours() -> None:
    bench = PrimaryBench(entry(1, A, B))
    subscribe(bench, 1)
    context = bench.core.context
    session = SessionKey(context.writer.append(OpenSession(None, "session", 60_000), False))
    append_begin(context, session, None, 0)
    key = (context.writer.log.end, bench.core.epoch)
    reason = "set=another event=data_loss_accepted\n" + "x" * 10_000
    bench.feed(BackupSaid(SET, 1, Refuse(SET, Epoch(1), B.broker, B.incarnation, key, reason)))
    assert context.state.outcome(key).state is TransactionState.ROLLED_BACK
    [note] = [effect for effect in bench.effects if isinstance(effect, Note) and effect.event == "refused"]
    words, text = split_words(f"event=refused {note.details}")
    assert list(words) == ["event", "transaction", "backup"]
    assert text.startswith("'set=another event=data_loss_accepted") and len(text) < 1_000
