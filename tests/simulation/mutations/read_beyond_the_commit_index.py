"""Answers are given from the log's end, committed or not (R11)."""

from lockstep.core.ids import LogIndex
from services.primary.core.gate import CommitGate
from services.primary.core.primary import PrimaryCore
from tests.simulation.loop import SECOND
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class OpenGate(CommitGate):
    def open_to(self, commit_index: LogIndex) -> bool:
        return super().open_to(LogIndex(1 << 62))


class Talkative(WeakReplica):
    def promoted(self, primary: PrimaryCore) -> None:
        primary._gate.__class__ = OpenGate


def _aim(options: Options) -> None:
    options.faults = ("kill broker", "pause broker", "isolate machine")
    options.fault_gap_us = 2 * SECOND


MUTATION = Mutation(
    "R11: nobody sees anything beyond the commit index",
    lambda: Parts(make_replica=Talkative),
    ("history_12_below_the_minimum", "history_21_stalled_voters"),
    seeds=range(1, 11),
    aim=_aim,
)
