"""The gid of a prepared transaction in PostgreSQL: the text under which `PREPARE TRANSACTION` keeps a branch.

Law: it is the xid, reversibly, and shorter than the 200 bytes that PostgreSQL allows whatever the xid. A gid that does not
begin as ours was given by somebody else, and is left alone.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error

from lockstep.core.xid import Xid

GID_PREFIX = "lockstep:"
GID_BYTES_MAX = 199


def gid_of(xid: Xid) -> str:
    """The gid of a branch; raises `ValueError` for an xid that is out of range."""
    xid.check()
    gid = f"{GID_PREFIX}{xid.format_id:x}:{_text(xid.global_id)}:{_text(xid.branch_id)}"
    assert len(gid) <= GID_BYTES_MAX, "two ids of 64 bytes fit"
    return gid


def xid_of(gid: str) -> Xid | None:
    """The branch that a gid names; None for one that is not ours."""
    parts = gid.removeprefix(GID_PREFIX).split(":")
    if not gid.startswith(GID_PREFIX) or len(parts) != 3:
        return None
    try:
        xid = Xid(int(parts[0], 16), _bytes(parts[1]), _bytes(parts[2])).check()
    except (ValueError, Error):
        return None
    return xid if gid_of(xid) == gid else None


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
