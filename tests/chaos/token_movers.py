"""Numbered tokens that clients move between two queues, in two resource sets, and a table: each move a distributed transaction.

Law: a token carries the number of the move that brought it where it is. So the moves that happened are a chain for each
token, from where it is back to the beginning, and every answer that a client got can be held against it: what was told to have
committed is in the chain, what was told to have rolled back is not, and a token that was lost or doubled has no chain, or two.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import psycopg

from lockstep.client import TransactionState
from lockstep.client.client import Client, connect
from lockstep.client.consumer import Consumer, Message
from lockstep.client.distributed_transaction import DistributedTransaction
from lockstep.client.session import Session
from lockstep.core.errors import LockstepError
from lockstep.wire.v1 import coordinator_pb2 as pb
from tests.chaos.token_cluster import Connection, TokenCluster
from tests.integration.coordination import COMMITTED, ROLLED_BACK

TABLE = "table"
QUEUES = {"east.tokens": "east", "west.tokens": "west"}
"""With the set of each: two primaries."""
PLACES = (TABLE, *QUEUES)
WITNESSES = "north.moves"
"""A queue in a third set: it gets the numbers of some moves, in the same transactions."""
HANGS_SECONDS = 120.0
"""A move that takes longer hangs: its calls to coordinators have 30 s each."""
RESOLVE_SECONDS = 25.0
NOT_KNOWN_SECONDS = 2.0
"""A transaction of which the log has nothing for so long was never asked to commit: its client gave up before."""
ASKED_AT_ONCE = 50
IMPATIENT = 0.1
"""Of the moves: their client gives the commit up before it is answered, as one that dies, and asks for the outcome later."""
IMPATIENT_SECONDS = 0.08
PACE_SECONDS = 0.01
"""Between two moves of a client: processes that start again need some of the processors, too."""


@dataclass(slots=True)
class Move:
    """One client's attempt, and what it was told."""

    number: int
    source: str
    target: str
    has_witness: bool
    token: int = -1
    before: int = 0
    """The move that brought the token to `source`; 0: it was placed there."""
    transaction: DistributedTransaction | None = None
    told: "pb.DistributedState.ValueType | None" = None
    was_in_doubt: bool = False
    is_under_way: bool = True
    was_there: bool = False
    """The token was in the table already: its message is of an earlier epoch, and somebody else has moved it since. Then the
    queue refuses it, and the move is rolled back (DESIGN T6)."""
    was_hit: bool = False
    """It was under way when something was killed."""

    @property
    def is_committing(self) -> bool:
        """Coordinators were asked to commit and have not answered."""
        return (
            self.is_under_way
            and self.transaction is not None
            and self.transaction.state is TransactionState.IN_DOUBT
        )


@dataclass(slots=True)
class Found:
    """Where everything is, when nothing is under way."""

    tokens: list[tuple[int, str, int]]
    """(token, place, number of its last move)."""
    witnesses: Counter[int]


class NothingThere(Exception):
    """No row to take."""


