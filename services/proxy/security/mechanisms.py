"""Which mechanisms a connection is offered: those of the settings that its other end can use."""

from functools import partial

from lockstep.core.scram_credentials import SCRAM_SHA_256
from services.proxy.security.anonymous import AnonymousLogin
from services.proxy.security.external import ExternalLogin
from services.proxy.security.identity import ANONYMOUS_IDENTITY, Identity, PeerIdentity
from services.proxy.security.plain import PlainLogin
from services.proxy.security.sasl_layer import SaslLayer
from services.proxy.security.sasl_login import SaslMechanism
from services.proxy.security.scram import ScramLogin
from services.proxy.security.settings import ANONYMOUS, EXTERNAL, MECHANISMS, PLAIN, SecuritySettings
from services.proxy.security.users import Users


def sasl_layer(settings: SecuritySettings, users: Users | None, peer: PeerIdentity) -> SaslLayer:
    """The layer for a new connection. `users`: None offers no mechanism that has a password."""
    offered = offered_mechanisms(settings, users, peer)
    return SaslLayer(offered, _identity_without_sasl(offered, peer))


def offered_mechanisms(
    settings: SecuritySettings, users: Users | None, peer: PeerIdentity
) -> dict[str, SaslMechanism]:
    """By their names, in the order of `MECHANISMS`."""
    found: dict[str, SaslMechanism] = {ANONYMOUS: AnonymousLogin}
    if users is not None:
        found[SCRAM_SHA_256] = partial(ScramLogin, users)
        if peer.is_encrypted or settings.is_plain_without_tls:
            found[PLAIN] = partial(PlainLogin, users)
    if peer.certificate_user is not None:
        found[EXTERNAL] = partial(ExternalLogin, peer.certificate_user)
    return {name: found[name] for name in MECHANISMS if name in found and name in settings.mechanisms}


def _identity_without_sasl(offered: dict[str, SaslMechanism], peer: PeerIdentity) -> Identity | None:
    """Of a client that begins AMQP at once: who its certificate names, else anonymous, if those are let in."""
    if EXTERNAL in offered and peer.certificate_user is not None:
        return Identity(peer.certificate_user, EXTERNAL)
    return ANONYMOUS_IDENTITY if ANONYMOUS in offered else None
