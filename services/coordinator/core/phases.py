"""The phases of a transaction that somebody wants ended over the log, and which may follow which.

    commit, rollback         of a closed one, of one found in the log, fence
        WRITING <------------------ LOOKING
           |                           |
           +---------> PREPARING <-----+        to commit, and not decided yet
           |              |    \\      |
           +---------> DECIDING \\ <---+        to abort, and not decided yet
           |              |      \\    |
           +--------> COMPLETING <-\\--+        somebody has decided
                          |         \\
                          +------> DELETING     directly, if all are read-only
                                       |
                                     ENDED <-- from all that read the log, when it says that somebody else has finished

Law: nobody is asked to prepare before the list is in the log, and nobody is told an end before the decision is.
"""

from enum import Enum


class Phase(Enum):
    """Where one coordinator stands with one transaction."""

    LOOKING = "looking"
    """The log is being read: it may be over already."""
    WRITING = "writing"
    """The participants are on their way into the log."""
    PREPARING = "preparing"
    """They have been asked to prepare."""
    DECIDING = "deciding"
    """A decision is on its way into the log; which one will be there is not known."""
    COMPLETING = "completing"
    """The decision is known, and the branches are told until each has acknowledged."""
    DELETING = "deleting"
    """All have; the transaction leaves the log."""
    ENDED = "ended"


NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.LOOKING: frozenset({Phase.WRITING, Phase.PREPARING, Phase.DECIDING, Phase.COMPLETING, Phase.ENDED}),
    Phase.WRITING: frozenset({Phase.PREPARING, Phase.DECIDING, Phase.COMPLETING, Phase.ENDED}),
    Phase.PREPARING: frozenset({Phase.DECIDING, Phase.DELETING}),
    Phase.DECIDING: frozenset({Phase.COMPLETING, Phase.ENDED}),
    # Ended, when somebody else had all acknowledgements while this one kept some in the log.
    Phase.COMPLETING: frozenset({Phase.DELETING, Phase.ENDED}),
    # Back, when somebody decided what looked as if it needed no decision.
    Phase.DELETING: frozenset({Phase.COMPLETING, Phase.ENDED}),
    Phase.ENDED: frozenset(),
}
