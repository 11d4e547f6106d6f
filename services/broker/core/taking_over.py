"""Taking over: a promoted replica applies what its log has beyond what it knew to be committed (R5), and then gives back what
open transactions hold that its epoch's record will abort (R12), in pieces.

Law: behind a burst that may be much, and the lease has to be renewed meanwhile; nobody is led or answered before all of it is
done. A memory that has done some of it is that of a primary: if the epoch is lost meanwhile, it is dropped as one's is.

    applying --> applied, nothing was handed over --> giving back --> done
    applying --> applied, what is open was handed over --> done
"""

from lockstep.core.apply_transactions import give_back_open
from lockstep.core.ids import DiskId
from lockstep.core.log_copy import LogCopy
from lockstep.core.pieces import Pieces
from lockstep.core.replication import HandedOver
from services.broker.core.promotion import Candidacy


class TakingOver:
    """Lives from the promotion until the primary core does; driven by the replica."""

    def __init__(self, won: Candidacy, copy: LogCopy, disk: DiskId, piece_cost: int) -> None:
        self.won = won
        self.copy = copy
        self.disk = disk
        """The own one."""
        self.is_applied = False
        """Whether all of the log is."""
        self.handed: HandedOver | None = None
        """What the last primary told, if that holds for the log that was applied."""
        self.pieces = Pieces(piece_cost)
        self.pieces.begin(copy.apply_in_steps(copy.log_end))
        self.pieces.go_on()

    def applied(self, handed: HandedOver | None) -> None:
        """All of the log is applied; what is open goes on as was `handed` over, or is given back (None)."""
        self.is_applied, self.handed = True, handed
        if handed is None:
            self.pieces.begin(give_back_open(self.copy.state))
            self.pieces.go_on()
