"""However many branches, transactions, streams and sessions there are, what concerns all is done in steps that look at few."""

from collections.abc import Iterator

import pytest

from lockstep.core.branch_names import GenerationTag, GlobalId, branch_xid
from lockstep.core.commands import DeleteQueueCommand
from lockstep.core.effects import CloseClientStream, TellClient
from lockstep.core.exchanges import Exchange
from lockstep.core.ids import Epoch, ExchangeId, LogIndex, QueueId
from lockstep.core.inputs import NamesSeen, Tick, Woken
from lockstep.core.outcomes import Outcome
from lockstep.core.pieces import PIECE_COST
from lockstep.core.requests import CloseConsumer, Describe, FindBranches, Recover
from lockstep.core.server_messages import BranchesFound, Description, Recovered
from lockstep.core.taking_apart import TAKEN_OUT_IN_ONE
from lockstep.core.transaction_states import TransactionState
from lockstep.core.transactions import Transactions
from lockstep.core.tx_buffer import DtxBuffer
from services.primary.core.attachments import Attachments
from services.primary.core.queue_dispatch import Consumer
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish

MANY = 5000
PIECES = PrimarySettings(piece_cost=500)


def xid(number: int) -> bytes:
    return branch_xid(GlobalId(number.to_bytes(16, "big")), 0, GenerationTag("01234567")).encode()


def key(number: int) -> tuple[LogIndex, Epoch]:
    return LogIndex(1_000_000 + number), Epoch(1)


def prepare(rig: Rig, numbers: Iterator[int] | range, queue: QueueId | None = None) -> None:
    """Branches as a predecessor left them."""
    for number in numbers:
        branch = DtxBuffer(key(number), TransactionState.PREPARED, xid(number))
        branch.touched = {queue} if queue is not None else set()
        rig.state.transactions.add(branch)


def end(rig: Rig, number: int) -> None:
    branch = rig.state.transactions.get(key(number))
    assert branch is not None
    rig.state.transactions.remove(branch)
    rig.state.outcomes.record(
        branch.key, Outcome(TransactionState.COMMITTED, 0, LogIndex(2_000_000), branch.xid)
    )


def wake(rig: Rig) -> bool:
    """One turn; False: none was asked for."""
    if not rig.wakes:
        return False
    rig.boottime_ms = max(rig.boottime_ms, rig.wakes.pop(0))
    rig.feed(Woken(SET))
    return True


def turns(rig: Rig) -> int:
    """Until nothing more is to be done, from the next tick on."""
    count = 0
    rig.feed(Tick(SET))
    while wake(rig):
        count += 1
    return count


@pytest.fixture
def rig() -> Rig:
    return Rig(PIECES)


@pytest.fixture
def client(rig: Rig) -> RigClient:
    return rig.client()


def test_a_page_of_branches_is_found_in_pieces(rig: Rig, client: RigClient) -> None:
    prepare(rig, range(MANY))
    client.say(Recover(1, xid(9), 10, False))
    assert not client.heard_of(Recovered)
    assert turns(rig) >= MANY // 1000 - 1
    (page,) = client.heard_of(Recovered)
    assert [branch.xid for branch in page.branches] == [xid(number) for number in range(10, 20)]
    assert not page.is_end


def test_few_branches_are_told_at_once(rig: Rig, client: RigClient) -> None:
    prepare(rig, range(3))
    client.say(Recover(1, b"", 10, False))
    (page,) = client.heard_of(Recovered)
    assert len(page.branches) == 3 and page.is_end


def test_branches_that_end_while_a_page_is_found_are_not_in_it(rig: Rig, client: RigClient) -> None:
    prepare(rig, range(MANY))
    client.say(Recover(1, b"", 10, False))
    for number in range(12):
        end(rig, number)
    turns(rig)
    (page,) = client.heard_of(Recovered)
    # The first ten of those that were there are gone; who asks is not to take that for the end.
    assert [branch.xid for branch in page.branches] == [xid(number) for number in range(12, 22)]
    assert not page.is_end


def test_pages_are_found_one_after_the_other(rig: Rig, client: RigClient) -> None:
    prepare(rig, range(MANY))
    client.say(*(Recover(number, b"", 1, False) for number in range(1, 4)))
    heard: list[int] = []
    rig.feed(Tick(SET))
    while wake(rig):
        heard.append(len(client.heard_of(Recovered)))
    assert [page.request for page in client.heard_of(Recovered)] == [1, 2, 3]
    assert heard.index(3) - heard.index(1) >= MANY // 1000


def test_whoever_left_is_not_looked_for(rig: Rig, client: RigClient) -> None:
    prepare(rig, range(MANY))
    client.say(Recover(1, b"", 1, False), Recover(2, b"", 1, False))
    client.lose_stream()
    assert turns(rig) <= MANY // 1000 + 2


def test_how_many_transactions_stand_is_found_in_pieces(rig: Rig, client: RigClient) -> None:
    prepare(rig, range(1000))
    names = tuple(xid(number) for number in range(2000))
    client.say(FindBranches(1, names))  # type: ignore[arg-type]
    assert not client.heard_of(BranchesFound)
    assert turns(rig) >= 50
    (found,) = client.heard_of(BranchesFound)
    assert [end.is_prepared for end in found.ends] == [True] * 1000 + [False] * 1000


