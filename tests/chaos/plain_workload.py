"""Plain AMQP senders and consumers, without transactions: what was accepted stays, what was taken is gone.

Law: a body is the message's number and that of the attempt to send it, `number>attempt`. Accepted: it is there. Rejected: it is
not. Without an answer it may be there, and its number is sent again: only so can a number be there twice. A consumer may be
given again what it accepted, unless it was told that this was taken.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from proton import Message as AmqpMessage

from lockstep.client.client import Client
from lockstep.core.commands import QueueOptions
from tests.chaos.amqp_client import RECONNECT_SECONDS, ConnectionLost, Delivered, Refused, connect_to_any
from tests.chaos.liveness import Liveness

_MARK = b">"
WINDOW = 20
"""Sends of one sender that wait for their answers."""
CREDIT = 20
PACE_SECONDS = 0.005


@dataclass(slots=True)
class PlainReport:
    """What the clients did, heard and were given."""

    sent: int = 0
    accepted: int = 0
    rejected: int = 0
    unknown: int = 0
    found_unknown: int = 0
    """Of the unknown: those that are there."""
    taken: int = 0
    """Accepts of consumers of which the proxy said that they were done."""
    given_again: int = 0
    """Messages that a consumer was given although one had them before: nobody had been told that they were taken."""
    twice: int = 0
    """Numbers that are there more than once: sent again, because nobody had answered."""


class PlainWorkload:
    """Lives for one test; `run` it, do harm, `check` it. Its queue is in one set."""

    def __init__(
        self,
        client: Client,
        proxies: Sequence[str],
        set_name: str,
        liveness: Liveness,
        *,
        senders: int = 2,
        consumers: int = 2,
    ) -> None:
        self.queue = f"{set_name}-plain"
        self.report = PlainReport()
        self._client = client
        self._set_name = set_name
        self._proxies = list(proxies)
        self._liveness = liveness
        self._senders, self._consumers = senders, consumers
        self._attempts = 0
        self._accepted: set[bytes] = set()
        self._rejected: set[bytes] = set()
        self._unknown: set[bytes] = set()
        self._given: Counter[bytes] = Counter()
        self._taken: Counter[bytes] = Counter()
        self._again_after_taken: set[bytes] = set()
        self._is_sending = True
        self._is_consuming = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Clients work inside the block; behind it the queue is empty."""
        async with self._client.session() as session:
            await session.declare_queue(self.queue, QueueOptions(), set_name=self._set_name)
        senders = [asyncio.create_task(self._send(number)) for number in range(self._senders)]
        consumers = [asyncio.create_task(self._consume(number)) for number in range(self._consumers)]
        try:
            yield
            self._is_sending = False
            async with asyncio.timeout(120):
                await asyncio.gather(*senders)
                while await self._length():
                    await asyncio.sleep(0.1)
                self._is_consuming = False
                await asyncio.gather(*consumers)
        finally:
            for task in (*senders, *consumers):
                task.cancel()
            await asyncio.gather(*senders, *consumers, return_exceptions=True)

    async def _length(self) -> int:
        async with self._client.session() as session:
            described = await session.describe(self._set_name)
        return next(one.length for one in described.queues if one.name == self.queue)

    def _proxies_of(self, number: int) -> list[str]:
        """Clients begin with different ones."""
        first = number % len(self._proxies)
        return [*self._proxies[first:], *self._proxies[:first]]

    # --- senders ---

    async def _send(self, sender: int) -> None:
        self._liveness.enter(f"plain sender {sender}")
        number, again, proxies = 0, list[bytes](), self._proxies_of(sender)
        while self._is_sending or again:
            client = await connect_to_any(proxies, f"plain-sender-{sender}")
            under_way: dict[asyncio.Future[int], tuple[bytes, bytes]] = {}
            try:
                link = await client.sender(self.queue)
                while self._is_sending or again:
                    if again:
                        name = again.pop()
                    else:
                        name, number = b"plain%d/%06d" % (sender, number), number + 1
                    self._attempts += 1
                    body = name + _MARK + b"%d" % self._attempts
                    message = AmqpMessage(body=body, inferred=True, durable=True)
                    try:
                        outcome = await link.send(message)
                    except BaseException:
                        again.append(name)
                        raise
                    under_way[outcome] = name, body
                    again += self._settle(under_way)
                    while len(under_way) >= WINDOW or (under_way and not self._is_sending):
                        await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                        again += self._settle(under_way)
                    await asyncio.sleep(PACE_SECONDS)
            except (ConnectionLost, Refused):
                await asyncio.sleep(RECONNECT_SECONDS)
            finally:
                await client.close()
                again += self._settle(under_way)
                assert not under_way, "a lost connection leaves nothing open"

    def _settle(self, under_way: dict["asyncio.Future[int]", tuple[bytes, bytes]]) -> list[bytes]:
        """Writes down what has been answered; returns the numbers to be sent again."""
        again = []
        for outcome in [one for one in under_way if one.done()]:
            name, body = under_way.pop(outcome)
            self.report.sent += 1
            match outcome.exception():
                case None:
                    self._accepted.add(body)
                    self._liveness.went_on()
                case Refused():
                    self._rejected.add(body)
                    again.append(name)
                case _:
                    self._unknown.add(body)
                    again.append(name)
        return again

    # --- consumers ---

    async def _consume(self, consumer: int) -> None:
        """One of two lets the proxy settle, and so hears that its accept was done; the others just settle."""
        self._liveness.enter(f"plain consumer {consumer}")
        proxies = self._proxies_of(consumer)
        while self._is_consuming:
            client = await connect_to_any(proxies, f"plain-consumer-{consumer}")
            try:
                link = await client.receiver(self.queue, CREDIT)
                while self._is_consuming:
                    for one in await link.take(CREDIT, 0.2):
                        self._give(one)
                        if consumer % 2:
                            link.accept(one)
                        else:
                            link.accept_and_hear(one).add_done_callback(partial(self._hear, one.body))
                        link.grant(1)
                        self._liveness.went_on()
            except (ConnectionLost, Refused):
                await asyncio.sleep(RECONNECT_SECONDS)
            finally:
                await client.close()

    def _give(self, one: Delivered) -> None:
        self._given[one.body] += 1
        if self._taken[one.body]:
            self._again_after_taken.add(one.body)

    def _hear(self, body: bytes, heard: "asyncio.Future[bool]") -> None:
        if not heard.cancelled() and heard.exception() is None and heard.result():
            self._taken[body] += 1

    # --- the check ---

    def check(self) -> None:
        """Nothing accepted is lost, nothing rejected is there, nothing taken is there again."""
        report = self.report
        report.accepted, report.rejected, report.unknown = map(
            len, (self._accepted, self._rejected, self._unknown)
        )
        given = self._given.keys()
        lost = self._accepted - given
        assert not lost, f"accepted and lost: {sorted(lost)[:10]} of {len(lost)}"
        untrue = self._rejected & given
        assert not untrue, f"rejected, and there: {sorted(untrue)[:10]} of {len(untrue)}"
        invented = given - self._accepted - self._unknown
        assert not invented, f"sent by nobody: {sorted(invented)[:10]} of {len(invented)}"
        assert not self._again_after_taken, f"taken, and there again: {sorted(self._again_after_taken)[:10]}"
        taken_twice = [body for body, count in self._taken.items() if count > 1]
        assert not taken_twice, f"taken twice: {taken_twice[:10]}"
        numbers = Counter(body.partition(_MARK)[0] for body in given)
        report.found_unknown = len(self._unknown & given)
        report.taken = self._taken.total()
        report.given_again = self._given.total() - len(given)
        report.twice = sum(count > 1 for count in numbers.values())

    def counts(self) -> "Counter[str]":
        """What was checked, by words."""
        report = self.report
        return Counter(
            {
                "plain sends": report.sent,
                "plain sends accepted": report.accepted,
                "plain sends rejected": report.rejected,
                "plain sends unknown, and repeated": report.unknown,
                "plain numbers there twice": report.twice,
                "plain messages given again": report.given_again,
            }
        )
