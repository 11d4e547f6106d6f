"""Limits and times of a coordinator, with the reason for each default."""

from dataclasses import dataclass

from lockstep.core.branch_names import PARTICIPANTS_MAX
from lockstep.core.decision_log import CLOCK_MS
from lockstep.core.pieces import PIECE_COST


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    """Given by the process's settings; the simulator draws its own. Times are in milliseconds."""

    prepare_ms: int = 10_000
    """From a commit to the last vote. A participant that is silent for longer is taken for a "no": the others hold their locks
    meanwhile. Longer than a failover, which takes a lease (3 s) and a promotion."""
    answer_ms: int = 5_000
    """After the decision: how long the client's answer waits for participants that have not acknowledged. A client that then
    does its next transaction may meet locks, never another outcome."""
    keep_ms: int = 30_000
    """After the decision: while a participant is away, who has committed is put into the log, and again when more have. Until
    then sets have to keep that, for whoever takes the transaction up; databases do so for a while only."""
    unasked_ms: int = 5_000
    """From when a transaction was taken up: what is decided later waits for the answers to a roll call; and so does, for a while,
    whatever is decided when the log was out of sight for longer. In less time no etcd has lost what another coordinator decided,
    and is back: what it did in the last seconds before it died, no disk remembers."""
    doubt_ms: int = 20_000
    """From a request to its answer when nothing could be decided, because etcd is silent: then the answer is *in doubt*."""
    open_ms: int = 60_000
    """Between begin and commit, unless the client asked for another: the default of XA (dtx contract, get-timeout)."""
    open_ms_max: int = 600_000
    """The longest that a client may ask for. A commit that comes later than this and `doubt_ms` does not begin any more: see
    `outcome_ms`. Branches have time-outs of their own, which may be longer (an hour, dtx contract)."""
    clock_ms: int = CLOCK_MS
    """How far the wall clocks of coordinators may differ, and how long a change may be on its way to etcd."""
    outcome_ms: int = 720_000
    """How long an outcome stays in etcd after the transaction has left the log: longer than anybody can still begin to end it.
    A commit that hung in a proxy while the client committed elsewhere would begin anew, and leave an ABORT for all to read. A
    thousand transactions per second are 720,000 keys, some 150 MB."""
    closed_ms: int = 30_000
    """Between close and commit: the client prepares branches of its own, such as a PREPARE TRANSACTION; a second is much."""
    elsewhere_ms: int = 60_000
    """Age from which a transaction is finished here although its coordinator lives: that one hangs, or forgot it. Longer than its
    own `prepare_ms` and `doubt_ms`, so that nobody's commit is aborted while it is on its way."""
    recovery_every_ms: int = 1_000
    """Between two looks at the log for transactions without a coordinator: one read of what is under way."""
    recovery_rest: int = 10
    """Times as long as a look took, before the next: with ten thousands in the log one takes a second, and nothing else goes on
    in most of it."""
    recovery_rest_ms_max: int = 10_000
    """Longest such rest, as etcd may have been what was slow: what a dead coordinator had in hand waits for it."""
    recovered_max: int = 500
    """Transactions that one look takes up; the next one goes on. Keeps a restart after a long outage from calling all
    participants of everything at once."""
    in_doubt_ms: int = 60_000
    """A transaction that is not over for longer is warned of: every coordinator has taken it up by then (`elsewhere_ms`), so what
    it lacks is a participant, etcd or an operator."""
    in_doubt_warnings_max: int = 20
    """Warnings in one look, once a second: after an outage thousands of transactions may be late at once."""
    hold_ms_max: int = 500
    """Of one hold (`commit_hold.py`): above what a busy set takes for a commit. It is over sooner, in some milliseconds, unless a
    set is slow to answer; then commits take as long anyway."""
    hold_rest: int = 4
    """Times as long as a hold lasted, before the next: commits are held for at most a fifth of the time."""
    retry_first_ms: int = 50
    """Before a call or a write is tried again; doubled each time."""
    retry_ms_max: int = 2_000
    """Longest pause between two tries: what a participant waits at most after it is back."""
    participants_max: int = PARTICIPANTS_MAX
    """In one transaction: all resource sets of a cluster, and more; the entry in etcd stays small."""
    name_bytes_max: int = 256
    """Of a participant."""
    transactions_max: int = 20_000
    """In memory, from commit to the end of their completion; beyond it commits are pushed back."""
    open_max: int = 100_000
    """Begun and neither committed nor rolled back; beyond it the oldest hint is dropped, and its branches end by their own
    time-outs."""
    piece_cost: int = PIECE_COST
    """Of what is done in one go of works that are long, in microseconds, about: others have their turn in between."""

    @property
    def age_ms_max(self) -> int:
        """Since its begin, by the wall clock: an older transaction is not begun to be ended over the log."""
        return self.open_ms_max + self.doubt_ms

    def __post_init__(self) -> None:
        if self.outcome_ms < self.age_ms_max + self.clock_ms:
            raise ValueError("outcome_ms is at least open_ms_max + doubt_ms + clock_ms")
