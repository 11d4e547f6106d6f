"""Xid: the name of a branch of a distributed transaction, as X/Open XA and AMQP 0-10 have it.

Law: two xids are the same branch if their encodings are equal. The encoding is what records, outcomes and keys carry.
"""

import struct
from typing import NamedTuple, Self

_HEAD = struct.Struct(">iB")
ID_BYTES_MAX = 64
"""Of a global and of a branch id (XA: MAXGTRIDSIZE, MAXBQUALSIZE)."""
FORMAT_ID_MAX = 2**31 - 1


class Xid(NamedTuple):
    """(format id, global id, branch id): all branches of one distributed transaction share the first two."""

    format_id: int
    """0 to 2^31 - 1; says who makes such ids."""
    global_id: bytes
    """1 to 64 bytes."""
    branch_id: bytes
    """0 to 64 bytes."""

    def check(self) -> Self:
        """The xid itself; raises `ValueError` where a part of it is out of range."""
        if not 0 <= self.format_id <= FORMAT_ID_MAX:
            raise ValueError(f"format id {self.format_id} is not between 0 and {FORMAT_ID_MAX}")
        if not 1 <= len(self.global_id) <= ID_BYTES_MAX:
            raise ValueError(f"a global id has 1 to {ID_BYTES_MAX} bytes, not {len(self.global_id)}")
        if len(self.branch_id) > ID_BYTES_MAX:
            raise ValueError(f"a branch id has at most {ID_BYTES_MAX} bytes, not {len(self.branch_id)}")
        return self

    def encode(self) -> bytes:
        """The bytes that name it in the log; raises `ValueError` as `check` does."""
        self.check()
        return _HEAD.pack(self.format_id, len(self.global_id)) + self.global_id + self.branch_id

    @classmethod
    def decode(cls, encoded: bytes) -> "Xid":
        """Inverse of `encode`; raises `ValueError` for bytes that are no encoding."""
        if len(encoded) < _HEAD.size:
            raise ValueError(f"an encoded xid has at least {_HEAD.size} bytes, not {len(encoded)}")
        format_id, length = _HEAD.unpack_from(encoded)
        ids = encoded[_HEAD.size :]
        if len(ids) < length:
            raise ValueError(f"an encoded xid says {length} bytes of global id, and has {len(ids)}")
        return cls(format_id, ids[:length], ids[length:]).check()

    def __str__(self) -> str:
        """format:global:branch, both ids in hexadecimal: what people and the command line use."""
        return f"{self.format_id}:{self.global_id.hex()}:{self.branch_id.hex()}"

    @classmethod
    def parse(cls, text: str) -> "Xid":
        """Inverse of `str`; raises `ValueError` for anything else."""
        parts = text.split(":")
        if len(parts) != 3 or not (parts[0].isascii() and parts[0].isdigit()) or len(parts[0]) > 10:
            raise ValueError(f"an xid is format:global:branch, the ids in hexadecimal, not {text[:80]!r}")
        return cls(int(parts[0]), bytes.fromhex(parts[1]), bytes.fromhex(parts[2])).check()
