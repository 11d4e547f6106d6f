"""A client's transaction that comes to touch a second set: what it was told of meanwhile is looked at again."""

import pytest

import lockstep
from lockstep.client import Rejected
from lockstep.core import commands as c
from lockstep.core.commands import OutgoingMessage
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, QueuePosition, SetName
from services.proxy.amqp_transaction import AmqpTransaction
from services.proxy.nodes import Target
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.fake_coordinator import FakeCoordinator


async def test_what_becomes_void_while_a_coordinator_is_asked_is_not_accepted_in_the_next_session() -> None:
    """The set ends the worker's session, and another begins in the same epoch: it may hold the message for another client."""
    async with FakeBroker("one", "two") as broker, FakeCoordinator() as coordinator:
        broker.directory |= {"a": "one", "c": "two"}
        async with await lockstep.connect(broker.address, coordinators=coordinator.address) as client:
            session = client.session(in_order=False)
            for queue in ("a", "c"):
                await session.publish(queue, b"attaches")
            one, two = await session.of_set(SetName("one")), await session.of_set(SetName("two"))
            world = broker.worlds["two"]
            is_void = False

            def check() -> None:
                if is_void:
                    raise Rejected(ErrorCode.STALE_DELIVERY, "void")

            transaction = AmqpTransaction(b"name", session.transaction(), 0)
            heard: list[BaseException | None] = []
            transaction.publish(
                Target("", "a", *one), [OutgoingMessage(b"", b"made of it", True, 0)], heard.append
            )
            coordinator.answers.clear()
            transaction.accept(two, "c", Epoch(1), [QueuePosition(77)], check, heard.append)
            await eventually(lambda: coordinator.asked == ["Begin"])
            world.ended |= {primary.session for name, primary, _ in broker.streams if name == "two"}
            for name, _, context in broker.streams:
                if name == "two":
                    broker._calls[context].cancel()
            broker.streams = [stream for stream in broker.streams if stream[0] != "two"]
            await eventually(lambda: two[0].lost_sessions == 1 and two[0].is_attached)
            is_void = True
            coordinator.answers.set()
            with pytest.raises(Rejected) as raised:
                await transaction.commit()
            assert raised.value.code is ErrorCode.ROLLED_BACK
            await session.close()
    assert not [entry for entry in world.log if isinstance(entry.command, c.SettleCommand)]
    assert "Commit" not in coordinator.asked