def test_a_new_primary_looks_after_prepared_branches_in_pieces(rig: Rig) -> None:
    prepare(rig, range(MANY))
    look = rig.core._housekeeping.look_after_prepared()
    steps = list(look)
    assert max(steps) < PIECE_COST / 100 and sum(steps) >= MANY
    assert rig.core.context.doubts.figures(rig.wall_ms).count == MANY
    assert len(rig.core.context.questions.xids(rig.state.transactions)) == MANY


def test_branches_that_ended_before_their_turn_are_not_looked_after(rig: Rig) -> None:
    prepare(rig, range(10))
    look = rig.core._housekeeping.look_after_prepared()
    next(look)
    end(rig, 5)
    list(look)
    assert rig.core.context.doubts.figures(rig.wall_ms).count == 9


def test_no_other_branch_is_looked_at_where_a_queue_ends(
    rig: Rig, client: RigClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = QueueId(client.declare("kept", is_auto_delete=True))
    client.declare("ends", is_auto_delete=True)
    consumers = [client.consume(name) for name in ("kept", "ends")]
    prepare(rig, range(100))
    prepare(rig, range(100, 101), kept)
    monkeypatch.setattr(Transactions, "prepared", lambda _: pytest.fail("all are looked at"))
    monkeypatch.setattr("tests.unit.services.primary.primary_rig.check_invariants", lambda _: None)
    client.say(*map(CloseConsumer, consumers))
    assert list(rig.state.queues.by_name) == ["kept"]


def test_transactions_that_time_out_together_are_rolled_back_in_turns() -> None:
    rig = Rig(PrimarySettings(time_outs_max=10))
    client = rig.client()
    client.declare("q")
    for _ in range(25):
        key = client.begin(timeout_ms=1000)
        client.ok(publish("q", b"x", transaction=key, sequence=1))
    rig.pass_time(2000)
    left = [len(rig.state.transactions.open())]
    while wake(rig):
        left.append(len(rig.state.transactions.open()))
    assert left[:3] == [15, 5, 0]


def silent_for_long(count: int) -> tuple[Rig, list[RigClient]]:
    """Consumers of one queue that have said nothing for longer than they may, right behind the tick that finds out."""
    rig = Rig(PrimarySettings(client_silence_ms=5000))
    clients = [rig.client() for _ in range(count)]
    clients[0].declare("q")
    for each in clients:
        each.consume("q")
    rig.pass_time(6000)
    return rig, clients


def test_streams_that_are_silent_together_are_closed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.primary.core.attachments.CLOSED_MAX", 42)
    rig, clients = silent_for_long(6)
    closed = [sum(each.is_closed for each in clients)]
    while wake(rig):
        closed.append(sum(each.is_closed for each in clients))
    assert closed[:3] == [2, 4, 6]


def test_a_stream_that_speaks_before_its_turn_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.primary.core.attachments.CLOSED_MAX", 1)
    rig, clients = silent_for_long(2)
    clients[1].say()
    turns(rig)
    assert [each.is_closed for each in clients] == [True, False]


def test_a_tick_looks_at_few_of_the_sessions_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.primary.core.attachments.LOOKED_AT_MAX", 4)
    rig = Rig(PrimarySettings())
    clients = [rig.client(timeout_ms=1000) for _ in range(10)]
    for each in clients:
        each.lose_stream()
    rig.pass_time(500)
    assert not rig.core.attachments.is_behind and len(rig.state.sessions.by_key) == 10
    rig.pass_time(600)
    assert len(rig.state.sessions.by_key) == 6
    rig.pass_time(50)
    rig.pass_time(50)
    assert not rig.state.sessions.by_key


def test_a_new_primary_begins_to_wait_for_some_sessions_at_each_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(PrimarySettings())
    for _ in range(10):
        rig.client(timeout_ms=1000)
    monkeypatch.setattr("services.primary.core.attachments.LOOKED_AT_MAX", 4)
    attachments = Attachments(rig.core.context, rig.core.streams, rig.core._aftermath)
    ended = []
    for _ in range(4):
        rig.core.context.now = rig.now
        attachments.look()
        attachments.end_timed_out()
        ended.append(10 - len(rig.state.sessions.by_key))
        rig.boottime_ms += 1000
    assert ended == [0, 4, 8, 10]


def test_names_are_compared_with_the_directory_in_pieces(rig: Rig) -> None:
    rig.feed(Tick(SET))  # Its own first look finds nothing.
    names = tuple(("queue", f"q{number:05d}") for number in range(MANY))
    for name in names:
        rig.directory[name] = SET
    rig.feed(NamesSeen(SET, names))
    assert turns(rig) >= MANY // 500 - 1 and len(rig.directory) == MANY
    rig.feed(NamesSeen(SET, names))
    turns(rig)
    assert len(rig.directory) == MANY - rig.core.context.settings.names_batch_max
    assert names[-1] in rig.directory and names[0] not in rig.directory


def described(client: RigClient) -> list[Description]:
    return client.heard_of(Description)


def test_queues_and_exchanges_are_told_by_pages_in_the_order_of_their_declarations(client: RigClient) -> None:
    names = [f"q{number}" for number in range(7)]
    for name in names[:4]:
        client.declare(name)
    client.exchange("x")
    for name in names[4:]:
        client.declare(name)
    pages: list[Description] = []
    token = 0
    while token or not pages:
        client.say(Describe(len(pages), page_size=3, page_token=token))
        pages.append(described(client)[-1])
        token = pages[-1].next_page_token
    assert [[queue.name for queue in page.queues] for page in pages] == [names[:3], names[3:5], names[5:]]
    assert [[name for name, _, _ in page.exchanges] for page in pages] == [[], ["x"], []]


def test_a_queue_that_ends_between_two_pages_takes_no_other_along(client: RigClient) -> None:
    for number in range(6):
        client.declare(f"q{number}")
    client.say(Describe(1, page_size=2))
    token = described(client)[0].next_page_token
    for name in ("q1", "q2"):
        client.ok(DeleteQueueCommand(0, name))
    client.say(Describe(2, page_size=2, page_token=token))
    assert [queue.name for queue in described(client)[1].queues] == ["q3", "q4"]


def test_no_page_is_longer_than_what_is_written_in_some_milliseconds(
    client: RigClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.primary.core.describing.PAGE_MAX", 4)
    for number in range(9):
        client.declare(f"q{number}")
    for number, size in enumerate((0, 100, 4)):
        client.say(Describe(number, page_size=size))
        assert len(described(client)[-1].queues) == 4 and described(client)[-1].next_page_token


def test_a_page_is_looked_for_in_pieces(rig: Rig, client: RigClient) -> None:
    for number in range(1, 20_001):
        rig.state.exchanges.by_id[ExchangeId(1_000_000 + number)] = Exchange(
            ExchangeId(1_000_000 + number), f"x{number}", "fanout", True
        )
    rig.state.exchanges.by_name.update({one.name: one for one in rig.state.exchanges.by_id.values()})
    client.say(Describe(1, page_size=10))
    assert not described(client)
    assert turns(rig) >= 2
    (page,) = described(client)
    assert [name for name, _, _ in page.exchanges] == [f"x{number}" for number in range(1, 11)]
    rig.state.exchanges.by_id.clear()
    rig.state.exchanges.by_name.clear()


def test_a_consumer_among_thousands_of_a_queue_leaves_without_a_look_at_the_others(rig: Rig) -> None:
    looked_at = 0

    class Counted(Consumer):
        def __eq__(self, other: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return self is other

        def __hash__(self) -> int:
            return id(self)

    owner = rig.client()
    queue = QueueId(owner.declare("q"))
    consumers = [Counted(1, number, owner.session, queue, 0, False) for number in range(1000)]
    for consumer in consumers:
        rig.core.context.dispatch.add_consumer(consumer)
    for consumer in reversed(consumers):
        rig.core.context.dispatch.remove_consumer(consumer)
    assert looked_at <= 1000
    assert rig.core.context.dispatch.consumer_count(queue) == 0


def test_what_thousands_of_consumers_wait_for_is_delivered_in_turns() -> None:
    rig = Rig(PrimarySettings(deliveries_max=10))
    owner = rig.client()
    owner.declare("q")
    clients = [rig.client() for _ in range(35)]
    for each in clients:
        each.consume("q", credit=1)
    owner.publish("q", *[b"x"] * 40)
    served = [sum(bool(each.in_hand) for each in clients)]
    while wake(rig):
        served.append(sum(bool(each.in_hand) for each in clients))
    assert served[:4] == [10, 20, 30, 35]
    assert all(len(each.in_hand) == 1 for each in clients)


def test_all_streams_hear_of_the_end_of_a_reign_and_are_let_go_of_in_pieces(rig: Rig) -> None:
    count = TAKEN_OUT_IN_ONE
    for _ in range(count):
        rig.client()
    effects = rig.core.stop("the lease is over")
    told = [effect.stream for effect in effects if isinstance(effect, TellClient)]
    closed = [effect.stream for effect in effects if isinstance(effect, CloseClientStream)]
    assert told == closed == sorted(set(told)) and len(told) >= count
    assert not rig.core.streams.by_number
    costs = list(rig.core.streams.take_apart())
    assert len(costs) > 2 and max(costs) <= 2 * TAKEN_OUT_IN_ONE


@pytest.mark.parametrize("with_state_hash", [False, True])
def test_a_description_in_pieces_waits_for_no_tick(with_state_hash: bool) -> None:
    rig = Rig(PrimarySettings(piece_cost=1))
    client = rig.client()
    for number in range(20):
        client.declare(f"q{number}")
    turns(rig)
    client.say(Describe(1, with_state_hash=with_state_hash))
    assert rig.core.context.pieces.works and rig.wakes
    while wake(rig):
        pass
    assert described(client)
