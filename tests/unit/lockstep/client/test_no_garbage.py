"""What is done with is gone: nothing waits for a collection of garbage, with the bodies of its messages."""

import gc
from collections import Counter

from lockstep.client import Session


async def test_transactions_and_publishes_end_with_their_last_reference(session: Session) -> None:
    async def work() -> None:
        async with session.transaction() as transaction:
            await transaction.publish("a", [b"body"] * 3)
            await transaction.publish("a", b"one more")
        async with session.transaction() as transaction:
            await transaction.publish("a", b"body")
            await transaction.rollback()
        await session.publish("a", b"alone")

    for _ in range(3):
        await work()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for _ in range(10):
            await work()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(type(one).__qualname__ for one in gc.garbage if "client" in type(one).__module__)
        futures = sum(type(one).__name__ == "Future" for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()
    assert (left, futures) == (Counter(), 0)
