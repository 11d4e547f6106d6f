"""SASL EXTERNAL (RFC 4422, appendix A): the client is who its certificate says. Offered only where TLS has verified one."""

from lockstep.core.saslprep import saslprep
from services.proxy.security.identity import Identity
from services.proxy.security.sasl_login import Accepted, Refused, Step


class ExternalLogin:
    """Ends with its first step. A response that is left out is as good as an empty one: both ask for the certificate's user."""

    def __init__(self, user: str) -> None:
        self._user = user

    def step(self, response: bytes | None) -> Step:
        try:
            wanted = saslprep((response or b"").decode())
        except ValueError:
            return Refused("malformed authorization identity")
        if wanted not in ("", self._user):
            return Refused("the certificate names another user")
        return Accepted(Identity(self._user, "EXTERNAL"))
