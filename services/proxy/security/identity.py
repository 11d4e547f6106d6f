"""Who a connection speaks for, and what TLS knows of it."""

from dataclasses import dataclass

ANONYMOUS_USER = "anonymous"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a connection speaks for, from the end of SASL until it closes."""

    user: str
    """Prepared by SASLprep. Says nothing by itself where `is_anonymous`: somebody may be called anonymous."""
    mechanism: str
    """The SASL mechanism that authenticated it, also where the client left SASL out."""
    is_anonymous: bool = False


ANONYMOUS_IDENTITY = Identity(ANONYMOUS_USER, "ANONYMOUS", is_anonymous=True)


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """What is known of the other end before it has said anything; made by `tls.peer_identity`."""

    is_encrypted: bool = False
    certificate_user: str | None = None
    """Named by a client certificate that TLS has verified; None: there is none, or it names nobody."""


UNKNOWN_PEER = PeerIdentity()
"""Of a connection without TLS."""
