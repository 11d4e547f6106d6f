"""What one conversation has under way with the log: one read or one change, or the pause before the next.

Law: a change is sent once. In doubt it is read; and where the log still is as it was, the same is sent again.
"""

from enum import Enum

from lockstep.core.branch_names import GenerationTag, GlobalId
from lockstep.core.clock import Now
from lockstep.core.decision_log import NO_LIST, ListRead, OutcomeEntry, ParticipantsEntry, Verdict
from services.coordinator.core.context import Context, Conversation
from services.coordinator.core.messages import (
    Decide,
    DeleteTransaction,
    KeepCommitted,
    ReadLog,
    Ticket,
    WriteParticipants,
)


class Due(Enum):
    """What the pause was for."""

    READ = "read"
    PROPOSE = "propose"


class LogTurn:
    """As long as its owner, which drives it."""

    def __init__(self, context: Context, owner: Conversation, global_id: GlobalId) -> None:
        self._context = context
        self._owner = owner
        self._global_id = global_id
        self._ticket: Ticket | None = None
        self._tries = 0
        self._again_ms: int | None = None
        self._after_pause = Due.PROPOSE
        self.written: WriteParticipants | None = None
        """The list that was sent last."""

    def read(self) -> None:
        self._ticket = self._context.ticket(self._owner)
        self._context.say(ReadLog(self._ticket, self._global_id))

    def write(
        self,
        entry: ParticipantsEntry,
        replaces: ListRead = NO_LIST,
        decision: Verdict | None = None,
        *,
        needs_roll: bool = False,
    ) -> None:
        self._ticket = self._context.ticket(self._owner)
        self.written = WriteParticipants(self._ticket, self._global_id, entry, replaces, decision, needs_roll)
        self._context.say(self.written)

    def decide(
        self,
        expected: ListRead,
        verdict: Verdict,
        generation: GenerationTag,
        *,
        needs_roll: bool = False,
        entry: ParticipantsEntry | None = None,
    ) -> None:
        self._ticket = self._context.ticket(self._owner)
        self._context.say(
            Decide(self._ticket, self._global_id, expected, verdict, generation, needs_roll, entry)
        )

    def keep(self, expected: ListRead, entry: ParticipantsEntry) -> None:
        self._ticket = self._context.ticket(self._owner)
        self._context.say(KeepCommitted(self._ticket, self._global_id, expected, entry))

    def delete(
        self,
        expected: ListRead,
        decision: Verdict | None,
        outcome: OutcomeEntry | None,
        *,
        needs_roll: bool = False,
    ) -> None:
        self._ticket = self._context.ticket(self._owner)
        self._context.say(
            DeleteTransaction(self._ticket, self._global_id, expected, decision, outcome, needs_roll)
        )

    def answered(self) -> None:
        """In whichever way."""
        self._ticket = None

    def again(self, now: Now, then: Due = Due.PROPOSE) -> None:
        """After a pause, which grows."""
        self._tries += 1
        self._after_pause = then
        self._again_ms = now.boottime_ms + self._context.pause_ms(self._tries)
        self._context.wake_at(self._again_ms, self._owner)

    def take_due(self, now: Now) -> Due | None:
        """What is to be done because the pause is over; once."""
        if self._again_ms is None or self._again_ms > now.boottime_ms:
            return None
        self._again_ms = None
        return self._after_pause

    def begin_anew(self) -> None:
        """Another phase: its pauses are short again."""
        self._tries = 0

    def end(self) -> None:
        """No answer is waited for, and nothing comes after a pause."""
        self._context.forget(self._ticket)
        self._again_ms = None
