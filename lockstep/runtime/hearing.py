"""Messages that come on a stream, decoded: short ones at once, each in the turn in which it comes, and long ones in turns.

Law: they are told in their order. Behind a long one nothing is heard before that was told, in a step of its own.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from lockstep.runtime.turns import LeftToThread, in_turns

_Message = TypeVar("_Message")
_Data = bytes | memoryview


async def hear_decoded(
    call: Any,
    long_bytes: int,
    decode: Callable[[_Data], _Message],
    decode_long: Callable[[_Data], Generator[LeftToThread, None, _Message]],
    tell: Callable[[_Message], bool],
) -> bool:
    """Gives `tell` what comes on a call, of either end, until it answers False; one of `long_bytes` or more is long.

    Answers whether there may be more. Raises what decoding, telling, and the call raise.
    """
    long: list[_Data] = []

    def take(data: _Data) -> bool:
        if len(data) >= long_bytes:
            long.append(data)
            return False
        return tell(decode(data))

    while await call.hear(take):
        if not long:
            return True
        message = await in_turns(decode_long(long.pop()))
        await asyncio.sleep(0)
        if not tell(message):
            return True
    return False
