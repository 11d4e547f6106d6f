"""Big bytes: what would take a step of an event loop too long to copy.

Law: no step copies more than some MiB. What is longer is put together by a thread, which holds the interpreter no longer than it
takes to find the room: `bytes.join` lets go of it where all parts are `bytes`, and a MiB together. So what is to be copied out of
something else is cut into such parts first.
"""

from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256

from lockstep.runtime.turns import LeftToThread

BIG_BYTES = 4 << 20
"""From this size on; a copy of less takes some two milliseconds, and several times as much where memory is new and slow."""
PART_BYTES = 1 << 20


def copied(view: memoryview) -> Generator[LeftToThread, None, bytes]:
    """What is there, in steps (`in_turns`)."""
    if len(view) < BIG_BYTES:
        return bytes(view)
    parts = list[bytes]()
    for at in range(0, len(view), PART_BYTES):
        parts.append(bytes(view[at : at + PART_BYTES]))
        yield None
    return (yield from joined(parts))


def joined(parts: Sequence[bytes]) -> Generator[LeftToThread, None, bytes]:
    """The parts, one behind the other, in steps."""
    if sum(map(len, parts)) < BIG_BYTES:
        return b"".join(parts)
    joining = _thread().submit(b"".join, parts)
    yield joining
    return joining.result()


def digested(parts: Sequence[bytes]) -> Generator[LeftToThread, None, bytes]:
    """By what these parts are told from others, in steps."""
    if sum(map(len, parts)) < BIG_BYTES:
        return _digest(parts)
    digesting = _thread().submit(_digest, parts)
    yield digesting
    return digesting.result()


def _digest(parts: Iterable[bytes]) -> bytes:
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()


@cache
def _thread() -> ThreadPoolExecutor:
    """One copy at a time: two of them would take each other's memory bandwidth."""
    return ThreadPoolExecutor(1, "big bytes")
