"""State hash: one word for a whole state, equal on all replicas at the same applied index.

Law: it is the SHA-256 over all items in key order, with the checksum of each content in place of its body, so that it does not
depend on which bodies are in memory. Items hold nothing that is local, so equal records give equal hashes; with
`durable_only`, equal durable records do.
"""

import hashlib
import struct

from lockstep.core.set_state import SetState

_LENGTHS = struct.Struct(">II?")


def state_hash(state: SetState, durable_only: bool = False) -> str:
    """The hash, in hexadecimal. Reads all of the state: some microseconds for every message in it."""
    digest = hashlib.sha256()
    for item in state.items(transient=not durable_only, bodies=False):
        digest.update(_LENGTHS.pack(len(item.key), len(item.value), item.is_durable) + item.key + item.value)
    return digest.hexdigest()
