"""Taking over: a promoted replica applies what its log has beyond what it knew to be committed (R5). Unless the set was handed
over, it then does what its epoch's own record will do: aborts what is open, and drops what a restart loses (R12). In pieces.

Law: behind a burst that may be much, and the lease has to be renewed meanwhile; nobody is led or answered before all of it is
done. A memory that has done some of it is that of a primary: if the epoch is lost meanwhile, it is dropped as one's is.

    applying --> applied, nothing was handed over --> beginning --> done
    applying --> applied, what is open was handed over --> taking that up --> done
"""

from collections.abc import Iterator

from lockstep.core.apply_epochs import begin_epoch
from lockstep.core.ids import DiskId, LogIndex
from lockstep.core.log_copy import LogCopy
from lockstep.core.pieces import Pieces
from lockstep.core.records import EpochBegins
from lockstep.core.replication import HandedOver
from services.broker.core.promotion import Candidacy
from services.primary.core.gone_before import NOTHING_GONE, GoneBefore
from services.primary.core.primary import PrimaryCore


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
        self.gone = NOTHING_GONE
        """What the epoch ends before its record does."""
        self.primary: PrimaryCore | None = None
        """Who will lead; it does not yet."""
        self.pieces = Pieces(piece_cost)
        self.pieces.begin(copy.apply_in_steps(copy.log_end))

    def applied(self, handed: HandedOver | None) -> None:
        """All of the log is applied; what is open goes on as was `handed` over, or ends (None)."""
        self.is_applied, self.handed = True, handed
        if handed is None:
            self.pieces.begin(self._begin_epoch())
            self.pieces.go_on()

    def _begin_epoch(self) -> Iterator[int]:
        state, target, is_restarted = self.copy.state, self.won.target, self.won.is_restarted
        self.gone = yield from GoneBefore.of(state, is_restarted)
        record = EpochBegins(None, target.epoch, target.primary, is_restarted)
        yield from begin_epoch(state, LogIndex(self.copy.log_end + 1), record)

    def lead(self, primary: PrimaryCore) -> None:
        """The state is what this one begins with; it gets ready."""
        self.primary = primary
        self.pieces.begin(primary.get_ready(self.handed))
        self.pieces.go_on()
