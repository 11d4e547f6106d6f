"""Distributed transactions over one to three resource sets: accept from a queue of one, publish to queues of all, end by any
coordinator, and find out.
"""

from random import Random

from lockstep.core.commands import (
    BeginCommand,
    Disposition,
    EndCommand,
    PrepareBranchCommand,
    RollbackCommand,
    SelectDtxCommand,
    SettleCommand,
    StartCommand,
)
from lockstep.core.ids import TransactionKey
from services.coordinator.core.messages import (
    BegunAnswer,
    CloseAsked,
    CommitAsked,
    EnlistAsked,
    OutcomeAnswer,
    OutcomeAsked,
    RequestId,
    RollbackAsked,
    State,
)
from tests.simulation.client import Client, ClientSession
from tests.simulation.coordinator_calls import BeginCall, Begun, Call, call
from tests.simulation.distributed import DistributedTransaction
from tests.simulation.loop import MS
from tests.simulation.promises import Actor, Inbox, Promise
from tests.simulation.workloads.producing import messages, publish_to
from tests.simulation.workloads.queues import declare, name
from tests.simulation.workloads.transferring import give_back, taken_positions

BEGIN_PATIENCE_US = 1_000 * MS
END_PATIENCE_MS = (300, 2_000, 8_000)
"""How long a client waits for an end before it asks elsewhere."""
NO_REQUEST = RequestId(0)
FINAL = (State.COMMITTED, State.ROLLED_BACK)


def distribute(client: Client) -> Actor:
    """Work of one client with sessions in all sets, until the world's work is over."""
    world = client.world
    sessions = list(client.sessions.values())
    for session in sessions:
        yield from declare(session)
    taking = {session.set_name: session.consume(name(session.set_name, "in"), 3) for session in sessions}
    while sessions[0].is_working:
        yield think_us(client)
        chosen = world.random.sample(sessions, world.random.choice((1, 2, 2, 3, 3)))
        yield from transact(client, chosen, *taking[chosen[0].set_name])


def transact(client: Client, sessions: list[ClientSession], consumer: int, inbox: Inbox) -> Actor:
    """One transaction, from its begin to an end that the client knows; it takes from the first session's set."""
    random, source = client.world.random, sessions[0]
    begun = ask(client, BeginCall(random.choice((0, 0, 2_000))), BEGIN_PATIENCE_US)
    yield begun
    if not isinstance(begun.value, Begun):
        return
    mine = DistributedTransaction(
        client.name,
        begun.value.global_id,
        begun.value.generation,
        tuple(session.set_name for session in sessions),
        client.world.loop.now_us,
    )
    client.world.coordinators.begun.append(mine)
    manner = mine.global_id[-1] % 3
    # As a client that does not know yet that it will touch a second set, or as one that has transactions in reserve in all.
    beginning = [session.submit(BeginCommand(0, 0)) for session in ([], sessions[:1], sessions)[manner]]
    yield from beginning
    begun_in = [_transaction(promise) for promise in beginning] + [None] * len(sessions)
    if begun_in[0] is not None:
        source.submit(publish_to(source, "a", messages(source, 1), begun_in[0]))
        client.world.branches.reach("distributed: begun as a TX")
    starting = [
        _start(client, mine, number, session, begun_in[number]) for number, session in enumerate(sessions)
    ]
    is_hasty = None not in begun_in[: len(sessions)]
    if is_hasty:
        client.world.branches.reach("distributed: works before branches have begun")
    else:
        yield from starting
    taken = inbox.waiting[: random.randint(1, 2)]
    inbox.waiting = inbox.waiting[len(taken) :]
    keys = begun_in if is_hasty else [_transaction(promise) for promise in starting]
    if is_hasty or all(_is_ok(promise) for promise in starting):
        held = sorted(taken_positions(taken).items())
        settling = [
            source.submit(
                SettleCommand(0, name(source.set_name, "in"), epoch, positions, Disposition.ACCEPT, keys[0])
            )
            for epoch, positions in held
        ]
        ending = [
            _work(mine, number, session, keys[number], len(held) if number == 0 else 0)
            for number, session in enumerate(sessions)
        ]
        yield from ending
        if random.random() < 0.3:
            yield think_us(client) // 2
        is_whole = all(
            _is_ok(promise) and promise.operation is not None and promise.operation.value == 0
            for promise in ending
        )
        yield from settling
    else:
        is_whole = False
        yield from give_back(source, "in", taken_positions(taken))
    if is_whole and mine.global_id[-1] % 4 == 1:
        # As a worker of each branch, who does not know the others.
        yield from [session.submit(_vote(mine, number)) for number, session in enumerate(sessions)]
        client.world.branches.reach("distributed: prepared by its workers")
    for session, started, tx in zip(sessions, starting, begun_in, strict=False):
        if tx is not None and not _is_ok(started):
            # It is no branch, and nobody else would end it.
            yield session.submit(RollbackCommand(0, tx))
    if random.random() < 0.05:
        mine.is_abandoned = True
    else:
        yield from end(client, mine, _first_wish(random, is_whole))
    source.grant(consumer, len(taken))


