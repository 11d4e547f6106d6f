"""Run inside a store's container: prints the committed frames of a resource set, one per line, in hexadecimal digits."""

import asyncio
import sys

from lockstep.runtime.channels import open_channel
from lockstep.wire.v1 import store_pb2 as pb
from lockstep.wire.v1.store_pb2_grpc import StoreStub

ANY_EPOCH = 1 << 40
"""Not below what the store has seen; reading raises nothing."""
SECONDS = 60.0


async def main(address: str, set_name: str) -> None:
    async with open_channel(address) as channel:
        request = pb.ReadJournalRequest(resource_set=set_name, epoch=ANY_EPOCH)
        async for answer in StoreStub(channel).ReadJournal(request, wait_for_ready=True, timeout=SECONDS):
            for frame in answer.frames:
                print(frame.hex())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
