"""Options of all gRPC channels and servers between processes of Lockstep, and where a channel to an address comes from.

Law: an address that comes back is found again in tenths of a second, a peer that hangs is noticed although its kernel still
answers, and no limit of gRPC is reached before one of our own with a name. On an event loop both ends are ours
(`lockstep/transport`): they have grpc.aio's interfaces, as far as these are used here, and pass for them.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import grpc
import grpc.aio

from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.request_limits import MESSAGE_BYTES_MAX, request_bytes_max
from lockstep.transport.channel import Channel
from lockstep.transport.server import Server

WRITE_BYTES_MAX = 1024 * 1024
"""What a writer puts into one gRPC message, unless a single item is bigger: the 1 MiB at which throughput was best."""

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Notices a peer whose whole machine is gone.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # 0.1 s instead of 1.3-1.9 s until a restarted process is connected again.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    # Its name misleads: so long an attempt to connect may take. One that is given up sooner than a busy server, or a long way,
    # lets it succeed is made for ever.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # A process that starts again in another container has another address under its old name; gRPC would look at it anew only
    # every 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # Each client of a process has a connection of its own: what one sends does not wait behind another's.
    ("grpc.use_local_subchannel_pool", 1),
    # Nothing is sent twice behind our back.
    ("grpc.enable_retries", 0),
)
"""Of channels of programs without an event loop."""


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to `host:port` or `unix:path`; it connects when first used and again for ever. The caller closes it."""
    return cast(grpc.aio.Channel, Channel(address, MESSAGE_BYTES_MAX))


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """What a client trusts, and shows of itself, where servers are reached by TLS; all in PEM."""

    roots: bytes
    """Certificates of the authorities that servers have theirs from."""
    certificate: bytes | None = None
    """The client's own, with those between it and its authority."""
    key: bytes | None = None
    """Of `certificate`."""


def open_blocking_channel(address: str, tls: ChannelTls | None = None) -> grpc.Channel:
    """As `open_channel`, for programs without an event loop. `tls`: None for servers that are reached without."""
    if tls is None:
        return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.roots, tls.key, tls.certificate)
    return grpc.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)


def make_server(request_limit: Callable[[str], int] = request_bytes_max) -> grpc.aio.Server:
    """A server without services and ports yet. `request_limit`: bytes of one message of a request to the method at that path."""
    log = LimitLog(logging.getLogger("lockstep.transport"))

    def failed(error: Exception) -> None:
        log.seldom("call_failed", "in the server", error=error)

    return cast(grpc.aio.Server, Server(request_limit, MESSAGE_BYTES_MAX, log.refused, failed))


class Channels:
    """One channel per address, for as long as the process lives; used from one event loop."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to this address, opened at the first use."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address)
        return channel

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
