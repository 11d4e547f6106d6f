"""The client's half, written from the specifications alone: SASL frames as bytes, and SCRAM-SHA-256."""

import base64
import hashlib
import hmac
import struct
from dataclasses import dataclass, field

from lockstep.core.scram_credentials import ScramCredentials, credentials_of

SASL = b"AMQP\x03\x01\x00\x00"
AMQP = b"AMQP\x00\x01\x00\x00"
ITERATIONS = 4096


def symbol(text: str) -> bytes:
    return b"\xa3" + bytes([len(text)]) + text.encode()


def binary(data: bytes | None) -> bytes:
    if data is None:
        return b"\x40"
    return (
        b"\xa0" + bytes([len(data)]) + data
        if len(data) < 256
        else b"\xb0" + struct.pack(">I", len(data)) + data
    )


def frame(body: bytes, *, kind: int = 1, offset: int = 2) -> bytes:
    """`offset`: of the body, in words; an extended header of zeros fills up to it."""
    extended = bytes(4 * offset - 8)
    return struct.pack(">IBBH", 8 + len(extended) + len(body), offset, kind, 0) + extended + body


def listed(descriptor: bytes, *values: bytes) -> bytes:
    data = b"".join(values)
    if not values:
        return b"\x00" + descriptor + b"\x45"
    if len(data) < 255:
        return b"\x00" + descriptor + b"\xc0" + bytes([len(data) + 1, len(values)]) + data
    return b"\x00" + descriptor + b"\xd0" + struct.pack(">II", len(data) + 4, len(values)) + data


def init(mechanism: str, response: bytes | None = None) -> bytes:
    return frame(listed(b"\x53\x41", symbol(mechanism), binary(response)))


def response(data: bytes) -> bytes:
    return frame(listed(b"\x53\x43", binary(data)))


def plain(user: str, password: str, acting: str = "") -> bytes:
    return "\0".join((acting, user, password)).encode()


@dataclass
class Heard:
    """What a server has sent; every field as it came last."""

    headers: list[bytes] = field(default_factory=list)
    mechanisms: list[str] | None = None
    challenges: list[bytes] = field(default_factory=list)
    code: int | None = None
    additional_data: bytes | None = None


def hear(data: bytes) -> Heard:
    """Reads what a server sent, in the encodings that this server chooses."""
    heard = Heard()
    while data:
        if data.startswith(b"AMQP"):
            heard.headers.append(data[:8])
            data = data[8:]
            continue
        size, offset, kind, _ = struct.unpack(">IBBH", data[:8])
        assert (offset, kind) == (2, 1) and size <= 512 and len(data) >= size
        body, data = data[8:size], data[size:]
        assert body[:2] == b"\x00\x53" and body[3] == 0xD0
        list_size, count = struct.unpack(">II", body[4:12])
        assert list_size == len(body) - 8
        _take(heard, body[2], count, body[12:])
    return heard


def _take(heard: Heard, descriptor: int, count: int, values: bytes) -> None:
    match descriptor:
        case 0x40:
            assert count == 1 and values[0] == 0xF0
            size, elements = struct.unpack(">II", values[1:9])
            assert size == len(values) - 5 and values[9] == 0xB3
            rest, heard.mechanisms = values[10:], []
            for _ in range(elements):
                (length,) = struct.unpack(">I", rest[:4])
                heard.mechanisms.append(rest[4 : 4 + length].decode())
                rest = rest[4 + length :]
            assert rest == b""
        case 0x42:
            assert count == 1
            heard.challenges.append(_binary(values))
        case 0x44:
            assert count in (1, 2) and values[0] == 0x50
            heard.code = values[1]
            heard.additional_data = _binary(values[2:]) if count == 2 else None
        case _:
            raise AssertionError(f"a server does not send 0x{descriptor:x}")


def _binary(encoded: bytes) -> bytes:
    (length,) = struct.unpack(">I", encoded[1:5])
    assert encoded[0] == 0xB0 and len(encoded) == 5 + length
    return encoded[5:]


class ScramClient:
    """RFC 5802 from the client's side; `gs2` is its header."""

    def __init__(
        self, user: str, password: str, nonce: str = "fyko+d2lbbFgONRv9qkxdawL", gs2: str = "n,,"
    ) -> None:
        self.password = password
        self.gs2 = gs2
        self.nonce = nonce
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self.server_signature = b""

    def first(self) -> bytes:
        return (self.gs2 + self.bare).encode()

    def final(self, server_first: bytes, *, gs2: str | None = None, nonce: str | None = None) -> bytes:
        """`gs2`, `nonce`: others than there were, rightly signed."""
        parts = dict(part.split("=", 1) for part in server_first.decode().split(","))
        assert parts["r"].startswith(self.nonce) and len(parts["r"]) > len(self.nonce)
        salt = base64.b64decode(parts["s"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, int(parts["i"]))
        client_key = hmac.new(salted, b"Client Key", hashlib.sha256).digest()
        stored_key = hashlib.sha256(client_key).digest()
        binding = base64.b64encode((self.gs2 if gs2 is None else gs2).encode()).decode()
        without_proof = f"c={binding},r={parts['r'] if nonce is None else nonce}"
        message = ",".join((self.bare, server_first.decode(), without_proof)).encode()
        signature = hmac.new(stored_key, message, hashlib.sha256).digest()
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.new(salted, b"Server Key", hashlib.sha256).digest()
        self.server_signature = hmac.new(server_key, message, hashlib.sha256).digest()
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def is_server(self, server_final: bytes | None) -> bool:
        """Whether the server has proved that it knows the user too."""
        return server_final == b"v=" + base64.b64encode(self.server_signature)


class SomeUsers:
    """`Users` of a test: names and passwords. An unknown user gets what nobody's password fits."""

    def __init__(self, **passwords: str) -> None:
        self.known = {
            name: credentials_of(password, name.encode().ljust(16), ITERATIONS)
            for name, password in passwords.items()
        }
        self.asked: list[str] = []

    def credentials(self, user: str) -> ScramCredentials:
        self.asked.append(user)
        made_up = ScramCredentials(ITERATIONS, b"salt of nobody..", bytes(32), bytes(32))
        return self.known.get(user, made_up)
