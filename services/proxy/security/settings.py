"""Who is let in, from the command line of the proxy, with the reason for each default."""

import argparse
from dataclasses import dataclass, field

from lockstep.core.scram_credentials import SCRAM_SHA_256

ANONYMOUS, PLAIN, EXTERNAL = "ANONYMOUS", "PLAIN", "EXTERNAL"
MECHANISMS = EXTERNAL, SCRAM_SHA_256, PLAIN, ANONYMOUS
"""Those that there are, in the order in which they are offered: the stronger first."""

CLIENT_CERTIFICATES = NONE, OPTIONAL, REQUIRED = "none", "optional", "required"
CLIENT_NAMES = COMMON_NAME, SUBJECT = "common-name", "subject"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Of the port for AMQPS."""

    certificate: str
    """PEM file: the server's certificate, with those between it and the root behind it."""
    key: str = field(repr=False, default="")
    """PEM file with the private key, without a password; "": in the file of the certificate."""
    client_ca: str = ""
    """PEM file: who may have signed a client's certificate. Needed if clients may or must have one."""
    client_certificates: str = NONE
    """`none`: not asked for; `optional`: verified if there is one; `required`."""
    client_name: str = COMMON_NAME
    """What of a client's certificate names the user: its `common-name`, or the whole `subject` as RFC 4514 writes it."""


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """How clients say who they are."""

    mechanisms: tuple[str, ...] = (ANONYMOUS,)
    """Those that may be offered. By default nobody has to say who they are, as there are no users yet."""
    is_plain_without_tls: bool = False
    """Whether PLAIN is offered where everybody on the way can read the password."""
    users: str = ""
    """Users file; "": nobody has a password."""
    tls: TlsSettings | None = None
    """None: no port for AMQPS."""


def add_security_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `security_of` reads."""
    parser.add_argument(
        "--mechanism",
        action="append",
        choices=MECHANISMS,
        help="SASL mechanism that clients may use, once for each; default: ANONYMOUS, "
        "with --users instead SCRAM-SHA-256 and PLAIN",
    )
    parser.add_argument("--users", default="", metavar="FILE", help="lines made by: lockstep user hash NAME")
    parser.add_argument("--plain-without-tls", action="store_true", help="offer PLAIN without TLS too")
    parser.add_argument("--tls-certificate", default="", metavar="FILE", help="of the server, in PEM")
    parser.add_argument("--tls-key", default="", metavar="FILE")
    parser.add_argument("--tls-client-ca", default="", metavar="FILE")
    parser.add_argument("--tls-client-certificates", choices=CLIENT_CERTIFICATES, default=NONE)
    parser.add_argument("--tls-client-name", choices=CLIENT_NAMES, default=COMMON_NAME)


def security_of(given: argparse.Namespace) -> SecuritySettings:
    """Raises `ValueError` for options that contradict each other."""
    by_password = SCRAM_SHA_256, PLAIN
    mechanisms = tuple(given.mechanism or (by_password if given.users else (ANONYMOUS,)))
    if given.users and not set(mechanisms) & set(by_password):
        raise ValueError(f"--users is for {SCRAM_SHA_256} and {PLAIN}, and neither is among the mechanisms")
    if not given.users and set(mechanisms) & set(by_password):
        raise ValueError(f"{SCRAM_SHA_256} and {PLAIN} need --users")
    tls = None
    if given.tls_certificate:
        tls = TlsSettings(
            given.tls_certificate,
            given.tls_key,
            given.tls_client_ca,
            given.tls_client_certificates,
            given.tls_client_name,
        )
        if (tls.client_certificates == NONE) == bool(tls.client_ca):
            raise ValueError("--tls-client-ca and --tls-client-certificates go together")
    elif given.tls_key or given.tls_client_ca or given.tls_client_certificates != NONE:
        raise ValueError("options of TLS need --tls-certificate")
    if EXTERNAL in mechanisms and (tls is None or tls.client_certificates == NONE):
        raise ValueError(f"{EXTERNAL} needs client certificates: --tls-client-certificates")
    return SecuritySettings(mechanisms, given.plain_without_tls, given.users, tls)
