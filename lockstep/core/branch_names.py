"""Names of distributed transactions of our own coordinator, and of their branches (DESIGN T3).

Law: a branch's name says by itself which transaction it belongs to and in which generation of the cluster that was begun. So a
prepared branch can look for its decision by itself, and knows when the absence of one proves nothing (history 26).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, NewType

from lockstep.core.ids import SetName
from lockstep.core.xid import Xid

GlobalId = NewType("GlobalId", bytes)
"""Name of a distributed transaction: 16 bytes, in text their hexadecimal digits. The first six are the milliseconds since the
Unix epoch when it was begun, as in a UUID of version 7; the others are random."""
ParticipantName = NewType("ParticipantName", str)
"""Who holds a branch: `set:<resource set>` or `grpc://host:port/<name>`."""
SET_KIND = "set:"
GenerationTag = NewType("GenerationTag", str)
"""The first 8 characters of the cluster's generation, which is a UUID."""

FORMAT_ID = 0x4C4B5354
"""'LKST': xids that our coordinator makes."""
GLOBAL_ID_BYTES = 16
RANDOM_BYTES = 10
GENERATION_TAG_CHARACTERS = 8
_HEAD_OF_OURS = Xid(FORMAT_ID, bytes(GLOBAL_ID_BYTES), b"").encode()[:-GLOBAL_ID_BYTES]
PARTICIPANTS_MAX = 64
"""Of a transaction: its branches have the numbers below it."""


class BranchName(NamedTuple):
    """What the xid of a branch of ours says."""

    global_id: GlobalId
    number: int
    """Place of its participant in the transaction's list, from 0."""
    generation: GenerationTag


def set_participant(set_name: SetName) -> ParticipantName:
    """A resource set as a participant."""
    return ParticipantName(f"{SET_KIND}{set_name}")


def generation_tag(generation: str) -> GenerationTag:
    """What branches carry of the cluster's generation; raises `ValueError` for one that is too short."""
    if len(generation) < GENERATION_TAG_CHARACTERS or not generation.isascii():
        raise ValueError(
            f"a generation has at least {GENERATION_TAG_CHARACTERS} characters, not {generation!r}"
        )
    return GenerationTag(generation[:GENERATION_TAG_CHARACTERS])


def new_global_id(begun_ms: int, chance: bytes) -> GlobalId:
    """`begun_ms`: wall clock; `chance`: `RANDOM_BYTES` that nobody else draws."""
    assert len(chance) == RANDOM_BYTES, "with the time it is 16 bytes"
    return GlobalId(begun_ms.to_bytes(GLOBAL_ID_BYTES - RANDOM_BYTES, "big") + chance)


def begun_ms(global_id: GlobalId) -> int:
    """When it was begun, by the wall clock of the coordinator that named it."""
    return int.from_bytes(global_id[: GLOBAL_ID_BYTES - RANDOM_BYTES], "big")


def parse_global_id(text: str) -> GlobalId:
    """From 32 hexadecimal digits; raises `ValueError` for anything else."""
    if len(text) != 2 * GLOBAL_ID_BYTES or not text.isascii():
        raise ValueError(f"a transaction id has {2 * GLOBAL_ID_BYTES} hexadecimal digits, not {text[:80]!r}")
    return GlobalId(bytes.fromhex(text))


def branch_xid(global_id: GlobalId, number: int, generation: GenerationTag) -> Xid:
    """The xid of participant `number` of a transaction that was begun in this generation."""
    return Xid(FORMAT_ID, global_id, f"{number}:{generation}".encode()).check()


def branch_encodings(global_id: GlobalId, generation: GenerationTag) -> Iterator[bytes]:
    """What `branch_xid` makes for every number, encoded: for those who look for branches of a transaction by the thousand."""
    begin = Xid(FORMAT_ID, global_id, b"").encode()
    return (begin + branch_id for branch_id in _branch_ids(generation))


@lru_cache(maxsize=16)
def _branch_ids(generation: GenerationTag) -> tuple[bytes, ...]:
    return tuple(f"{number}:{generation}".encode() for number in range(PARTICIPANTS_MAX))


def begun_ms_of(encoded: bytes) -> int:
    """When the transaction of an encoded xid was begun, by the wall clock of the coordinator of ours that named it; 0: another
    has made it. For those who look at thousands."""
    if not encoded.startswith(_HEAD_OF_OURS):
        return 0
    begin = len(_HEAD_OF_OURS)
    return int.from_bytes(encoded[begin : begin + GLOBAL_ID_BYTES - RANDOM_BYTES], "big")


def is_ours(xid: Xid) -> bool:
    """Whether our coordinator made it; other transaction managers use other format ids."""
    return xid.format_id == FORMAT_ID


def branch_name(xid: Xid) -> BranchName:
    """Inverse of `branch_xid`; raises `ValueError` for an xid that it never made."""
    number, colon, generation = xid.branch_id.decode("ascii", errors="replace").partition(":")
    if (
        not is_ours(xid)
        or len(xid.global_id) != GLOBAL_ID_BYTES
        or not colon
        or not (number.isascii() and number.isdigit() and str(int(number)) == number)
        or len(generation) != GENERATION_TAG_CHARACTERS
    ):
        raise ValueError(f"not a branch of our coordinator: {xid}")
    return BranchName(GlobalId(xid.global_id), int(number), GenerationTag(generation))
