"""Parting: a primary that handed its set over says nothing any more, and ends when all its backups have heard so (DESIGN 2, T8).

Law: its lease key goes only then, or after a while: who hears of the free key before the word of the hand-over would be promoted
without what goes with it. A backup that has heard it ends its subscription.
"""

from lockstep.core.errors import ErrorCode
from lockstep.core.inputs import (
    AnyInput,
    BackupSaid,
    BackupStreamClosed,
    ClientSaid,
    LeaseLost,
    MapSeen,
    StoreLost,
)
from lockstep.core.replication import Subscribe
from services.primary.core.backups import Backups
from services.primary.core.client_streams import ClientStreams
from services.primary.core.context import Context


class Parting:
    """Lives from the hand-over to the end of the reign; driven by the primary core."""

    def __init__(self, context: Context, backups: Backups, streams: ClientStreams, reason: str) -> None:
        self.reason = reason
        self._context = context
        self._backups = backups
        self._streams = streams
        self._until_ms = context.now.boottime_ms + context.settings.parting_ms
        self._is_cut_short = False

    @property
    def is_over(self) -> bool:
        """Everybody has heard, or was given the time to."""
        is_late = self._context.now.boottime_ms >= self._until_ms
        return self._is_cut_short or is_late or not self._backups.by_stream

    def take(self, given: AnyInput) -> None:
        """Whatever else a primary would do with an input, its successor will."""
        match given:
            case BackupStreamClosed():
                self._backups.close(given.stream)
            case BackupSaid(message=Subscribe()):
                self._backups.refuse(given.stream, self.reason)
            case ClientSaid():
                self._streams.turn_away(given.stream, ErrorCode.NOT_PRIMARY, self.reason)
            case LeaseLost() | StoreLost():
                self._is_cut_short = True
            case MapSeen():
                is_same = given.set_map is not None and given.set_map.epoch == self._context.epoch
                self._is_cut_short = self._is_cut_short or not is_same
            case _:
                pass