@dataclass
class TokenMovers:
    """Lives for one test: `place` the tokens, do harm while `running`, `find` and `check`."""

    cluster: TokenCluster
    chance: random.Random
    count: int = 40
    moves: list[Move] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    committed: int = 0
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _is_moving: bool = True

    async def place(self) -> None:
        """Tokens: half of them in the first queue, half in the table."""
        async with self.cluster.deployment.client() as client, client.session() as session:
            for queue, set_name in (*QUEUES.items(), (WITNESSES, "north")):
                await session.declare_queue(queue, set_name=set_name)
            await session.publish("east.tokens", [_body(token, 0) for token in range(0, self.count, 2)])
        async with await self.cluster.connect() as connection:
            await connection.execute("create table tokens (id int primary key, move int not null)")
            for token in range(1, self.count, 2):
                await connection.execute("insert into tokens values (%s, 0)", (token,))

    @contextlib.asynccontextmanager
    async def running(self, clients: int = 4) -> AsyncIterator[None]:
        """Clients move tokens inside the block; at its end they finish what they are at."""
        tasks = [asyncio.create_task(self._run(number)) for number in range(clients)]
        watch = asyncio.create_task(asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))
        try:
            yield
            assert not watch.done(), [task for task in tasks if task.done()]
        finally:
            self._is_moving = False
            try:
                async with asyncio.timeout(2 * HANGS_SECONDS):
                    await asyncio.gather(*tasks)
            finally:
                for task in (*tasks, watch):
                    task.cancel()
                await asyncio.gather(*tasks, watch, return_exceptions=True)

    async def note_kill(self, seconds: float = 60.0) -> None:
        """Call right before harm is done: returns when a move waits for its commit; all that are under way count as hit."""
        deadline = time.monotonic() + seconds
        while not any(move.is_committing for move in self.moves[-50:]):
            assert time.monotonic() < deadline, f"nothing is being committed: {self.errors}"
            await asyncio.sleep(0.001)
        for move in self.moves:
            move.was_hit |= move.is_under_way

    async def committed_since(self, count: int, seconds: float = 60.0) -> None:
        """Returns when `count` more moves have committed: the cluster works again."""
        target, deadline = self.committed + count, time.monotonic() + seconds
        while self.committed < target:
            assert time.monotonic() < deadline, (
                f"only {self.committed} of {target} commits in {seconds:g} s: {self.errors}"
            )
            await asyncio.sleep(0.01)

    # The end

    async def find(self) -> Found:
        """All tokens, wherever they are."""
        found: list[tuple[int, str, int]] = []
        rows = await self.cluster.query("select id, move from tokens")
        found += [(int(str(token)), TABLE, int(str(move))) for token, move in rows]
        async with self.cluster.deployment.client() as client, client.session() as session:
            for queue in QUEUES:
                async for message in session.browse(queue):
                    token, move = _parse(message.body)
                    found.append((token, queue, move))
            witnesses = Counter([int(message.body) async for message in session.browse(WITNESSES)])
        return Found(found, witnesses)

    async def check(self, found: Found) -> None:
        """Every token once, and every answer true. Call when nothing is in doubt."""
        times = Counter(token for token, _, _ in found.tokens)
        lost = [token for token in range(self.count) if not times[token]]
        twice = [each for each in found.tokens if times[each[0]] > 1]
        assert (lost, twice) == ([], []), f"lost {lost}, doubled {twice}"
        assert len(found.tokens) == self.count, "no token was invented"
        happened = self._chains(found)
        untrue = [
            move
            for move in self.moves
            if move.told is not None and (move.told == COMMITTED) != (move.number in happened)
        ]
        twice_taken = [move for move in self.moves if move.was_there and move.number in happened]
        assert not twice_taken, f"taken from a queue while in the table: {twice_taken}"
        assert not untrue, f"told otherwise than it was: {untrue}"
        expected = Counter(move.number for move in self.moves if move.number in happened and move.has_witness)
        assert found.witnesses == expected, (
            f"{found.witnesses - expected} too many, {expected - found.witnesses} missing"
        )
        await self._check_outcomes(happened)

    def _chains(self, found: Found) -> set[int]:
        """The moves that happened: for each token those from where it is back to where it began."""
        known = {move.number: move for move in self.moves}
        happened: set[int] = set()
        for token, place, number in found.tokens:
            while number:
                move = known[number]
                assert (move.token, move.target) == (token, place), f"token {token} at {place} by {move}"
                assert number not in happened, f"{move} happened twice"
                happened.add(number)
                place, number = move.source, move.before
        return happened

    async def _check_outcomes(self, happened: set[int]) -> None:
        """What coordinators say of every transaction, long after: a committed one is known for minutes."""
        begun = [(move, move.transaction) for move in self.moves if move.transaction and move.transaction.id]
        async with await self._connect() as client:
            for first in range(0, len(begun), ASKED_AT_ONCE):
                batch = begun[first : first + ASKED_AT_ONCE]
                states = await asyncio.gather(*(_outcome(client, tx, fence=False) for _, tx in batch))
                for (move, _), state in zip(batch, states, strict=True):
                    assert (state == COMMITTED) == (move.number in happened), (move, state)

    # Inside

    async def _connect(self) -> Client:
        return await connect(
            self.cluster.deployment.addresses,
            coordinators=[client.address for client in self.cluster.clients],
            patience_seconds=60,
        )

    async def _run(self, number: int) -> None:
        mover = Mover(self, random.Random(f"{self.chance.random()} {number}"))
        async with await self._connect() as client, client.session() as session:
            await mover.open(client, session)
            try:
                while self._is_moving:
                    await mover.move_one()
                    await asyncio.sleep(PACE_SECONDS)
            finally:
                await mover.close()

    def begin(self, source: str, target: str, has_witness: bool) -> Move:
        move = Move(next(self._numbers), source, target, has_witness)
        self.moves.append(move)
        return move


