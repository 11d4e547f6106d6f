"""Taking over: a promoted replica applies what its log has beyond what it knew to be committed (R5), in pieces.

Law: behind a burst that may be much, and the lease has to be renewed meanwhile; nobody is led or answered before all of it is
applied. A memory that has applied some of it is that of a primary: if the epoch is lost meanwhile, it is dropped as one's is.
"""

from lockstep.core.ids import DiskId
from lockstep.core.log_copy import LogCopy
from lockstep.core.pieces import Pieces
from services.broker.core.promotion import Candidacy


class TakingOver:
    """Lives from the promotion until the primary core does; driven by the replica."""

    def __init__(self, won: Candidacy, copy: LogCopy, disk: DiskId, piece_cost: int) -> None:
        self.won = won
        self.copy = copy
        self.disk = disk
        """The own one."""
        self.pieces = Pieces(piece_cost)
        self.pieces.begin(copy.apply_in_steps(copy.log_end))
        self.pieces.go_on()
