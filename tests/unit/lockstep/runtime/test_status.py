"""Every error code has a status, and an error survives the way through gRPC."""

import re
from pathlib import Path

import grpc
import grpc.aio
import pytest

from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.runtime.status import CODE_KEY, DETAILS_KEY, DOUBT_KEY, STATUS, error_from, metadata_of


def rpc_error(
    status: grpc.StatusCode, text: str, metadata: tuple[tuple[str, str | bytes], ...] = ()
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), text)


def test_the_users_documentation_has_every_code_with_its_number_and_status() -> None:
    text = (Path(__file__).parents[4] / "docs/errors.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| `(\w+)` \| \S", text, re.MULTILINE)
    told = [
        (str(int(code)), code.name, STATUS[code].name) for code in ErrorCode if code is not ErrorCode.NONE
    ]
    assert rows == told
    for key in (CODE_KEY, DOUBT_KEY, DETAILS_KEY):
        assert f"`{key}`" in text


def test_every_code_is_in_the_table() -> None:
    assert set(STATUS) == set(ErrorCode)
    assert [code for code, status in STATUS.items() if status is grpc.StatusCode.OK] == [ErrorCode.NONE]


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
@pytest.mark.parametrize("kind", [Rejected, InDoubt])
def test_an_error_arrives_as_it_left(kind: type[LockstepError], code: ErrorCode) -> None:
    left = kind(code, "queue q is full", queue="q", length=3)
    assert repr(error_from(rpc_error(STATUS[code], left.message, metadata_of(left)))) == repr(left)


def test_a_lost_connection_is_in_doubt_unless_the_call_only_reads() -> None:
    lost = rpc_error(grpc.StatusCode.UNAVAILABLE, "connection reset")
    assert repr(error_from(lost)) == "InDoubt(UNAVAILABLE, 'connection reset')"
    assert repr(error_from(lost, is_read=True)) == "Rejected(UNAVAILABLE, 'connection reset')"


def test_a_method_that_is_not_served_did_not_happen() -> None:
    assert isinstance(error_from(rpc_error(grpc.StatusCode.UNIMPLEMENTED, "no method")), Rejected)


def test_metadata_of_a_newer_or_broken_broker_is_an_error_all_the_same() -> None:
    newer = rpc_error(grpc.StatusCode.UNKNOWN, "new", (("lockstep-code", "999"),))
    assert error_from(newer).code is ErrorCode.ILLEGAL_STATE
    broken = rpc_error(
        grpc.StatusCode.NOT_FOUND,
        "x",
        (("lockstep-code", "1"), ("lockstep-details-bin", b"\xff"), ("other", "y")),
    )
    assert repr(error_from(broken)) == "Rejected(NOT_FOUND, 'x')"
