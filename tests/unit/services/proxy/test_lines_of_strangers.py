"""However often a stranger connects and sends nonsense, or ends what it began with errors: it fills no log."""

import asyncio

import pytest

from services.proxy.core.conditions import NOT_ALLOWED
from tests.amqp import codec
from tests.amqp.codec import AMQP_HEADER, SASL_HEADER, Symbol, composite, performative
from tests.amqp.listener_rig import FakeTransport, ListenerRig
from tests.amqp.raw_client import attach_sender, begin

CONNECTIONS = 1_000
ERROR = composite("error", condition=Symbol(NOT_ALLOWED), description="no")
BEGUN = (
    SASL_HEADER
    + performative("sasl_init", mechanism=Symbol("ANONYMOUS"))
    + AMQP_HEADER
    + performative("open", container_id="stranger")
    + begin()
)
SAID = {
    "no protocol": b"GET / HTTP/1.1\r\n\r\n",
    "no login": SASL_HEADER + performative("sasl_init", mechanism=Symbol("OTHER")),
    "no frames": BEGUN + bytes(100),
    "a close with an error": BEGUN + performative("close", error=ERROR),
    "an end with an error": BEGUN + performative("end", error=ERROR),
    "detaches with errors": BEGUN
    + b"".join(
        attach_sender(f"s{number}", "queue", number)
        + performative("detach", handle=number, closed=True, error=ERROR)
        for number in range(5)
    ),
    "a field of no type": SASL_HEADER
    + performative("sasl_init", mechanism=Symbol("ANONYMOUS"))
    + AMQP_HEADER
    + performative("open", container_id="stranger", desired_capabilities=codec.symbols("\x80")),
}
EXPECTED = {
    "no protocol": "login_failed",
    "no login": "login_failed",
    "a close with an error": "client_error",
    "an end with an error": "client_error",
    "detaches with errors": "client_error",
    "a field of no type": "unreadable",
}


async def play(rig: ListenerRig, said: bytes) -> None:
    """One stranger, who goes when it has said that."""
    transport, socket = FakeTransport(), rig.worker.socket(None)
    transport.protocol = socket
    socket.connection_made(transport)
    socket.data_received(said)
    for _ in range(8):
        await asyncio.sleep(0)
    transport.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("name", SAID)
async def test_connections_of_one_kind_have_a_line_together(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = ListenerRig()
    for _ in range(CONNECTIONS):
        await play(rig, SAID[name])
    assert len(caplog.messages) <= 1, caplog.messages[:5]
    if name in EXPECTED:
        (line,) = caplog.messages
        assert line.startswith(f"event={EXPECTED[name]} times=1 peer=127.0.0.1:1 ")
