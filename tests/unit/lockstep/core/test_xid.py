"""Names of branches: what is one, and what is refused."""

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.xid import FORMAT_ID_MAX, ID_BYTES_MAX, Xid
from lockstep.runtime.xid_codec import decode_xid
from lockstep.wire.v1 import coordinator_pb2 as pb

MALFORMED = [
    (Xid(-1, b"g", b""), "format id -1 is not between 0 and 2147483647"),
    (Xid(FORMAT_ID_MAX + 1, b"g", b""), "format id 2147483648 is not between 0 and 2147483647"),
    (Xid(0, b"", b"b"), "a global id has 1 to 64 bytes, not 0"),
    (Xid(0, b"g" * (ID_BYTES_MAX + 1), b"b"), "a global id has 1 to 64 bytes, not 65"),
    (Xid(0, b"g", b"b" * (ID_BYTES_MAX + 1)), "a branch id has at most 64 bytes, not 65"),
]


@pytest.mark.parametrize(
    "xid",
    [Xid(0, b"g", b""), Xid(FORMAT_ID_MAX, b"g" * ID_BYTES_MAX, b"b" * ID_BYTES_MAX), Xid(7, b":", b"\x00:")],
)
def test_an_xid_survives_bytes_text_and_wire(xid: Xid) -> None:
    assert Xid.decode(xid.encode()) == xid
    assert Xid.parse(str(xid)) == xid
    assert decode_xid(pb.BranchXid(format_id=xid[0], global_id=xid[1], branch_id=xid[2])) == xid


@pytest.mark.parametrize(("xid", "why"), MALFORMED)
def test_what_is_out_of_range_is_refused_by_name(xid: Xid, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        xid.encode()
    if xid.format_id >= 0:
        with pytest.raises(ValueError, match=why):
            Xid.parse(str(xid))
        with pytest.raises(Rejected, match=why) as caught:
            decode_xid(pb.BranchXid(format_id=xid[0], global_id=xid[1], branch_id=xid[2]))
        assert caught.value.code is ErrorCode.INVALID_ARGUMENT
        assert caught.value.details == {"xid": str(xid)}


@pytest.mark.parametrize("encoded", [b"", bytes(4), b"\x80\x00\x00\x00\x01g", bytes(5), bytes(4) + b"\x02g"])
def test_bytes_that_are_no_xid_are_refused(encoded: bytes) -> None:
    with pytest.raises(ValueError):
        Xid.decode(encoded)


@pytest.mark.parametrize(
    "text", ["", "7", "7:00", "7:00:00:00", "-7:00:00", "x:00:00", "7:0:00", "7:zz:00", "9" * 11 + ":00:00"]
)
def test_text_that_is_no_xid_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Xid.parse(text)
