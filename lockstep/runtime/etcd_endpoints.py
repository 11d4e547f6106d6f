"""The endpoints of one etcd cluster: one gRPC channel each, and which of them to use next.

Law: nothing is sent before a channel is connected, so that "no endpoint could be reached" is a definite answer; and gRPC
retries nothing by itself.
"""

import asyncio
import time
from collections.abc import Sequence

import grpc
import grpc.aio
from aetcd import rpc

from lockstep.core.errors import ErrorCode
from lockstep.runtime.etcd_values import EtcdRejected

HAS_LEADER = (("hasleader", "true"),)
"""Metadata of every call: a member without a leader refuses at once, before doing anything, instead of waiting for one."""

CHANNEL_OPTIONS = (
    # Even a transparent retry could send a transaction twice as far as we can tell.
    ("grpc.enable_retries", 0),
    # A restarted etcd is to be found again in tenths of a second; gRPC's default grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    # So long an attempt to connect may take: a busy member is reached all the same, and a hung one keeps nobody from another.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Its name may have another address when it is back: gRPC would look at it anew only every 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # Two clients of one process share no connection and no back-off.
    ("grpc.use_local_subchannel_pool", 1),
    # An answer too long to receive would leave the outcome unknown.
    ("grpc.max_receive_message_length", -1),
)


_LOOK_SECONDS = 0.05
"""How often channels are looked at while one is waited for: one that breaks and connects again wakes nobody."""


def parse_endpoints(endpoints: str | Sequence[str]) -> list[str]:
    """host:port of each endpoint of "http://a:2379,http://b:2379" or of a sequence, the scheme being optional.

    Raises ValueError for https (not supported), an empty list, and anything that is not host:port.
    """
    parts = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
    addresses = []
    for part in parts:
        address = part.strip().rstrip("/").removeprefix("http://")
        host, separator, port = address.rpartition(":")
        if "://" in address or not (host and separator and port.isdigit()):
            raise ValueError(f"an etcd endpoint is http://host:port or host:port, not {part!r}")
        addresses.append(address)
    return addresses


class Endpoint:
    """One member of etcd; lives as long as its client."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_suspect = False
        """Whether its last call failed on the connection that it still has."""
        self.channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.kv = rpc.KVStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)

    @property
    def is_connected(self) -> bool:
        """Whether the channel is ready; starts connecting if it is idle. A lost connection takes its suspicion with it."""
        is_ready = self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY
        self.is_suspect = self.is_suspect and is_ready
        return is_ready


class Endpoints:
    """All endpoints, made and closed by the client on its event loop. Sticks to one until it fails."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._endpoints = [Endpoint(address) for address in addresses]
        self._preferred = 0

    def __len__(self) -> int:
        return len(self._endpoints)

    def prefer_another(self, failed: Endpoint) -> None:
        """The next calls go elsewhere if they can; a hung member keeps its connection, so that alone says nothing."""
        failed.is_suspect = True
        if self._endpoints[self._preferred] is failed:
            self._preferred = (self._preferred + 1) % len(self._endpoints)

    async def connected(self, deadline: float) -> Endpoint:
        """The preferred endpoint that is connected, waiting until `deadline` (time.monotonic()) for the first that will be.

        One that failed before is used only when no other connects within half of the time. Raises `EtcdRejected` when there
        is none: nothing was sent.
        """
        order = [*self._endpoints[self._preferred :], *self._endpoints[: self._preferred]]
        patient_until = (time.monotonic() + deadline) / 2
        while True:
            # Asks all of them, so that all that can are connecting from now on.
            connected = [endpoint for endpoint in order if endpoint.is_connected]
            unconnected = [endpoint for endpoint in order if endpoint not in connected]
            chosen = min(connected, key=lambda endpoint: endpoint.is_suspect, default=None)
            now = time.monotonic()
            if chosen and (not chosen.is_suspect or not unconnected or now >= patient_until):
                self._preferred = self._endpoints.index(chosen)
                return chosen
            if now >= deadline:
                raise EtcdRejected(
                    ErrorCode.UNAVAILABLE,
                    "no etcd endpoint can be reached",
                    endpoints=[endpoint.address for endpoint in order],
                )
            await self._first_to_connect(unconnected, min(_LOOK_SECONDS, deadline - now))

    @staticmethod
    async def _first_to_connect(endpoints: Sequence[Endpoint], seconds: float) -> None:
        waiting = [asyncio.ensure_future(endpoint.channel.channel_ready()) for endpoint in endpoints]
        try:
            await asyncio.wait(waiting, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waiting:
                future.cancel()
            # Not one by one: whoever cancels this very call at this moment would not be heard.
            await asyncio.gather(*waiting, return_exceptions=True)

    async def close(self) -> None:
        for endpoint in self._endpoints:
            await endpoint.channel.close()
