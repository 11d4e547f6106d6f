"""SASL PLAIN (RFC 4616): `[authzid] NUL authcid NUL password`. The password travels as it is, so only TLS keeps it secret.

Each login costs the hashing of a password (`ScramCredentials.iterations`), for an unknown user as for a known one.
"""

from lockstep.core.saslprep import saslprep
from lockstep.core.scram_credentials import is_password
from services.proxy.security.identity import Identity
from services.proxy.security.sasl_login import WRONG_CREDENTIALS, Accepted, Challenge, Refused, Step
from services.proxy.security.users import Users

_MALFORMED = Refused("malformed PLAIN response")


class PlainLogin:
    """Ends with the first response. Acting for somebody else than the one whose password is given is refused."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def step(self, response: bytes | None) -> Step:
        if response is None:
            # The client speaks first; who said nothing is asked to (RFC 4422, 3.3).
            return Challenge(b"")
        parts = response.split(b"\0")
        if len(parts) != 3:
            return _MALFORMED
        try:
            acting, name, password = (part.decode() for part in parts)
            user = saslprep(name)
            acting_user = saslprep(acting)
        except ValueError:
            return _MALFORMED
        if not user or not password:
            return _MALFORMED
        if not is_password(self._users.credentials(user), password):
            return WRONG_CREDENTIALS
        if acting_user not in ("", user):
            return Refused("acting for another user")
        return Accepted(Identity(user, "PLAIN"))
