"""First messages of streams: what a stream is for. In the real cluster the RPC's name and metadata say it."""

from dataclasses import dataclass

from lockstep.core.ids import SetName
from lockstep.core.replication import Subscribe


@dataclass(frozen=True, slots=True)
class ClientHello:
    """A client's session stream to one resource set; then tuples of `ClientMessage`."""

    set_name: SetName


@dataclass(frozen=True, slots=True)
class SubscriptionHello:
    """A backup's subscription; then `ToPrimary`."""

    set_name: SetName
    subscribe: Subscribe


@dataclass(frozen=True, slots=True)
class StoreHello:
    """A broker's stream to its store for one set, or (None) for heartbeats. Answered by `StorePong`."""

    set_name: SetName | None


@dataclass(frozen=True, slots=True)
class StorePing:
    """Does the store live?"""


@dataclass(frozen=True, slots=True)
class StorePong:
    """It does."""
