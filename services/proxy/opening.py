"""What the proxy says of itself in its open (AMQP 1.0, 2.7.1), as clients such as Qpid JMS look for it."""

from typing import Any

from proton import Connection, symbol

from services.proxy.core.addresses import QUEUE_PREFIX, TOPIC_PREFIX

PRODUCT = "Lockstep"
SOLE_CONNECTION = "sole-connection-for-container"
"""Capability that a client desires: no other connection of its container is let in."""
_ESTABLISHMENT_FAILED = symbol("amqp:connection-establishment-failed")


def open_connection(
    connection: Connection, servers: tuple[str, ...] = (), *, is_refused: bool = False
) -> None:
    """Opens our side. `servers`: host:port of all proxies, for clients that can fail over; `is_refused`: a close follows."""
    connection.container = PRODUCT
    connection.offered_capabilities = ["ANONYMOUS-RELAY"]
    properties: dict[Any, Any] = {
        symbol("product"): PRODUCT,
        symbol("queue-prefix"): QUEUE_PREFIX,
        symbol("topic-prefix"): TOPIC_PREFIX,
    }
    if servers:
        properties[symbol("failover-server-list")] = [_server(address) for address in servers]
    if is_refused:
        properties[_ESTABLISHMENT_FAILED] = True
    connection.properties = properties
    connection.open()


def container_is_taken() -> dict[Any, Any]:
    """What the error of a refused container carries beside its words."""
    return {symbol("invalid-field"): symbol("container-id")}


def _server(address: str) -> dict[Any, Any]:
    host, _, port = address.rpartition(":")
    return {symbol("network-host"): host, symbol("port"): int(port)}
