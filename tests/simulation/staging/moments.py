"""Moments of a scenario: predicates on what a broker is about to do, for `Stage.when`."""

from collections.abc import Callable

from lockstep.core.effects import (
    AnyEffect,
    OpenSubscription,
    PromoteSelf,
    SwapMap,
    TellBackup,
    TellClient,
    TellPrimary,
    TellStore,
)
from lockstep.core.ids import BrokerId, LogIndex
from lockstep.core.replication import Acknowledge, Frames, SnapshotChunk
from lockstep.core.server_messages import AnyServerMessage
from lockstep.core.store_protocol import AppendFrames, Truncate
from tests.simulation.broker import Broker

Moment = Callable[[Broker, AnyEffect], bool]


def answers_client(broker: BrokerId, kind: type[AnyServerMessage]) -> Moment:
    """`broker` is about to tell a client something of this kind."""
    return lambda process, effect: (
        process.broker == broker and isinstance(effect, TellClient) and isinstance(effect.message, kind)
    )


def sends_frames(broker: BrokerId) -> Moment:
    """`broker`, a primary, is about to send a backup the log's next frame."""
    return lambda process, effect: (
        process.broker == broker
        and isinstance(effect, TellBackup)
        and isinstance(effect.message, Frames)
        and bool(effect.message.frames)
    )


def sends_snapshot(broker: BrokerId) -> Moment:
    """`broker`, a primary, is about to send a backup the next part of a snapshot."""
    return lambda process, effect: (
        process.broker == broker
        and isinstance(effect, TellBackup)
        and isinstance(effect.message, SnapshotChunk)
    )


def writes_frames(broker: BrokerId) -> Moment:
    """`broker` is about to send its own store frames."""
    return lambda process, effect: (
        process.broker == broker
        and isinstance(effect, TellStore)
        and isinstance(effect.request, AppendFrames)
        and bool(effect.request.frames)
    )


def cuts(broker: BrokerId) -> Moment:
    """`broker` is about to have its own store cut."""
    return lambda process, effect: (
        process.broker == broker and isinstance(effect, TellStore) and isinstance(effect.request, Truncate)
    )


def acknowledges(broker: BrokerId, index: LogIndex) -> Moment:
    """`broker`, a backup, is about to acknowledge `index`."""
    return lambda process, effect: (
        process.broker == broker
        and isinstance(effect, TellPrimary)
        and isinstance(effect.message, Acknowledge)
        and effect.message.log_end >= index
    )


def does(broker: BrokerId, kind: type[SwapMap] | type[PromoteSelf] | type[OpenSubscription]) -> Moment:
    """`broker` is about to perform an effect of this kind."""
    return lambda process, effect: process.broker == broker and isinstance(effect, kind)


def anything(broker: BrokerId) -> Moment:
    """`broker` is about to do anything at all."""
    return lambda process, effect: process.broker == broker