class Mover:
    """One client: a session, a consumer for each queue, and a connection to the database while that is up."""

    def __init__(self, movers: TokenMovers, chance: random.Random) -> None:
        self._movers = movers
        self._chance = chance
        self._connection: Connection | None = None
        self._consumers: dict[str, Consumer] = {}

    async def open(self, client: Client, session: Session) -> None:
        self._client, self._session = client, session
        for queue in QUEUES:
            self._consumers[queue] = await session.consume(queue, credit=2)

    async def close(self) -> None:
        for consumer in self._consumers.values():
            await consumer.close()
        await self._disconnect()

    async def move_one(self) -> None:
        """Takes a token where there is one and moves it, or tries to."""
        source, target = self._chance.sample(PLACES, 2)
        message: Message | None = None
        if source != TABLE:
            message = await self._consumers[source].next(0.1)
            if message is None:
                return
        try:
            if TABLE in (source, target) and not await self._is_connected():
                return
            move = self._movers.begin(source, target, self._chance.random() < 0.3)
            try:
                await asyncio.wait_for(self._move(move, message), HANGS_SECONDS)
            finally:
                move.is_under_way = False
        finally:
            if message is not None and not message.is_settled and not message.is_void:
                message.release()

    async def _move(self, move: Move, message: Message | None) -> None:
        """To its end, and to an answer."""
        move.transaction = transaction = self._session.distributed_transaction()
        try:
            async with transaction:
                await self._work(transaction, move, message)
                if self._chance.random() < IMPATIENT:
                    async with asyncio.timeout(self._chance.uniform(0, IMPATIENT_SECONDS)):
                        await transaction.commit()
        except NothingThere:
            pass
        except TimeoutError:
            self._movers.errors["impatience"] += 1
            await self._disconnect()
        except LockstepError as error:
            self._movers.errors[error.code.name] += 1
        except psycopg.Error as error:
            self._movers.errors[type(error).__name__] += 1
            await self._disconnect()
        match transaction.state:
            case TransactionState.COMMITTED:
                move.told = COMMITTED
            case TransactionState.ROLLED_BACK:
                move.told = ROLLED_BACK
            case TransactionState.IN_DOUBT:
                move.was_in_doubt = True
                move.told = await self._resolve(transaction)
            case state:
                raise AssertionError(f"{move} is still {state}")
        self._movers.committed += move.told == COMMITTED

    async def _work(self, transaction: DistributedTransaction, move: Move, message: Message | None) -> None:
        connection = self._connection
        if TABLE in (move.source, move.target):
            assert connection is not None, "it is connected"
            await transaction.enlist_postgres(connection, self._movers.cluster.participant_name)
        if message is not None:
            move.token, move.before = _parse(message.body)
            await transaction.accept(message)
        elif connection is not None:
            move.token, move.before = await self._delete_one(connection)
        if move.target == TABLE and connection is not None:
            cursor = await connection.execute(
                "insert into tokens values (%s, %s) on conflict do nothing", (move.token, move.number)
            )
            move.was_there = cursor.rowcount == 0
        else:
            await transaction.publish(move.target, [_body(move.token, move.number)])
        if move.has_witness:
            await transaction.publish(WITNESSES, [b"%d" % move.number])

    async def _delete_one(self, connection: Connection) -> tuple[int, int]:
        cursor = await connection.execute(
            "delete from tokens where id = (select id from tokens order by random() limit 1 for update skip locked) "
            "returning id, move"
        )
        row = await cursor.fetchone()
        if row is None:
            raise NothingThere
        return int(str(row[0])), int(str(row[1]))

    async def _resolve(self, transaction: DistributedTransaction) -> "pb.DistributedState.ValueType | None":
        """What became of it, as coordinators say; None: nobody could tell in time."""
        began = time.monotonic()
        known_at = began
        while time.monotonic() < min(began + RESOLVE_SECONDS, known_at + NOT_KNOWN_SECONDS):
            with contextlib.suppress(LockstepError):
                state = await _outcome(self._client, transaction, fence=True)
                if state in (COMMITTED, ROLLED_BACK):
                    return state
                if state != pb.DISTRIBUTED_STATE_NOT_KNOWN:
                    known_at = time.monotonic()
            await asyncio.sleep(0.2)
        return None

    async def _is_connected(self) -> bool:
        if self._connection is None or self._connection.closed:
            await self._disconnect()
            try:
                self._connection = await self._movers.cluster.connect()
            except psycopg.Error:
                return False
        return True

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _outcome(
    client: Client, transaction: DistributedTransaction, *, fence: bool
) -> "pb.DistributedState.ValueType":
    request = pb.GetDistributedOutcomeRequest(transaction_id=bytes.fromhex(transaction.id), fence=fence)
    return (await client.coordinators.call("GetOutcome", request, pb.GetDistributedOutcomeResponse())).state


def _body(token: int, move: int) -> bytes:
    return b"%d/%d" % (token, move)


def _parse(body: bytes) -> tuple[int, int]:
    token, _, move = body.partition(b"/")
    return int(token), int(move)
