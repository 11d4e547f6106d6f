"""What a server keeps of a password: enough to recognise who knows it, not enough to log in (RFC 5802, 3; RFC 7677).

Law: the password itself is kept nowhere, and nothing here is shown by `repr`.

Written as PostgreSQL writes it: `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`, the three in base64; in a users
file behind `<name>:`.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from dataclasses import dataclass, field

from lockstep.core.saslprep import saslprep

SCRAM_SHA_256 = "SCRAM-SHA-256"
KEY_BYTES = 32
ITERATIONS_MIN = 4096
"""RFC 7677, 4."""
ITERATIONS_MAX = 1_000_000
"""About half a second of CPU for each login by PLAIN."""
ITERATIONS_DEFAULT = 15_000
"""About 10 ms of CPU for each login by PLAIN; a login by SCRAM costs the server two hashes, whatever the number."""
SALT_BYTES = 16
SALT_BYTES_MAX = 64
"""So that a challenge stays below the 512 bytes of a SASL frame (AMQP 1.0, 5.3.1)."""
NAME_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class ScramCredentials:
    """Of one user; immutable."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    """Hash of the client key: recognises who has that key."""
    server_key: bytes = field(repr=False)
    """Proves to the client that the server has these credentials."""

    def check(self) -> "ScramCredentials":
        """Itself; raises `ValueError` for figures out of range."""
        if not ITERATIONS_MIN <= self.iterations <= ITERATIONS_MAX:
            raise ValueError(f"iterations are {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {self.iterations}")
        if not 1 <= len(self.salt) <= SALT_BYTES_MAX:
            raise ValueError(f"a salt has 1 to {SALT_BYTES_MAX} bytes, not {len(self.salt)}")
        if not len(self.stored_key) == len(self.server_key) == KEY_BYTES:
            raise ValueError(f"keys have {KEY_BYTES} bytes")
        return self


def credentials_of(password: str, salt: bytes, iterations: int = ITERATIONS_DEFAULT) -> ScramCredentials:
    """Credentials to keep for a password. `salt`: random bytes, `SALT_BYTES` of them, used for nothing else.

    Raises `ValueError` for an empty password or one that SASLprep refuses, and for figures out of range.
    """
    prepared = saslprep(password, is_stored=True)
    if not prepared:
        raise ValueError("the password is empty")
    return ScramCredentials(iterations, salt, *_keys(prepared, salt, iterations)).check()


def is_password(credentials: ScramCredentials, password: str) -> bool:
    """Whether the password is the one of these credentials; takes as long for a wrong one as for the right one."""
    try:
        prepared = saslprep(password)
    except ValueError:
        prepared = ""
    stored_key, _ = _keys(prepared, credentials.salt, credentials.iterations)
    is_equal = hmac.compare_digest(stored_key, credentials.stored_key)
    return is_equal and prepared != ""


def _keys(prepared: str, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """Stored key and server key."""
    salted = hashlib.pbkdf2_hmac("sha256", prepared.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", "sha256")


def prepared_name(name: str) -> str:
    """The form under which a user is known; raises `ValueError` for a name that a line of a users file cannot hold."""
    prepared = saslprep(name)
    if not prepared or prepared != prepared.strip() or prepared.startswith("#") or ":" in prepared:
        raise ValueError("a name is not empty, has no ':', and neither '#' before it nor spaces around it")
    if len(prepared.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"a name has at most {NAME_BYTES_MAX} bytes")
    return prepared


def user_line(name: str, credentials: ScramCredentials) -> str:
    """The line of a users file, without its end; raises `ValueError` for a name that cannot be one."""
    saslprep(name, is_stored=True)
    salt, stored_key, server_key = (
        b64encode(part).decode()
        for part in (credentials.salt, credentials.stored_key, credentials.server_key)
    )
    keys = f"{stored_key}:{server_key}"
    return f"{prepared_name(name)}:{SCRAM_SHA_256}${credentials.iterations}:{salt}${keys}"


def read_user_line(line: str) -> tuple[str, ScramCredentials]:
    """Name and credentials; raises `ValueError`, with nothing of the line in its message, for a line that is none."""
    name, _, text = line.strip().partition(":")
    parts = text.split("$")
    figures = [part.split(":") for part in parts[1:]]
    if parts[0] != SCRAM_SHA_256 or [len(pair) for pair in figures] != [2, 2]:
        raise ValueError(f"expected name:{SCRAM_SHA_256}$iterations:salt$storedkey:serverkey")
    (iterations, salt), (stored_key, server_key) = figures
    if not (iterations.isascii() and iterations.isdigit() and len(iterations) < 10):
        raise ValueError("iterations are a number")
    salt_bytes, stored, server = (b64decode(part, validate=True) for part in (salt, stored_key, server_key))
    return prepared_name(name), ScramCredentials(int(iterations), salt_bytes, stored, server).check()
