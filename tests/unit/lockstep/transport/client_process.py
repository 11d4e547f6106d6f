"""A client in a process of its own that has a stream open, to be killed and stopped. Arguments: whose client, and the address."""

import asyncio
import sys

import uvloop

from tests.unit.lockstep.transport.ends import Ends
from tests.unit.lockstep.transport.probe_service import path


async def main(implementation: str, address: str) -> None:
    ends = Ends(implementation, implementation)
    call = ends.open_channel(address).stream_stream(path("WaitStreaming"))()
    await call.write(b"here")
    await call.read()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await ends.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
