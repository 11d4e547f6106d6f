"""Numbered senders and movers of both kinds on the same queues: AMQP clients through proxies, and gRPC clients.

Law: as of the workloads it is made of. A body is the message's number and the numbers of the attempts that brought it where it
is: `number>sending>moving`. So the outputs say of every attempt whether it committed, and whether as a whole. An AMQP client
cannot ask for an outcome: a discharge without an answer may have happened, and its sender does not send these numbers again.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proton import Message as AmqpMessage

from lockstep.client.client import Client
from lockstep.client.consumer import Message
from lockstep.client.session import Session
from lockstep.client.session_settings import SessionSettings
from lockstep.client.transaction import Transaction
from lockstep.core.commands import OutgoingMessage, QueueOptions
from tests.chaos.account import MARK, Attempt, Shown
from tests.chaos.amqp_client import AmqpClient, ConnectionLost, Controller, Refused, connect_to_any
from tests.chaos.audited_workload import AuditedWorkload
from tests.chaos.liveness import Liveness
from tests.chaos.workload import BATCH, PACE_SECONDS

CREDIT = 20
ROLLED_BACK_SHARE, BROKEN_OFF_SHARE, LEFT_SHARE = 0.05, 0.01, 0.01
"""Of AMQP transactions: rolled back by their client; its connection is cut before the discharge; right behind it."""
BACKLOG_MAX, WIDE_BACKLOG_MAX = 60, 20
"""Messages that senders are ahead of movers: what is left at the end is moved in a moment."""


@dataclass(slots=True)
class AmqpReport:
    """What AMQP clients heard, and what the check found."""

    attempts: int = 0
    committed: int = 0
    rolled_back: int = 0
    """By the client itself."""
    unknown: int = 0
    found_committed: int = 0
    """Of the unknown."""
    connections_lost: int = 0


class MixedWorkload(AuditedWorkload):
    """As its base. With a `second_set` one output is there: movers' transactions are over two sets, and no readers look on."""

    def __init__(
        self,
        client: Client,
        addresses: Sequence[str],
        proxies: Sequence[str],
        set_name: str,
        liveness: Liveness,
        *,
        name: str,
        second_set: str = "",
        senders: tuple[int, int] = (1, 2),
        movers: tuple[int, int] = (1, 2),
        patience: SessionSettings | None = None,
    ) -> None:
        """`senders`, `movers`: how many by gRPC, and how many by AMQP. `patience`: of senders by gRPC."""
        super().__init__(
            client,
            addresses,
            set_name,
            name=name,
            senders=sum(senders),
            movers=sum(movers),
            patience=patience,
        )
        self.name = name
        self.amqp = AmqpReport()
        self._proxies = list(proxies)
        self._liveness = liveness
        self._grpc_senders, self._grpc_movers = senders[0], movers[0]
        self._movers_begun = 0
        self._moved = 0
        """Messages that were moved, or may have been."""
        self._second_set = second_set
        self._backlog_max = WIDE_BACKLOG_MAX if second_set else BACKLOG_MAX
        if second_set:
            self.outputs = (self.outputs[0], f"{second_set}-{name}-out-2")
            self.readers = []

    async def declare(self) -> None:
        async with self.client.session() as session:
            for queue in (self.input, *self.outputs):
                set_name = self._second_set if queue.startswith(f"{self._second_set}-") else self.set_name
                await session.declare_queue(queue, QueueOptions(), set_name=set_name or self.set_name)

    # --- who is who ---

    async def _send(self, sender: int) -> None:
        is_grpc = sender < self._grpc_senders
        self._liveness.enter(f"{self.name} sender {sender} {'gRPC' if is_grpc else 'AMQP'}")
        await (super()._send(sender) if is_grpc else self._amqp_send(sender))

    async def _move(self) -> None:
        mover, self._movers_begun = self._movers_begun, self._movers_begun + 1
        is_grpc = mover < self._grpc_movers
        self._liveness.enter(f"{self.name} mover {mover} {'gRPC' if is_grpc else 'AMQP'}")
        await (super()._move() if is_grpc else self._amqp_move(mover))

    # --- gRPC ---

    def _outgoing(self, mark: bytes, bodies: list[bytes], moved: list[Message]) -> list[OutgoingMessage]:
        return [OutgoingMessage(b"", body + MARK + mark, True, 0, ()) for body in bodies]

    async def _commit(
        self,
        transaction: Transaction,
        session: Session,
        bodies: list[bytes],
        queues: Iterable[str],
        messages: Iterable[Message],
    ) -> bool | None:
        moved = list(messages)
        if not moved:
            await self._room()
        result = await super()._commit(transaction, session, bodies, queues, moved)
        self._moved += len(moved) if result is not False else 0
        return result

    def _committed(self) -> None:
        super()._committed()
        self._liveness.went_on()

    async def _room(self) -> None:
        """Waits while senders are too far ahead."""
        while len(self.confirmed) - self._moved > self._backlog_max and self._is_sending:
            await asyncio.sleep(PACE_SECONDS)

    # --- AMQP ---

    async def _amqp_send(self, sender: int) -> None:
        sequence, proxies = 0, self._proxies_of(sender)
        while self._is_sending:
            client = await connect_to_any(proxies, f"{self.name}-sender-{sender}")
            try:
                link = await client.sender(self.input)
                controller = await client.controller(is_symbolic=sender % 2 == 0)
                declared = controller.declare()
                while self._is_sending:
                    await self._room()
                    transaction = await client.unless_lost(declared)
                    bodies = [b"%d/%06d.%d" % (sender, sequence, part) for part in range(BATCH)]
                    mark, attempt = self._begin(bodies, is_move=False)
                    try:
                        for body in bodies:
                            await link.send(_durable(body + MARK + mark), transaction)
                        declared = await self._discharge(client, controller, attempt, transaction)
                    finally:
                        self.in_flight.discard(mark)
                        if attempt.is_committed:
                            self.confirmed.update(bodies)
                        elif attempt.is_committed is None:
                            self.doubtful.update(bodies)
                        if attempt.is_committed is not False:
                            sequence += 1
                    await asyncio.sleep(PACE_SECONDS)
            except (ConnectionLost, Refused) as error:
                self._note_loss(error)
            finally:
                await client.close()

    def _proxies_of(self, number: int) -> list[str]:
        """Clients begin with different ones."""
        first = number % len(self._proxies)
        return [*self._proxies[first:], *self._proxies[:first]]

    async def _amqp_move(self, mover: int) -> None:
        proxies = self._proxies_of(mover)
        while self._is_moving:
            client = await connect_to_any(proxies, f"{self.name}-mover-{mover}")
            try:
                source = await client.receiver(self.input, CREDIT)
                targets = [await client.sender(queue) for queue in self.outputs]
                controller = await client.controller(is_symbolic=mover % 2 == 0)
                declared = controller.declare()
                while self._is_moving:
                    taken = await source.take(BATCH, 0.2)
                    if not taken:
                        continue
                    transaction = await client.unless_lost(declared)
                    mark, attempt = self._begin([one.body for one in taken], is_move=True)
                    try:
                        for target in targets:
                            for one in taken:
                                await target.send(_durable(one.body + MARK + mark), transaction)
                        for place, one in enumerate(taken):
                            source.retire(one, transaction, is_settled=place % 2 == 0)
                        source.grant(len(taken))
                        declared = await self._discharge(client, controller, attempt, transaction)
                    finally:
                        self.in_flight.discard(mark)
                        self._moved += len(taken) if attempt.is_committed is not False else 0
            except (ConnectionLost, Refused) as error:
                self._note_loss(error)
            finally:
                await client.close()

    def _begin(self, bodies: Sequence[bytes], *, is_move: bool) -> tuple[bytes, Attempt]:
        """An attempt that did not happen until it was asked to; returns its mark, too."""
        mark = self.account.next_mark()
        marked = frozenset(body + MARK + mark for body in bodies)
        attempt = Attempt(marked, is_move, transaction=None, is_committed=False)
        self.account.attempts[mark] = attempt
        self.in_flight.add(mark)
        return mark, attempt

    async def _discharge(
        self, client: AmqpClient, controller: Controller, attempt: Attempt, transaction: bytes
    ) -> "asyncio.Future[bytes]":
        """Ends a transaction and declares the next one, without waiting in between. Raises `ConnectionLost`."""
        choice = random.random()
        is_failed = choice < ROLLED_BACK_SHARE
        if choice > 1 - BROKEN_OFF_SHARE:
            client.abort("cut before the discharge")
        discharged = controller.discharge(transaction, is_failed=is_failed)
        if not is_failed:
            attempt.is_committed = None
        declared = controller.declare()
        if 1 - BROKEN_OFF_SHARE - LEFT_SHARE < choice <= 1 - BROKEN_OFF_SHARE:
            await asyncio.sleep(0)
            client.abort("cut behind the discharge")
        try:
            await client.unless_lost(discharged)
        except Refused as refused:
            attempt.is_committed = False
            self.report.rolled_back += 1
            self.report.errors[refused.name] += 1
            await asyncio.sleep(0.01)
            return declared
        except ConnectionLost:
            self.report.in_doubt += attempt.is_committed is None
            raise
        if is_failed:
            self.amqp.rolled_back += 1
            self.report.rolled_back += 1
        else:
            attempt.is_committed = True
            self._committed()
        return declared

    def _note_loss(self, error: ConnectionLost | Refused) -> None:
        self.amqp.connections_lost += 1
        self.report.errors[error.name if isinstance(error, Refused) else "connection lost"] += 1

    # --- the check ---

    async def check(self) -> None:
        """Nothing lost, nothing twice, nothing torn; and of every attempt what its client heard."""
        shown = [await self._marked_numbers(queue) for queue in self.outputs]
        first, second = [Counter(number for number, _ in output) for output in shown]
        self._check_numbers(first, second)
        for number, marks in itertools.chain(*shown):
            assert len(marks) == 2, f"not sent once and moved once: {number!r} by {marks}"
        await self._check_attempts(shown)

    async def _marked_numbers(self, queue: str) -> list[Shown]:
        parts = [body.split(MARK) for body in await self._bodies(queue)]
        return [(number, marks) for number, *marks in parts]

    async def _check_attempt(self, attempt: Attempt, is_there: bool) -> None:
        if attempt.transaction is None:
            self._count_amqp(attempt, is_there)
        else:
            await super()._check_attempt(attempt, is_there)

    def _count_amqp(self, attempt: Attempt, is_there: bool) -> None:
        self.amqp.attempts += 1
        self.amqp.committed += is_there
        if attempt.is_committed is None:
            self.amqp.unknown += 1
            self.amqp.found_committed += is_there

    def counts(self) -> "Counter[str]":
        """What was checked, by words."""
        kind = "transactions over two sets" if self._second_set else "transactions"
        return Counter(
            {
                f"AMQP {kind}": self.amqp.attempts,
                f"AMQP {kind} committed": self.amqp.committed,
                f"AMQP {kind} unknown": self.amqp.unknown,
                f"AMQP {kind} unknown and committed": self.amqp.found_committed,
                f"gRPC {kind}": self.audit.attempts,
                f"gRPC {kind} committed": self.audit.committed,
                f"gRPC {kind} in doubt at first": self.report.asked,
                "messages moved by transactions": sum(
                    len(attempt.bodies)
                    for attempt in self.account.attempts.values()
                    if attempt.is_move and attempt.is_committed
                ),
            }
        )

    def summary(self) -> str:
        amqp = self.amqp
        return (
            f"{self.name}: by AMQP {amqp.attempts} transactions, {amqp.committed} committed, {amqp.rolled_back} rolled back by "
            f"their clients, {amqp.unknown} unknown (of them committed {amqp.found_committed}), "
            f"connections lost {amqp.connections_lost}; by gRPC and together: {super().summary()}"
        )


def _durable(body: bytes) -> AmqpMessage:
    return AmqpMessage(body=body, inferred=True, durable=True)
