"""SASL SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's half, without channel binding.

Law: until the client's proof has been checked, a client of an unknown user sees what a client of a known one sees.

    client-first  n,,n=user,r=cnonce        ->
                  <- r=cnonce+snonce,s=salt,i=iterations          server-first
    client-final  c=biws,r=cnonce+snonce,p=proof    ->
                  <- v=signature, in the outcome                  server-final
"""

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable

from lockstep.core.saslprep import saslprep
from lockstep.core.scram_credentials import KEY_BYTES, SCRAM_SHA_256, ScramCredentials
from services.proxy.security.identity import Identity
from services.proxy.security.sasl_login import WRONG_CREDENTIALS, Accepted, Challenge, Refused, Step
from services.proxy.security.users import Users

NONCE_BYTES = 18
"""Random; 24 characters in base64."""
CLIENT_NONCE_CHARACTERS_MAX = 256
"""So that the challenge, which repeats it, stays below the 512 bytes of a SASL frame (AMQP 1.0, 5.3.1); usual are 24 to 48."""

_SASLNAME = re.compile("(?:[^=]|=2C|=3D)*")
_MALFORMED = Refused("malformed SCRAM message")


def random_nonce() -> str:
    """Printable, without a comma."""
    return b64encode(secrets.token_bytes(NONCE_BYTES)).decode()


class ScramLogin:
    """Two responses: client-first, client-final."""

    def __init__(self, users: Users, new_nonce: Callable[[], str] = random_nonce) -> None:
        self._users = users
        self._new_nonce = new_nonce
        self._user = ""
        self._gs2_header = ""
        self._nonce = ""
        self._auth_prefix = ""
        """client-first without its gs2 header, and server-first: what the proof signs, up to client-final."""
        self._credentials: ScramCredentials | None = None
        """Set with the challenge; None: client-first has not come."""

    def step(self, response: bytes | None) -> Step:
        if response is None:
            # The client speaks first; who said nothing is asked to (RFC 4422, 3.3).
            return Challenge(b"")
        try:
            text = response.decode()
            if self._credentials is None:
                return self._client_first(text)
            return self._client_final(text, self._credentials)
        except ValueError:
            return _MALFORMED

    def _client_first(self, text: str) -> Step:
        """Raises `ValueError` for a malformed one."""
        binding, acting, bare = text.split(",", 2)
        if binding.startswith("p="):
            return Refused("channel binding, which was not offered")
        if binding not in ("n", "y"):
            return _MALFORMED
        # m= asks for an extension, which nobody has defined: a server that does not know it refuses (RFC 5802, 5.1).
        name, nonce, *_ = bare.split(",")
        user = _name(_value("n", name))
        client_nonce = _value("r", nonce)
        is_nonce = client_nonce.isascii() and client_nonce.isprintable() and " " not in client_nonce
        if not user or not 1 <= len(client_nonce) <= CLIENT_NONCE_CHARACTERS_MAX or not is_nonce:
            return _MALFORMED
        if acting and _name(_value("a", acting)) != user:
            return Refused("acting for another user")
        credentials = self._users.credentials(user)
        self._user = user
        self._gs2_header = f"{binding},{acting},"
        self._nonce = client_nonce + self._new_nonce()
        salt = b64encode(credentials.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={credentials.iterations}"
        self._auth_prefix = f"{bare},{server_first},"
        self._credentials = credentials
        return Challenge(server_first.encode())

    def _client_final(self, text: str, credentials: ScramCredentials) -> Step:
        """Raises `ValueError` for a malformed one."""
        without_proof, separator, proof_text = text.rpartition(",p=")
        binding, nonce, *_ = without_proof.split(",")
        proof = b64decode(proof_text, validate=True)
        if not separator or len(proof) != KEY_BYTES:
            return _MALFORMED
        if b64decode(_value("c", binding), validate=True) != self._gs2_header.encode():
            return Refused("another gs2 header than at first")
        if not hmac.compare_digest(_value("r", nonce).encode(), self._nonce.encode()):
            return Refused("another nonce than at first")
        message = (self._auth_prefix + without_proof).encode()
        signature = hmac.digest(credentials.stored_key, message, "sha256")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), credentials.stored_key):
            return WRONG_CREDENTIALS
        server_signature = hmac.digest(credentials.server_key, message, "sha256")
        return Accepted(Identity(self._user, SCRAM_SHA_256), b"v=" + b64encode(server_signature))


def _value(key: str, attribute: str) -> str:
    """Of `key=value`; raises `ValueError` for another key."""
    found, separator, value = attribute.partition("=")
    if found != key or not separator:
        raise ValueError("another attribute was due")
    return value


def _name(saslname: str) -> str:
    """A name as SCRAM writes it, '=' and ',' by =3D and =2C; raises `ValueError` for another use of '='."""
    if _SASLNAME.fullmatch(saslname) is None:
        raise ValueError("'=' in a name that stands for nothing")
    return saslprep(saslname.replace("=2C", ",").replace("=3D", "="))
