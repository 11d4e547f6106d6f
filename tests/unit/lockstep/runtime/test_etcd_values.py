"""What the etcd adaptor decides without etcd: endpoints, prefixes, and whether a failure is definite."""

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata
from hypothesis import given
from hypothesis import strategies as st

from lockstep.runtime.etcd_codec import key_bytes, key_text, prefix_end
from lockstep.runtime.etcd_endpoints import parse_endpoints
from lockstep.runtime.etcd_failures import refusal
from lockstep.runtime.etcd_values import LeaseGone


def test_endpoints_are_read_with_and_without_scheme() -> None:
    assert parse_endpoints("http://127.0.0.1:2379, localhost:2380/") == ["127.0.0.1:2379", "localhost:2380"]
    assert parse_endpoints(["http://[::1]:2379"]) == ["[::1]:2379"]


@pytest.mark.parametrize("bad", ["", "https://a:1", "host", "host:", ":2379", "a:b", "unix:///x"])
def test_what_is_no_endpoint_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        parse_endpoints(bad)


@given(st.binary(max_size=4), st.binary(max_size=4))
def test_prefix_end_is_behind_exactly_the_keys_with_the_prefix(prefix: bytes, key: bytes) -> None:
    end = prefix_end(key_text(prefix))
    is_inside = key >= prefix and (end == b"\0" or key < end)
    assert is_inside == key.startswith(prefix)


@given(st.binary())
def test_any_key_survives_being_text(key: bytes) -> None:
    assert key_bytes(key_text(key)) == key


@pytest.mark.parametrize(
    ("code", "details", "is_definite"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", True),
        (grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found", True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", True),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader", True),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out", False),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed", False),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: server stopped", False),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max", False),
        (grpc.StatusCode.UNKNOWN, "etcdserver: who knows", False),
        (grpc.StatusCode.INTERNAL, "", False),
    ],
)
def test_only_a_refusal_before_execution_is_definite(
    code: grpc.StatusCode, details: str, is_definite: bool
) -> None:
    assert (refusal(AioRpcError(code, Metadata(), Metadata(), details), 0) is not None) is is_definite


def test_a_missing_lease_is_named() -> None:
    error = AioRpcError(
        grpc.StatusCode.NOT_FOUND, Metadata(), Metadata(), "etcdserver: requested lease not found"
    )
    assert repr(refusal(error, 7)) == "LeaseGone(NOT_FOUND, 'the lease is gone', lease_id=7)"
    assert isinstance(refusal(error, 7), LeaseGone)
