"""What HTTP/2 headers say in gRPC: metadata, statuses, deadlines (gRPC over HTTP/2, Requests and Responses).

Law: names are lower-case ASCII; values of names that end in `-bin` are bytes, in base64 on the wire, all others printable ASCII.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

import grpc

Header = tuple[bytes, bytes]
Pairs = tuple[tuple[str, str | bytes], ...]

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_OWN = (b"content-type", b"te", b"user-agent", b"grpc-", b":")
"""Prefixes of headers that are not metadata."""
STATUS_DIGITS_MAX = 3
"""Of a status that is one; with more of them `int` may refuse."""
DETAILS_MAX = 4096
"""Characters of a status's details that are sent: what fits no field ends more than its call."""
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_NO_VALUE = re.compile(rb"[\0\r\n]")
_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_OF_CONNECTION = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}

_HTTP = {
    400: grpc.StatusCode.INTERNAL,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    429: grpc.StatusCode.UNAVAILABLE,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.UNAVAILABLE,
}
"""Of answers that are none of gRPC, as gRPC maps them."""

_FACTORS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
"""Seconds in a unit of `grpc-timeout`."""
_UNITS = ((100_000_000, "n", 1e9), (100_000_000, "u", 1e6), (100_000_000, "m", 1e3), (100_000_000, "S", 1.0))


def is_request(headers: Iterable[Header]) -> bool:
    """Whether they are well-formed headers of a request (RFC 9113, 8.2 and 8.3).

    But for white space around a value, which gRPC allows, and a `host` beside the `:authority`: grpcio sends both for its users.
    """
    missing, is_behind = set(_PSEUDO), False
    for name, value in headers:
        if _NO_VALUE.search(value):
            return False
        if name[:1] == b":":
            if is_behind or name not in missing:
                return False
            missing.remove(name)
        elif name in _OF_CONNECTION or not _NAME.fullmatch(name):
            return False
        else:
            is_behind = True
    return missing <= {b":authority"}


def encode_pairs(pairs: Iterable[tuple[str, str | bytes]]) -> list[Header]:
    """Metadata as headers."""
    return [
        (
            name.encode(),
            base64.b64encode(value if isinstance(value, bytes) else value.encode()).rstrip(b"=")
            if name.endswith("-bin")
            else value.encode()
            if isinstance(value, str)
            else value,
        )
        for name, value in pairs
    ]


def decode_pairs(headers: Iterable[Header]) -> Pairs:
    """The metadata among headers."""
    return tuple(
        (name.decode("latin-1"), _decode_value(name, value))
        for name, value in headers
        if not name.startswith(_OWN)
    )


def _decode_value(name: bytes, value: bytes) -> str | bytes:
    if not name.endswith(b"-bin"):
        return value.decode("latin-1")
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4))
    except binascii.Error:
        return b""


def encode_status(
    code: grpc.StatusCode, details: str, pairs: Iterable[tuple[str, str | bytes]]
) -> list[Header]:
    """The trailers of a call."""
    trailers = [(b"grpc-status", str(code.value[0]).encode())]
    if details:
        text = quote(details[:DETAILS_MAX], safe=_PRINTABLE, errors="replace")
        trailers.append((b"grpc-message", text.encode()))
    return trailers + encode_pairs(pairs)


def decode_status(headers: Iterable[Header]) -> tuple[grpc.StatusCode, str] | None:
    """Status and details; None where headers say nothing of a status."""
    found = dict(headers)
    number = found.get(b"grpc-status")
    if number is None:
        return None
    code = _CODES.get(_number(number), grpc.StatusCode.UNKNOWN)
    return code, unquote(found.get(b"grpc-message", b"").decode("latin-1"), errors="replace")


def foreign_status(headers: Iterable[Header]) -> tuple[grpc.StatusCode, str] | None:
    """Status of an answer that is none of gRPC; None of one that is."""
    found = dict(headers)
    status = found.get(b":status", b"")
    if status == b"200" and found.get(b"content-type", b"").startswith(b"application/grpc"):
        return None
    code = _HTTP.get(_number(status), grpc.StatusCode.UNKNOWN)
    return code, f"the answer is none of gRPC: status {status.decode('latin-1')}"


def _number(text: bytes) -> int:
    """Of a status; -1 where it is none."""
    return int(text) if text.isdigit() and len(text) <= STATUS_DIGITS_MAX else -1


def encode_timeout(seconds: float) -> bytes:
    """The value of `grpc-timeout`."""
    for limit, unit, factor in _UNITS:
        if (amount := int(seconds * factor)) < limit:
            return f"{max(amount, 0)}{unit}".encode()
    return b"99999999S"


def decode_timeout(value: bytes) -> float | None:
    """Seconds; None where there is none."""
    factor = _FACTORS.get(value[-1:])
    return (
        int(value[:-1]) * factor if factor is not None and value[:-1].isdigit() and len(value) <= 9 else None
    )
