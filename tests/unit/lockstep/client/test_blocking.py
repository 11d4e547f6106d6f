"""The blocking façade: the same client, from a thread without an event loop."""

import asyncio

import pytest

from lockstep.client import Rejected, TransactionState, blocking
from lockstep.core import commands as c
from tests.unit.lockstep.client.fake_broker import FakeBroker
from tests.unit.lockstep.client.session_bench import bodies


def use(address: str) -> None:
    with blocking.connect(address) as client, client.session() as session:
        session.publish("q", [b"1", b"2"])
        with session.transaction() as transaction:
            transaction.publish("q", b"3")
        assert transaction.state is TransactionState.COMMITTED
        assert client.get_outcome(transaction.id or "").state.name == "COMMITTED"
        with session.consume("q") as consumer:
            assert consumer.next(0.01) is None
        with pytest.raises(Rejected, match="no nowhere"):
            session.publish("nowhere", b"")


async def test_a_thread_uses_it_while_others_have_loops() -> None:
    async with FakeBroker("one") as broker:
        broker.directory["q"] = "one"
        await asyncio.to_thread(use, broker.address)
        assert bodies(broker.worlds["one"].executed()) == ["1", "2", "3"]
        assert isinstance(broker.worlds["one"].executed()[-1], c.CommitCommand)
