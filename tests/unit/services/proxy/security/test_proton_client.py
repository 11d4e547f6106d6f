"""The layer with Proton's own client engine: a client that is not ours understands every frame, and then speaks AMQP."""

import pytest
from proton import SASL, Connection, Endpoint, Transport

from services.proxy.security.identity import Identity, PeerIdentity
from services.proxy.security.mechanisms import sasl_layer
from services.proxy.security.sasl_layer import SaslLayer, SaslState
from services.proxy.security.settings import MECHANISMS, SecuritySettings
from tests.unit.services.proxy.security.client import SomeUsers

PEER = PeerIdentity(is_encrypted=True, certificate_user="grace")
USERS = SomeUsers(ada="lovelace")


class Engine:
    """One end of a connection, without sockets."""

    def __init__(self, mode: int) -> None:
        self.connection = Connection()
        self.transport = Transport(mode)

    def bind(self) -> None:
        self.transport.bind(self.connection)

    def push(self, data: bytes) -> None:
        while data and self.transport.capacity() > 0:
            taken = data[: self.transport.capacity()]
            self.transport.push(taken)
            data = data[len(taken) :]

    def condition(self) -> str:
        """Why the transport ended; "": it did not."""
        found = self.transport.condition
        return found.name if found is not None else ""

    def pending(self) -> bytes:
        data = bytearray()
        while (count := self.transport.pending()) > 0:
            data += self.transport.peek(count) or b""
            self.transport.pop(count)
        return bytes(data)


def client(mechanism: str, user: str = "", password: str = "") -> Engine:
    engine = Engine(Transport.CLIENT)
    engine.connection.container = "client"
    engine.connection.hostname = "proxy"
    if user:
        engine.connection.user = user
        engine.connection.password = password
    sasl = engine.transport.sasl()
    sasl.allow_insecure_mechs = True
    sasl.allowed_mechs(mechanism)
    engine.bind()
    engine.connection.open()
    return engine


def converse(engine: Engine, size: int) -> tuple[SaslLayer, Engine]:
    """The layer, and behind it a server's engine without SASL, until nobody has anything to say."""
    layer = sasl_layer(SecuritySettings(MECHANISMS), USERS, PEER)
    server = Engine(Transport.SERVER)
    server.bind()
    server.connection.container = "server"
    while sent := engine.pending():
        for start in range(0, len(sent), size):
            server.push(layer.receive(sent[start : start + size]))
        engine.push(layer.outgoing())
        if layer.state is SaslState.DONE:
            if server.connection.state & Endpoint.LOCAL_UNINIT:
                server.connection.open()
            engine.push(server.pending())
    return layer, server


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("mechanism", "user", "password", "identity"),
    [
        ("ANONYMOUS", "", "", Identity("anonymous", "ANONYMOUS", is_anonymous=True)),
        ("EXTERNAL", "", "", Identity("grace", "EXTERNAL")),
        ("PLAIN", "ada", "lovelace", Identity("ada", "PLAIN")),
    ],
)
def test_protons_client_is_let_in_and_opens(
    mechanism: str, user: str, password: str, identity: Identity, size: int
) -> None:
    engine = client(mechanism, user, password)
    layer, server = converse(engine, size)
    assert (layer.state, layer.identity) == (SaslState.DONE, identity)
    assert engine.transport.sasl().outcome == SASL.OK
    assert server.connection.remote_container == "client"
    assert engine.connection.remote_container == "server"


def test_protons_client_hears_that_the_password_is_wrong() -> None:
    engine = client("PLAIN", "ada", "byron")
    layer, server = converse(engine, 1000)
    assert layer.state is SaslState.FAILED
    assert engine.transport.sasl().outcome == SASL.AUTH
    assert engine.condition() == "amqp:unauthorized-access"
    assert server.connection.remote_container is None


def test_protons_client_without_sasl_is_anonymous_only_where_that_is_allowed() -> None:
    engine = Engine(Transport.CLIENT)
    engine.connection.container = "client"
    engine.bind()
    engine.connection.open()
    settings = SecuritySettings(("PLAIN",))
    layer = sasl_layer(settings, USERS, PEER)
    assert layer.receive(engine.pending()) == b""
    engine.push(layer.outgoing())
    assert layer.state is SaslState.FAILED
    assert engine.condition() == "amqp:connection:framing-error"