def _is_ok(promise: Promise) -> bool:
    return promise.operation is not None and promise.operation.is_ok


def _transaction(promise: Promise) -> TransactionKey | None:
    return promise.operation.transaction if promise.operation is not None else None


def think_us(client: Client) -> int:
    """A pause between two pieces of work over several sets."""
    coordination = client.world.options.coordination
    assert coordination is not None, "a world with coordinators"
    return int(client.world.random.expovariate(1.0 / coordination.think_us))


def ask(client: Client, message: Call, patience_us: int) -> Promise:
    """A call to any coordinator."""
    return call(client, client.world.random.choice(client.world.coordinators.places), message, patience_us)


def end(client: Client, mine: DistributedTransaction, wish: str) -> Actor:
    """Ask, of any coordinator, until the answer is final; who commits may ask for the outcome next, or commit again."""
    random, world = client.world.random, client.world
    while not next(iter(client.sessions.values())).is_closed:
        asking = ask(client, _message(mine, wish, random), random.choice(END_PATIENCE_MS) * MS)
        yield asking
        answer = asking.value
        if isinstance(answer, BegunAnswer):
            mine.is_closed, wish = True, "commit"
            continue
        if isinstance(answer, OutcomeAnswer) and answer.state in FINAL:
            world.branches.reach(f"distributed: {answer.state.value}")
            mine.told.append(answer.state)
            mine.hazards += [f"{participant}: {ended}" for participant, ended in answer.hazards]
            if random.random() < 0.8:
                return
            wish = random.choice(("commit", "outcome"))
        elif isinstance(answer, OutcomeAnswer) and answer.state is State.NOT_KNOWN:
            world.branches.reach("distributed: not known")
            if mine.told:
                return
            if _is_too_old(client, mine):
                mine.is_forgotten = True
                return
            wish = "rollback"
        else:
            world.branches.reach("distributed: asked again")
            wish = _next_wish(random, wish)
        yield 50 * MS


def _first_wish(random: Random, is_whole: bool) -> str:
    if not is_whole or random.random() < 0.08:
        return "rollback"
    return "close" if random.random() < 0.15 else "commit"


def _next_wish(random: Random, wish: str) -> str:
    match wish:
        case "close":
            return random.choice(("close", "rollback"))
        case "commit":
            return random.choice(("commit", "outcome", "outcome", "rollback"))
        case _:
            return wish


def _message(mine: DistributedTransaction, wish: str, random: Random) -> Call:
    fixed = (NO_REQUEST, mine.global_id, mine.generation, mine.participants)
    match wish:
        case "close":
            return CloseAsked(*fixed)
        case "commit":
            return CommitAsked(*fixed, is_closed=mine.is_closed)
        case "rollback":
            return RollbackAsked(*fixed, is_closed=mine.is_closed)
        case _:
            return OutcomeAsked(NO_REQUEST, mine.global_id, is_fence=random.random() < 0.7)


def _is_too_old(client: Client, mine: DistributedTransaction) -> bool:
    coordination = client.world.options.coordination
    assert coordination is not None, "a world with coordinators"
    limits = coordination.limits
    return client.world.loop.now_us - mine.begun_us > (limits.age_ms_max + limits.clock_ms) * MS


def _start(
    client: Client,
    mine: DistributedTransaction,
    number: int,
    session: ClientSession,
    tx: TransactionKey | None,
) -> Promise:
    """Enlist the set and begin its branch, or make one of a TX; the name of a branch follows from that of the transaction."""
    participant = mine.participants[number]
    enlist = EnlistAsked(NO_REQUEST, mine.global_id, mine.generation, number, participant)
    ask(client, enlist, BEGIN_PATIENCE_US)
    session.submit(SelectDtxCommand(0, False, True))
    return session.submit(StartCommand(0, mine.xid(number).encode(), transaction=tx))


def _vote(mine: DistributedTransaction, number: int) -> PrepareBranchCommand:
    return PrepareBranchCommand(0, mine.xid(number).encode())


def _work(
    mine: DistributedTransaction,
    number: int,
    session: ClientSession,
    key: TransactionKey | None,
    operations: int,
) -> Promise:
    """Publish in the branch, behind so many operations, and end the session's work in it."""
    random = session.world.random
    queues = random.sample(("a", "b", "in"), random.choice((1, 2)))
    for queue in queues:
        session.submit(publish_to(session, queue, messages(session, 1), key))
    return session.submit(EndCommand(0, mine.xid(number).encode(), operations + len(queues)))
