"""The window of a session whose client sends too large a message: what comes of it is not lost to its other links."""

import pytest

from services.proxy.core.conditions import MESSAGE_SIZE_EXCEEDED
from services.proxy.settings import ProxyLimits
from tests.amqp import codec
from tests.amqp.raw_client import RawClient
from tests.amqp.stub_proxy import serving

FRAME = 100_000
LIMITS = ProxyLimits(session_window_bytes=1024 * 1024, message_bytes_max=64 * 1024)
WINDOW = LIMITS.session_window_bytes // LIMITS.frame_bytes_max
"""Frames."""
REFUSED_AT = 2
"""Frames of a message that is too large by then."""


def _send_part(client: RawClient, handle: int, frames: int) -> None:
    for _ in range(frames):
        tag = codec.binary(b"%d" % handle)
        client.say(
            "transfer", 0, bytes(FRAME), handle=handle, delivery_id=handle, delivery_tag=tag, more=True
        )


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_refused_large_messages_leave_the_window_as_it_was(is_at_once: bool) -> None:
    async with serving(LIMITS) as proxy, await RawClient.begun(proxy.address) as client:
        windows = []
        for handle in range(6):
            flow = await client.attach_sender(f"sender-{handle}", "queue", handle)
            windows.append(flow["incoming_window"])
            _send_part(client, handle, 5 if is_at_once else REFUSED_AT)
            detach = await client.expect("detach")
            assert detach.condition == MESSAGE_SIZE_EXCEEDED
            if not is_at_once:
                _send_part(client, handle, 5 - REFUSED_AT)
            client.say("detach", handle=handle, closed=True)
        assert windows == [WINDOW] * len(windows)


async def test_other_links_go_on_when_a_refused_message_has_used_the_window_up() -> None:
    async with serving(LIMITS) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", "queue", 0)
        await client.attach_sender("other", "queue", 1)
        _send_part(client, 0, REFUSED_AT)
        assert (await client.expect("detach")).condition == MESSAGE_SIZE_EXCEEDED
        _send_part(client, 0, WINDOW - REFUSED_AT)
        flow = await client.expect("flow", lambda frame: frame["next_incoming_id"] == WINDOW)
        assert flow["incoming_window"] == WINDOW
