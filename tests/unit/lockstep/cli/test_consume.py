"""`lockstep consume --wait`: a queue is empty only where its primary serves."""

import asyncio
from typing import Any

import pytest

from lockstep.cli import messages
from lockstep.cli.messages import next_within, shown_deaths
from lockstep.client import ErrorCode, Rejected
from lockstep.core.deaths import Death, DeathReason


class Quiet:
    """A queue of which nothing comes until its primary has been asked for, which takes `failover_seconds`."""

    queue = "orders"

    def __init__(self, failover_seconds: float | None) -> None:
        """None: it finds none."""
        self.asked = 0
        self._failover_seconds = failover_seconds

    async def next(self, _seconds: float) -> str | None:
        return "a message" if self.asked and self._failover_seconds else None

    async def describe_queue(self, name: str) -> None:
        self.asked += 1
        if self._failover_seconds is None:
            raise Rejected(ErrorCode.UNAVAILABLE, f"no primary of {name} was reached")
        await asyncio.sleep(self._failover_seconds)


async def next_of(queue: Any) -> object:
    return await next_within(queue, queue, 1.0)


async def test_an_empty_queue_is_one_whose_primary_answers() -> None:
    queue = Quiet(0.0)
    assert (await next_of(queue), queue.asked) == (None, 1)


async def test_what_comes_behind_a_failover_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SERVED_SECONDS", 0.05)
    assert await next_of(Quiet(0.1)) == "a message"


async def test_without_a_primary_nobody_says_that_it_is_empty() -> None:
    with pytest.raises(Rejected, match="no primary of orders was reached"):
        await next_of(Quiet(None))


def test_why_a_message_is_a_dead_letter_is_shown_in_the_words_that_amqp_clients_are_told() -> None:
    """A reason of a later version is its number."""
    deaths = tuple(Death("orders", reason, 2, 1_000, 3_000) for reason in (*DeathReason, 99))
    times = {"queue": "orders", "count": 2, "first_ms": 1_000, "last_ms": 3_000}
    reasons = ["rejected", "expired", "delivery_limit", 99]
    assert shown_deaths(deaths) == [{**times, "reason": reason} for reason in reasons]
