"""Proton's Python client: opening, logging in, TLS, idle time-outs and the end of a connection.

Proton's build without Cyrus has no SCRAM on the client's side: that is tested with other clients.
"""

import time
from typing import Any

import pytest
from proton import ConnectionException, SSLDomain
from proton.utils import ConnectionClosed

from tests.conformance.amqp.cluster import PASSWORD, STRICT_IDLE_SECONDS, USER, AmqpCluster
from tests.conformance.amqp.proton_client import ProtonClient


def domain(amqp: AmqpCluster, name: str = "") -> SSLDomain:
    """Trusts the authority of the tests; with a certificate of the client's own if it is named."""
    made = SSLDomain(SSLDomain.MODE_CLIENT)
    made.set_trusted_ca_db(amqp.certificates.certificate("authority"))
    made.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    if name:
        made.set_credentials(amqp.certificates.certificate(name), amqp.certificates.key(name), None)
    return made


def exchange_a_message(client: ProtonClient, queue: str) -> None:
    client.sender(queue).send("hello")
    got = client.receiver(queue).take_one()
    got.accept()
    assert got.body == "hello"


def test_open_says_who_the_proxy_is_and_what_it_can(client: ProtonClient) -> None:
    connection = client.conn
    assert connection.remote_container == "Lockstep"
    assert [str(name) for name in connection.remote_offered_capabilities or ()] == ["ANONYMOUS-RELAY"]
    properties = {str(name): value for name, value in (connection.remote_properties or {}).items()}
    assert (properties["queue-prefix"], properties["topic-prefix"]) == ("queue://", "topic://")
    assert properties["failover-server-list"]


def test_container_that_wants_to_be_alone_is_refused_a_second_connection(
    amqp: AmqpCluster, queue: str
) -> None:
    alone: dict[str, Any] = {"container": queue, "desired_capabilities": ["sole-connection-for-container"]}
    with ProtonClient(amqp.port, **alone) as first:
        with pytest.raises(ConnectionClosed, match="amqp:invalid-field"):
            ProtonClient(amqp.port, **alone).pause(5)
        exchange_a_message(first, queue)
    with ProtonClient(amqp.port, **alone) as second:
        exchange_a_message(second, queue)


def test_client_without_sasl_is_anonymous(amqp: AmqpCluster, queue: str) -> None:
    with ProtonClient(amqp.port, sasl_enabled=False) as client:
        exchange_a_message(client, queue)


def test_user_logs_in_with_a_password_over_tls(amqp: AmqpCluster, queue: str) -> None:
    login = {"user": USER, "password": PASSWORD, "allowed_mechs": "PLAIN"}
    with ProtonClient(amqp.tls_port, scheme="amqps", ssl_domain=domain(amqp), **login) as client:
        assert client.transport.sasl().mech == "PLAIN"
        exchange_a_message(client, queue)


def test_wrong_password_is_refused(amqp: AmqpCluster) -> None:
    login = {"user": USER, "password": "byron", "allowed_mechs": "PLAIN"}
    with pytest.raises(ConnectionException, match="amqp:unauthorized-access"):
        ProtonClient(amqp.tls_port, scheme="amqps", ssl_domain=domain(amqp), **login)


def test_certificate_of_the_client_is_its_login(amqp: AmqpCluster, queue: str) -> None:
    with ProtonClient(
        amqp.tls_port, scheme="amqps", ssl_domain=domain(amqp, "client"), allowed_mechs="EXTERNAL"
    ) as client:
        assert client.transport.sasl().mech == "EXTERNAL"
        exchange_a_message(client, queue)


def test_external_without_a_certificate_is_refused(amqp: AmqpCluster) -> None:
    with pytest.raises(ConnectionException):
        ProtonClient(amqp.tls_port, scheme="amqps", ssl_domain=domain(amqp), allowed_mechs="EXTERNAL")


def test_anonymous_is_refused_where_it_is_not_offered(amqp: AmqpCluster) -> None:
    with pytest.raises(ConnectionException):
        ProtonClient(amqp.tls_port, scheme="amqps", ssl_domain=domain(amqp), allowed_mechs="ANONYMOUS")


def test_client_that_says_nothing_is_disconnected(amqp: AmqpCluster) -> None:
    client = ProtonClient(amqp.strict_port)
    time.sleep(1.5 * STRICT_IDLE_SECONDS)
    with pytest.raises((ConnectionException, ConnectionClosed)) as ended:
        client.until(lambda: False, "the end")
    assert "amqp:resource-limit-exceeded" in str(ended.value)


def test_client_that_only_keeps_its_connection_alive_stays(amqp: AmqpCluster) -> None:
    with ProtonClient(amqp.strict_port) as client:
        client.pause(1.5 * STRICT_IDLE_SECONDS)
        assert not client.connection.disconnected


def test_other_connections_do_not_notice_one_that_is_lost(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    lost = ProtonClient(amqp.port)
    lost.receiver(queue)
    lost.lose()
    exchange_a_message(client, queue)


def test_proxy_keeps_a_connection_alive_for_a_client_that_asks_for_it(amqp: AmqpCluster, queue: str) -> None:
    with ProtonClient(amqp.port, heartbeat=2.0) as client:
        client.pause(5)
        assert not client.connection.disconnected
        exchange_a_message(client, queue)
