"""State hash: one word for a whole state, equal on all replicas at the same applied index.

Law: it is the SHA-256 over all items in key order, with the checksum of each content in place of its body, so that it does not
depend on which bodies are in memory. Items hold nothing that is local, so equal records give equal hashes; with
`durable_only`, equal durable records do.
"""

import hashlib
import struct
from collections.abc import Generator, Iterator

from lockstep.core.items import Item
from lockstep.core.set_state import SetState

_LENGTHS = struct.Struct(">II?")
_ITEM_COST = 5


class StateDigest:
    """A hash on its way: of items without bodies, in the order of their keys."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, item: Item) -> None:
        head = _LENGTHS.pack(len(item.key), len(item.value), item.is_durable)
        self._digest.update(head + item.key + item.value)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def hash_in_steps(items: Iterator[Item | None]) -> Generator[int, None, str]:
    """The hash of the state that these are of (`SetState.items_in_pieces`, without bodies), in hexadecimal, in steps that say
    what they cost (`Pieces`).
    """
    digest = StateDigest()
    for item in items:
        if item is not None:
            digest.add(item)
        yield _ITEM_COST if item is not None else 50 * _ITEM_COST
    return digest.hexdigest()


def state_hash(state: SetState, durable_only: bool = False) -> str:
    """The hash, in hexadecimal. Reads all of the state: some microseconds for every message in it."""
    digest = StateDigest()
    for item in state.items(transient=not durable_only, bodies=False):
        digest.add(item)
    return digest.hexdigest()
