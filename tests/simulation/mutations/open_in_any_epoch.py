"""A promoted primary says of every epoch that it was handed over, and counts operations from the log that it has (R12, T1, T8,
history 9)."""

from lockstep.core.clock import Now
from lockstep.core.ids import BrokerId
from lockstep.core.replication import HandedOver, OpenProgress
from services.broker.core.promotion import Candidacy
from services.broker.core.replica import Replica
from tests.simulation.mutations import Mutation
from tests.simulation.mutations.open_transactions_survive import AnyCount
from tests.simulation.parts import Parts


class Inventive(Replica):
    def _lead(self, won: Candidacy, now: Now) -> None:
        copy = self.backup.copy if self.backup is not None else None
        if self._handed is None and copy is not None and not won.is_restarted:
            copy.apply_to(copy.log_end)
            if copy.state.epoch == won.target.epoch - 1:
                self._handed = HandedOver(
                    self.set_name,
                    copy.state.epoch,
                    BrokerId(self.broker),
                    copy.log_end,
                    tuple(
                        OpenProgress(
                            buffer.key,
                            buffer.session,
                            0,
                            ((buffer.session, AnyCount(0)),),
                            len(buffer.operations),
                            0,
                            0,
                        )
                        for buffer in copy.state.transactions.open()
                    ),
                )
        super()._lead(won, now)


MUTATION = Mutation(
    "R12: an epoch that was not handed over aborts what is open",
    lambda: Parts(make_replica=Inventive),
    ("history_09_resumed_without_its_tail",),
)
