"""A participant in memory: branches that are worked in, prepared, ended; a crash loses what is not prepared.

Law: a prepared branch ends by a coordinator's word, or by what it reads in the decision log (T3); while it reads, it takes no
vote.
"""

from dataclasses import dataclass, field
from enum import Enum

from lockstep.core.branch_names import ParticipantName, branch_name
from lockstep.core.decision_log import Fate, LogView, fate
from lockstep.core.xid import Xid
from services.coordinator.core.votes import Completion, Verb, Vote


class BranchState(Enum):
    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    READ_ONLY = "read-only"


_ENDED = {BranchState.COMMITTED, BranchState.ROLLED_BACK, BranchState.READ_ONLY}


@dataclass
class SimulatedBranch:
    state: BranchState = BranchState.OPEN
    is_read_only: bool = False
    refuses: bool = False
    is_asking: bool = False
    """It reads the decision log."""
    is_forgotten: bool = False
    """Ended, and the participant keeps no record of outcomes: it answers as if it had never heard of it."""


@dataclass
class Participant:
    """Lives as long as its world. `keeps_outcomes`: it can say how a branch ended."""

    name: ParticipantName
    keeps_outcomes: bool
    branches: dict[Xid, SimulatedBranch] = field(default_factory=dict)
    is_up: bool = True

    def open(self, xid: Xid, *, is_read_only: bool, refuses: bool) -> None:
        """The client works in it; not again in one that has ended."""
        self.branches.setdefault(xid, SimulatedBranch(BranchState.OPEN, is_read_only, refuses))

    def prepare_by_client(self, xid: Xid) -> bool:
        """PREPARE TRANSACTION on a connection of the client's; False: it was lost before."""
        branch = self.branches[xid]
        if branch.state is not BranchState.OPEN:
            return False
        branch.state = BranchState.PREPARED
        return True

    def crash(self) -> None:
        self.is_up = False
        for branch in self.branches.values():
            branch.is_asking = False
            if branch.state is BranchState.OPEN:
                self._end(branch, BranchState.ROLLED_BACK)

    def time_out(self, xid: Xid) -> None:
        """Of work that nobody prepares (T2)."""
        if self.branches[xid].state is BranchState.OPEN:
            self._end(self.branches[xid], BranchState.ROLLED_BACK)

    def tell(self, xid: Xid, verb: Verb) -> Vote | Completion | None:
        """The answer; None: none, now."""
        branch = self.branches.get(xid)
        if branch is None or branch.is_forgotten:
            return Vote.UNKNOWN_BRANCH if verb is Verb.PREPARE else Completion.UNKNOWN_BRANCH
        if verb is Verb.PREPARE:
            return None if branch.is_asking else self._vote(branch)
        return self._complete(branch, verb)

    def _vote(self, branch: SimulatedBranch) -> Vote:
        match branch.state:
            case BranchState.OPEN if branch.refuses:
                self._end(branch, BranchState.ROLLED_BACK)
                return Vote.NO
            case BranchState.OPEN if branch.is_read_only:
                self._end(branch, BranchState.READ_ONLY)
                return Vote.READ_ONLY
            case BranchState.OPEN | BranchState.PREPARED:
                branch.state = BranchState.PREPARED
                return Vote.OK
            case BranchState.COMMITTED | BranchState.READ_ONLY:
                # What had nothing to commit is kept as committed, as resource sets keep it.
                return Vote.COMMITTED
            case BranchState.ROLLED_BACK:
                return Vote.NO

    def _complete(self, branch: SimulatedBranch, verb: Verb) -> Completion:
        if branch.state is BranchState.READ_ONLY and verb is Verb.ROLL_BACK:
            # As resource sets answer: nothing is left of it, and it has not committed against anybody.
            return Completion.UNKNOWN_BRANCH
        if branch.state not in _ENDED:
            is_commit = verb is Verb.COMMIT_ONE_PHASE or (
                verb is Verb.COMMIT and branch.state is BranchState.PREPARED
            )
            self._end(branch, BranchState.COMMITTED if is_commit else BranchState.ROLLED_BACK)
        return Completion.ROLLED_BACK if branch.state is BranchState.ROLLED_BACK else Completion.COMMITTED

    def asking(self) -> list[Xid]:
        """Prepared branches that will now read the log."""
        asking = [
            xid
            for xid, branch in self.branches.items()
            if branch.state is BranchState.PREPARED and not branch.is_asking
        ]
        for xid in asking:
            self.branches[xid].is_asking = True
        return asking

    def hear(self, xid: Xid, view: LogView | None) -> None:
        """What the log says; None: nothing came."""
        branch = self.branches[xid]
        if not branch.is_asking:
            return
        branch.is_asking = False
        if branch.state is not BranchState.PREPARED or view is None:
            return
        match fate(view, branch_name(xid), lambda name: name == self.name):
            case Fate.COMMIT:
                self._end(branch, BranchState.COMMITTED)
            case Fate.ROLL_BACK:
                self._end(branch, BranchState.ROLLED_BACK)
            case Fate.WAIT | Fate.ASK_AN_OPERATOR:
                pass

    def _end(self, branch: SimulatedBranch, state: BranchState) -> None:
        branch.state = state
        branch.is_forgotten = not self.keeps_outcomes
