"""TLS with real sockets, on both event loops: who is let in, and whom the certificate names."""

import asyncio
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from services.proxy.security.identity import Identity
from services.proxy.security.mechanisms import sasl_layer
from services.proxy.security.sasl_layer import SaslLayer, SaslState
from services.proxy.security.settings import MECHANISMS, SecuritySettings, TlsSettings
from services.proxy.security.tls import certificate_user, peer_identity, server_context
from tests.unit.services.proxy.security.certificates import Certificates
from tests.unit.services.proxy.security.client import AMQP, SASL, SomeUsers, hear, init, plain

USERS = SomeUsers(ada="lovelace")
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    for authority in ("ours", "theirs"):
        made.authority(authority)
    made.signed("server", "/CN=proxy", "ours")
    made.signed("client", "/DC=net/O=Engines, Inc./CN=grace", "ours")
    made.signed("stranger", "/CN=grace", "theirs")
    return made


def tls(
    made: Certificates, client_certificates: str = "none", client_name: str = "common-name"
) -> TlsSettings:
    authority = "" if client_certificates == "none" else made.certificate("ours")
    server = made.certificate("server"), made.key("server")
    return TlsSettings(*server, authority, client_certificates, client_name)


def client_context(made: Certificates, certificate: str = "") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(made.certificate("ours"))
    if certificate:
        context.load_cert_chain(made.certificate(certificate), made.key(certificate))
    return context


async def converse(
    settings: TlsSettings, context: ssl.SSLContext | None, sent: bytes
) -> tuple[SaslLayer, bytes]:
    """Serves one connection by the layer, as the proxy does; gives the layer back, and what the client heard.

    Raises `OSError` on the client's side where TLS fails.
    """
    layers: list[SaslLayer] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = peer_identity(writer.transport, settings)
        layer = sasl_layer(SecuritySettings(MECHANISMS, tls=settings), USERS, peer)
        layers.append(layer)
        while layer.state is SaslState.NEGOTIATING and (data := await reader.read(1000)):
            layer.receive(data)
            writer.write(layer.outgoing())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_context(settings))
    async with server:
        host, port = server.sockets[0].getsockname()
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(sent)
                heard = await reader.read()
            finally:
                writer.close()
    if not layers:
        raise ConnectionResetError("the server has let nobody in")
    return layers[0], heard


def run(
    new_loop: NewLoop, settings: TlsSettings, context: ssl.SSLContext, sent: bytes
) -> tuple[SaslLayer, bytes]:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(converse(settings, context, sent))


@LOOPS
@pytest.mark.parametrize(
    ("client_name", "user"), [("common-name", "grace"), ("subject", "CN=grace,O=Engines\\, Inc.,DC=net")]
)
def test_external_is_whom_the_certificate_names(
    made: Certificates, new_loop: NewLoop, client_name: str, user: str
) -> None:
    settings = tls(made, "required", client_name)
    layer, heard = run(
        new_loop, settings, client_context(made, "client"), SASL + init("EXTERNAL", b"") + AMQP
    )
    assert layer.identity == Identity(user, "EXTERNAL")
    assert hear(heard).code == 0


@LOOPS
def test_an_optional_certificate_may_be_left_out(made: Certificates, new_loop: NewLoop) -> None:
    settings = tls(made, "optional")
    layer, heard = run(
        new_loop, settings, client_context(made), SASL + init("PLAIN", plain("ada", "lovelace"))
    )
    assert layer.identity == Identity("ada", "PLAIN")
    assert hear(heard).mechanisms == ["SCRAM-SHA-256", "PLAIN", "ANONYMOUS"]


@LOOPS
def test_a_certificate_that_nobody_asked_for_names_nobody(made: Certificates, new_loop: NewLoop) -> None:
    layer, heard = run(new_loop, tls(made), client_context(made, "client"), SASL + init("EXTERNAL", b""))
    assert layer.state is SaslState.FAILED
    assert "EXTERNAL" not in (hear(heard).mechanisms or ["EXTERNAL"])


@LOOPS
@pytest.mark.parametrize(
    ("client_certificates", "certificate"),
    [("required", ""), ("required", "stranger"), ("optional", "stranger")],
)
def test_without_a_certificate_that_is_due_nobody_is_heard(
    made: Certificates, new_loop: NewLoop, client_certificates: str, certificate: str
) -> None:
    settings = tls(made, client_certificates)
    with pytest.raises(OSError):
        run(new_loop, settings, client_context(made, certificate), SASL + init("ANONYMOUS"))


def test_tls_below_1_2_is_not_spoken(made: Certificates) -> None:
    assert server_context(tls(made)).minimum_version == ssl.TLSVersion.TLSv1_2


def test_files_that_are_no_certificates_are_named(made: Certificates, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("nothing")
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(
        ["openssl", "ec", "-in", made.key("server"), "-aes128", "-passout", "pass:x", "-out", str(encrypted)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    good, key = made.certificate("server"), made.key("server")
    for settings, named in (
        (TlsSettings("/nowhere.pem"), "/nowhere.pem"),
        (TlsSettings(str(garbage)), "garbage.pem"),
        (TlsSettings(good, made.key("client")), "server.pem"),
        (TlsSettings(good, str(encrypted)), "encrypted.key"),
        (TlsSettings(good, key, str(garbage), "required"), "garbage.pem"),
        (TlsSettings(good, key, "/nowhere.pem", "required"), "/nowhere.pem"),
    ):
        with pytest.raises(ValueError, match=named):
            server_context(settings)


def subject(*parts: tuple[str, str]) -> dict[str, object]:
    return {"subject": tuple((part,) for part in parts)}


@pytest.mark.parametrize(
    "certificate",
    [
        None,
        {},
        subject(),
        subject(("organizationName", "Engines")),
        subject(("commonName", "ada"), ("commonName", "grace")),
        subject(("commonName", "")),
        subject(("commonName", "ad\0a")),
    ],
)
def test_a_certificate_without_one_common_name_names_nobody(certificate: dict[str, object] | None) -> None:
    assert certificate_user(certificate, "common-name") is None


@pytest.mark.parametrize("certificate", [None, {}, subject(), subject(("commonName", "ad\0a"))])
def test_a_certificate_without_a_subject_names_nobody(certificate: dict[str, object] | None) -> None:
    assert certificate_user(certificate, "subject") is None


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a,b+c", "CN=a\\,b\\+c"),
        ('"\\<;>', 'CN=\\"\\\\\\<\\;\\>'),
        (" a ", "CN=\\ a\\ "),
        ("#a", "CN=\\#a"),
        (" ", "CN=\\ "),
        ("a=b", "CN=a=b"),
        ("a\uff0cO=b", "CN=a\\,O=b"),
    ],
)
def test_subjects_are_written_so_that_no_value_looks_like_two(value: str, written: str) -> None:
    assert certificate_user(subject(("commonName", value)), "subject") == written
