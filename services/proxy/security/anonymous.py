"""SASL ANONYMOUS (RFC 4505): everybody is let in. The trace information that may come with it is not kept."""

from services.proxy.security.identity import ANONYMOUS_IDENTITY
from services.proxy.security.sasl_login import Accepted, Step


class AnonymousLogin:
    """Ends with its first step. A response that is left out is as good as an empty one: there is nothing in it to wait for."""

    def step(self, response: bytes | None) -> Step:
        return Accepted(ANONYMOUS_IDENTITY)
