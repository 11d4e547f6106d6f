"""TLS of the port for AMQPS: TLS first, then SASL and AMQP within it (AMQP 1.0, 5.2.1).

The other way, a TLS header within AMQP (5.2), is answered like every header that is not served.
"""

import ssl
from asyncio import BaseTransport
from typing import Any

from lockstep.core.saslprep import saslprep
from services.proxy.security.identity import UNKNOWN_PEER, PeerIdentity
from services.proxy.security.settings import COMMON_NAME, NONE, OPTIONAL, REQUIRED, SUBJECT, TlsSettings

_VERIFIED = {NONE: ssl.CERT_NONE, OPTIONAL: ssl.CERT_OPTIONAL, REQUIRED: ssl.CERT_REQUIRED}

_SHORT_NAMES = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""RFC 4514, 3."""


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """What the files say now. TLS 1.2 or newer.

    Raises `ValueError` for files that cannot be read, are no certificate or key, or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client of TLS 1.2 could make the server negotiate again and again.
    context.options |= ssl.OP_NO_RENEGOTIATION
    # Who resumes a session is not asked for a certificate again, though its authority may be trusted no longer.
    context.num_tickets = 0
    try:
        context.load_cert_chain(settings.certificate, settings.key or None, password=_no_password)
    except OSError as error:
        files = " ".join(filter(None, (settings.certificate, settings.key)))
        raise ValueError(f"certificate and key ({files}): {error}") from error
    if settings.client_ca:
        try:
            context.load_verify_locations(settings.client_ca)
        except OSError as error:
            raise ValueError(f"certificates of who signs clients' ({settings.client_ca}): {error}") from error
    context.verify_mode = _VERIFIED[settings.client_certificates]
    return context


def _no_password() -> str:
    """Instead of a question on the terminal, which would wait for ever."""
    raise ssl.SSLError("the private key is encrypted")


def peer_identity(transport: BaseTransport, settings: TlsSettings | None) -> PeerIdentity:
    """What is known of the other end of a connection that has just been made; `settings` of its port, None without TLS."""
    if settings is None or transport.get_extra_info("ssl_object") is None:
        return UNKNOWN_PEER
    certificate = transport.get_extra_info("peercert")
    return PeerIdentity(
        is_encrypted=True, certificate_user=certificate_user(certificate, settings.client_name)
    )


def certificate_user(certificate: Any, client_name: str) -> str | None:
    """The user that a verified certificate names, its values prepared by SASLprep.

    `certificate`: as `SSLSocket.getpeercert` gives it; None or empty: none was verified. `client_name`: `common-name`, which must
    be there once, or `subject`. None for nobody.
    """
    subject = (certificate or {}).get("subject", ())
    try:
        if client_name == SUBJECT:
            return _distinguished_name(subject) or None
        assert client_name == COMMON_NAME, client_name
        names = [value for part in subject for kind, value in part if kind == "commonName"]
        return saslprep(names[0]) or None if len(names) == 1 else None
    except ValueError:
        return None


def _distinguished_name(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """As RFC 4514 writes it: the most specific part first. Raises `ValueError` for a value that SASLprep refuses.

    Values are prepared before they are escaped: SASLprep makes commas of other characters.
    """
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_escaped(saslprep(value))}" for kind, value in part)
        for part in reversed(subject)
    )


def _escaped(value: str) -> str:
    """RFC 4514, 2.4, for a value without control characters."""
    escaped = "".join(f"\\{character}" if character in '\\"+,;<>' else character for character in value)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if value.endswith(" ") and len(value) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped
