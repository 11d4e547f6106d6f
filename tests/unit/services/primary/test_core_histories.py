"""Random histories of several sessions against one primary core, through lost streams, a lost lease, slow disks and failovers.

What holds whatever they do: the core never raises, its state keeps the invariants of `lockstep.core.invariants`, nothing is said
before it is committed (the rig checks both), and a replica fed with the frames is equal to it.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.commands import (
    AnyCommand,
    BeginCommand,
    BindCommand,
    CommitCommand,
    DeclareExchangeCommand,
    DeclareQueueCommand,
    DeleteExchangeCommand,
    DeleteQueueCommand,
    OutgoingMessage,
    PublishCommand,
    PurgeQueueCommand,
    QueueOptions,
    RollbackCommand,
    SettleCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SessionId, TransactionKey
from lockstep.core.inputs import LeaseExtended, StoreConnected, StoreLost, Woken
from lockstep.core.requests import (
    AnyRequest,
    Browse,
    CloseConsumer,
    Describe,
    DescribeQueue,
    DetachSession,
    DrainConsumer,
    GetOutcome,
    GrantCredit,
    Heartbeat,
    OpenConsumer,
)
from lockstep.core.server_messages import (
    AttachRefused,
    PushedBack,
    SessionAttached,
    SessionEnded,
)
from services.primary.core.settings import PrimarySettings
from tests.kept_properties import kept_properties
from tests.unit.services.primary.primary_rig import LEASE_MS, SET, Rig, RigClient

COLOURED = tuple(kept_properties(colour=colour) for colour in ("red", "blue"))
QUEUES = ("q", "r", "limited", "ring", "short", "dead", "nowhere")
EXCHANGES = ("", "fan", "topic", "headers", "nowhere")
SMALL = PrimarySettings(
    frame_bytes_max=200,
    uncommitted_bytes_max=3000,
    backlog_messages_max=3,
    delivery_batch_max=3,
    delivery_turn_max=5,
    transactions_open_max=4,
    session_transactions_open_max=3,
    transaction_bytes_max=40,
    browses_waiting_max=1,
    questions_waiting_max=4,
    client_silence_ms=3000,
    transaction_operations_max=12,
    outcome_retention_ms=2000,
    outcome_sweep_ms=300,
    expiry_batch_max=3,
    command_messages_max=8,
    stream_consumers_max=3,
)


class Walker:
    """One client that goes by the protocol, and sometimes does not."""

    def __init__(self, history: "History", name: str) -> None:
        self.history = history
        self.random = history.random
        self.client = RigClient(history.rig, SessionId(name))
        self.lives = 0
        self.transactions: dict[TransactionKey, int] = {}
        """Operations sent in each."""
        self.heard = 0
        self.client.attach(timeout_ms=2000)

    def step(self) -> None:
        if self.client.is_closed or not self.client.stream or self.random.random() < 0.03:
            self.come_back()
        elif self.is_lost():
            self.begin_anew()
        elif not self.client.session:
            pass
        elif any(isinstance(message, PushedBack) for message in self.client.heard):
            pushed = self.client.heard_of(PushedBack)[-1]
            self.client.heard.clear()
            self.send_again(pushed.number)
        else:
            self.client.heard.clear()
            self.random.choice((self.command, self.command, self.command, self.request, self.misbehave))()

    def is_lost(self) -> bool:
        return any(isinstance(message, AttachRefused | SessionEnded) for message in self.client.heard)

    def begin_anew(self) -> None:
        self.lives += 1
        name = f"{self.client.session_id.split('/')[0]}/{self.lives}"
        self.client = RigClient(self.history.rig, SessionId(name))
        self.transactions.clear()
        self.client.attach(timeout_ms=2000)

    def come_back(self) -> None:
        client = self.client
        client.rig = self.history.rig
        self.transactions = {
            key: n for key, n in self.transactions.items() if key[1] == client.rig.core.epoch
        }
        client.heard.clear()
        if self.random.random() < 0.3:
            client.in_hand = dict(list(client.in_hand.items())[1:])
        heard = 0
        while heard + 1 in client.answers:
            heard += 1
        client.resume(heard=min(heard, client.number))
        attached = client.heard_of(SessionAttached)
        if attached:
            self.send_again(attached[-1].next_number)

    def send_again(self, number: int) -> None:
        for again in range(number, self.client.number + 1):
            self.client.say(self.client.sent[again])

    # --- what it does ---

    def misbehave(self) -> None:
        """A repetition, a gap, a command on the wrong transaction."""
        client, random = self.client, self.random
        if client.number and random.random() < 0.5:
            client.say(client.sent[random.randint(1, client.number)])
        else:
            everybodys = [key for walker in self.history.walkers for key in walker.transactions]
            key = random.choice([*everybodys, (LogIndex(random.randrange(50)), Epoch(random.randrange(3)))])
            self.send(random.choice((CommitCommand(0, key, 1), RollbackCommand(0, key))))

    def request(self) -> None:
        random, client = self.random, self.client
        consumer, queue = random.randrange(4), random.choice(QUEUES)
        transactions = [*self.transactions, (LogIndex(7), Epoch(1))]
        requests: tuple[AnyRequest, ...] = (
            OpenConsumer(consumer, queue, random.randrange(6), random.random() < 0.1),
            OpenConsumer(consumer, queue, random.randrange(6)),
            OpenConsumer(consumer, queue, random.randrange(6), selector="colour = 'red'"),
            OpenConsumer(consumer, queue, random.randrange(6), is_browser=True),
            GrantCredit(consumer, random.randrange(6)),
            DrainConsumer(consumer),
            CloseConsumer(consumer),
            Browse(1, queue, QueuePosition(random.randrange(1 << 30)), random.randrange(5)),
            GetOutcome(2, random.choice(transactions), random.random() < 0.3),
            Describe(3),
            DescribeQueue(4, queue),
            Heartbeat(),
            *([DetachSession()] if random.random() < 0.1 else []),
        )
        client.say(random.choice(requests))

    def command(self) -> None:
        self.learn_of_transactions()
        choice = self.random.random()
        if choice < 0.3:
            self.publish()
        elif choice < 0.6:
            self.settle()
        elif choice < 0.8:
            self.transact()
        else:
            self.send(self.wiring())

    def send(self, command: AnyCommand) -> None:
        if self.client.number - self.answered() < 20:
            self.client.command(command)

    def answered(self) -> int:
        return max(self.client.answers, default=0)

    def learn_of_transactions(self) -> None:
        epoch = self.history.rig.core.epoch
        for number, answered in self.client.answers.items():
            if number <= self.heard or answered.code is not ErrorCode.NONE:
                continue
            match self.client.sent.get(number):
                case BeginCommand():
                    begun = range(answered.value, answered.value + 1)
                case CommitCommand(begins=begins, transaction=key) if answered.value > key[0]:
                    begun = range(answered.value - begins, answered.value)
                case _:
                    continue
            self.heard = number
            self.transactions |= dict.fromkeys([(LogIndex(index), epoch) for index in begun], 0)

    def transaction(self) -> tuple[TransactionKey | None, int]:
        if not self.transactions or self.random.random() < 0.4:
            return None, 0
        key = self.random.choice(sorted(self.transactions))
        self.transactions[key] += 1
        return key, self.transactions[key] + (self.random.random() < 0.03)

    def publish(self) -> None:
        transaction, sequence = self.transaction()
        self.send(PublishCommand(0, *self.target(), self.messages(), transaction, sequence))

    def target(self) -> tuple[str, str]:
        return self.random.choice(EXCHANGES), self.random.choice(QUEUES)

    def messages(self) -> tuple[OutgoingMessage, ...]:
        random = self.random
        self.history.bodies += 1
        priorities = random.choice(((4,), (4,), (4, 9), (0, 4, 5, 9)))
        return tuple(
            OutgoingMessage(
                random.choice((b"", *COLOURED)),
                b"%d.%d" % (self.history.bodies, number) + bytes(random.choice((0, 0, 100))),
                random.random() < 0.7,
                random.choice((0, 0, 0, 300)),
                (("colour", random.choice(("red", "blue"))),),
                random.choice(priorities),
            )
            for number in range(random.randrange(1, 6))
        )

    def settle(self) -> None:
        random, client = self.random, self.client
        if not client.in_hand:
            return
        queue = random.choice(sorted({name for name, _ in client.in_hand}))
        positions = [position for name, position in client.in_hand if name == queue]
        chosen = tuple(random.sample(positions, random.randint(1, len(positions))))
        transaction, sequence = self.transaction()
        disposition = 1 if transaction and random.random() < 0.97 else random.randint(1, 4)
        epoch = self.history.rig.core.epoch
        for position in chosen:
            del client.in_hand[queue, position]
        excluded = random.randrange(4) if random.random() < 0.3 else 0
        said = random.choice((b"", b"\xa3\x01a\x41", b"\xa3\x01b\x41")) if disposition in (2, 3) else b""
        self.send(SettleCommand(0, queue, epoch, chosen, disposition, transaction, sequence, excluded, said))

    def transact(self) -> None:
        random = self.random
        if not self.transactions or random.random() < 0.3:
            self.send(BeginCommand(0, random.choice((0, 0, 500))))
            return
        key = random.choice(sorted(self.transactions))
        operations = self.transactions.pop(key) + (random.random() < 0.05)
        if random.random() < 0.3:
            self.send(RollbackCommand(0, key))
            return
        begins, last = random.choice((0, 0, 1, 2)), None
        if random.random() < 0.4:
            operations += 1
            last = PublishCommand(0, *self.target(), self.messages(), key, operations)
        self.send(CommitCommand(0, key, operations, begins, last))

    def wiring(self) -> AnyCommand:
        random = self.random
        queue, exchange = random.choice(QUEUES), random.choice(EXCHANGES[1:4])
        if random.random() < 0.3:
            return DeclareQueueCommand(0, queue, OPTIONS[queue])
        if random.random() < 0.3:
            kind = {"fan": "fanout"}.get(exchange, exchange)
            return DeclareExchangeCommand(0, exchange, kind, exchange != "topic")
        own = QueueOptions(is_exclusive=True)
        auto = QueueOptions(is_auto_delete=True, is_durable=random.random() < 0.5)
        return random.choice(
            (
                BindCommand(0, exchange, queue, "#", (("colour", "red"),) if exchange == "headers" else ()),
                BindCommand(0, exchange, queue, queue, (), random.random() < 0.3),
                DeclareQueueCommand(0, f"own-{self.client.session_id}", own),
                DeclareQueueCommand(0, "nowhere", auto),
                DeleteQueueCommand(0, queue, random.random() < 0.5, random.random() < 0.5),
                DeleteExchangeCommand(0, exchange, random.random() < 0.5),
                PurgeQueueCommand(0, queue),
            )
        )


OPTIONS = {
    "q": QueueOptions(dead_letter_exchange="", dead_letter_key="dead", delivery_count_max=2),
    "r": QueueOptions(is_durable=False),
    "limited": QueueOptions(length_max=6, bytes_max=400),
    "ring": QueueOptions(length_max=4, is_evicting=True),
    "short": QueueOptions(message_ttl_ms=200, dead_letter_exchange="fan"),
    "dead": QueueOptions(message_ttl_ms=500, dead_letter_exchange="", dead_letter_key="q", length_max=5),
    "nowhere": QueueOptions(is_auto_delete=True, dead_letter_key="nowhere"),
}


class History:
    """A world of walkers; `step` lets one thing happen."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rig = Rig(SMALL)
        self.bodies = 0
        self.walkers: list[Walker] = []
        setter_up = self.rig.client("setter-up")
        for name, options in OPTIONS.items():
            setter_up.declare(name, **{field: getattr(options, field) for field in options.__slots__})
        setter_up.exchange("fan", "q", "r", "limited", "ring")
        setter_up.exchange("topic", "q", "r", kind="topic", is_durable=False)
        setter_up.say(DetachSession())
        self.walkers += [Walker(self, f"w{number}") for number in range(3)]

    def step(self) -> None:
        chance, rig = self.random.random(), self.rig
        if chance < 0.75:
            self.random.choice(self.walkers).step()
        elif chance < 0.83:
            rig.pass_time(self.random.choice((20, 100, 400)))
        elif chance < 0.88:
            rig.holds_store = True
        elif chance < 0.94:
            rig.acknowledge(self.random.choice((1, 1 << 30)))
            rig.holds_store = rig.holds_store and self.random.random() < 0.5
        elif chance < 0.95:
            rig.lose_lease()
        elif chance < 0.965:
            rig.feed(LeaseExtended(SET, 1, LEASE_MS))
        elif chance < 0.975:
            rig.holds_claims = not rig.holds_claims
        elif chance < 0.985:
            while rig.claims:
                rig.claimed()
        elif chance < 0.99:
            rig.feed(StoreLost(SET))
            rig.unacknowledged.clear()
            rig.feed(StoreConnected(SET))
        elif chance < 0.995:
            self.fail_over()
        elif rig.wakes:
            self.wake()

    def fail_over(self) -> None:
        rig = self.rig
        rig.acknowledge()
        self.rig = Rig(SMALL, predecessor=rig, is_restarted=self.random.random() < 0.3)
        for walker in self.walkers:
            walker.client.rig = self.rig
            walker.client.stream = 0
            walker.client.in_hand.clear()

    def wake(self) -> None:
        """What was too much for one go goes on."""
        self.rig.wakes.clear()
        self.rig.boottime_ms += 1
        self.rig.feed(Woken(SET))

    def end(self) -> None:
        rig = self.rig
        rig.holds_store = rig.holds_claims = False
        rig.feed(LeaseExtended(SET, 1, LEASE_MS))
        rig.acknowledge()
        while rig.claims:
            rig.claimed()
        rig.pass_time(50)
        while rig.wakes:
            self.wake()
        assert not rig.core.client_hearing.clients.purges.are_waiting
        rig.check_log()
        names = {("queue", name) for name in rig.state.queues.by_name}
        names |= {("exchange", name) for name in rig.state.exchanges.by_name}
        assert names <= rig.directory.keys(), "a name is used that is not this set's"
        sessions = set(rig.state.sessions.by_key)
        held = {session for session, _, positions in rig.core.context.dispatch.held() if positions}
        assert held <= sessions, "somebody holds messages who is no more"


@pytest.mark.fuzz
@given(st.integers(0, 1 << 32), st.integers(0, 250))
def test_no_history_breaks_the_core(seed: int, steps: int) -> None:
    history = History(seed)
    for _ in range(steps):
        history.step()
    history.end()
