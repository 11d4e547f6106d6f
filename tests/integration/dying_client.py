"""A client program that moves a token from a queue into a table and a log, and kills itself at a step that it is told.

    python -m tests.integration.dying_client STEP BROKERS DSN PARTICIPANT

Prints the token that it took, and goes on when its standard input has ended: what dies gives its token back, and nobody
who is still to take one may meet it.
"""

import asyncio
import os
import signal
import sys
from typing import Any, NoReturn

import psycopg

from lockstep.client import connect
from lockstep.client.session_settings import SessionSettings

STEPS = ("working", "ended", "closed", "prepared", "asked")
"""Before the commit; when no branch is worked in any more; when the participants are in the log; when the row is prepared too;
when the commit is under way."""
UNDONE = STEPS[:-1]
"""Nobody has asked for a commit: nothing may have happened."""
SESSION_MS, TRANSACTION_MS = 4_000, 12_000
"""Short for a client that dies; long for one that lives, among many."""


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("dead")


async def main(step: str, brokers: str, dsn: str, participant: str) -> None:
    async with (
        await connect(brokers, settings=SessionSettings(session_timeout_ms=SESSION_MS)) as client,
        client.session() as session,
        await session.consume("east.tokens", credit=1) as consumer,
        await psycopg.AsyncConnection.connect(dsn) as connection,
    ):
        message = await consumer.next(60)
        assert message is not None, "there is a token for each"
        print(message.body.decode(), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        tx = session.distributed_transaction(timeout_ms=TRANSACTION_MS)
        await tx.accept(message)
        await tx.enlist_postgres(connection, participant)
        await connection.execute("insert into moved_tokens values (%s)", (int(message.body),))
        await tx.publish("west.log", [b"moved " + message.body])
        if step == "working":
            die()
        call = client.coordinators.call

        async def watched(method: str, *arguments: Any) -> Any:
            if (method, step) in (("Close", "ended"), ("Commit", "prepared")):
                die()
            asked = asyncio.ensure_future(call(method, *arguments))
            if (method, step) == ("Commit", "asked"):
                await asyncio.sleep(0.01)
                die()
            answer = await asked
            if (method, step) == ("Close", "closed"):
                die()
            return answer

        client.coordinators.call = watched  # type: ignore[method-assign, assignment]
        await tx.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
