"""What ends a transaction does not say how many durable records it has: whose log begins inside it misses nothing (DESIGN 7)."""

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from lockstep.core.ids import LogIndex
from lockstep.core.records import AnyRecord, Commit, Prepare, Rollback
from services.primary.core.primary import PrimaryCore
from services.primary.core.writer import WholeOperation, Writer
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica

_End = TypeVar("_End", bound=Prepare | Commit | Rollback)


class SilentWriter(Writer):
    def append(self, record: AnyRecord, is_durable: bool, places: int = 0) -> LogIndex:
        return super().append(
            _silent(record) if isinstance(record, Prepare | Commit | Rollback) else record, is_durable, places
        )

    def append_whole(self, operations: Sequence[WholeOperation], prepare: Prepare) -> LogIndex:
        return super().append_whole(operations, _silent(prepare))


def _silent(record: _End) -> _End:
    return replace(record, durable_records=-1)


class Silent(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary.context.writer.__class__ = SilentWriter


MUTATION = Mutation(
    "DESIGN 7: nothing is skipped silently, wherever the frames that a store has begin",
    lambda: Parts(make_replica=Silent),
    seeds=range(3),
)
