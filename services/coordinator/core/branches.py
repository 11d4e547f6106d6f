"""The branches of one transaction: who was told what, who has answered, and who is told again.

Law: a branch is told one thing at a time and has at most one call under way; it is told again, later and later, until it has
answered. Only a vote of read-only says that it needs not be told the end (DESIGN T4): the decision keeps that in the log, and so
is an acknowledgement kept that others are late behind.
"""

from dataclasses import dataclass

from lockstep.core.branch_names import SET_KIND, GenerationTag, GlobalId, ParticipantName, branch_xid
from lockstep.core.clock import Now
from lockstep.core.decision_log import ParticipantsEntry
from lockstep.core.xid import Xid
from services.coordinator.core.context import Context, Conversation
from services.coordinator.core.messages import TellBranch, Ticket
from services.coordinator.core.votes import Completion, Verb, Vote


@dataclass(slots=True)
class Branch:
    """One participant's part."""

    participant: ParticipantName
    xid: Xid
    vote: Vote | None = None
    completion: Completion | None = None
    ticket: Ticket | None = None
    """Of the call under way."""
    tries: int = 0
    due_ms: int | None = None
    """When it is told again."""

    @property
    def has_to_be_told(self) -> bool:
        """Whether it may be prepared, and has not acknowledged the end."""
        return bool(self.participant) and self.vote is not Vote.READ_ONLY and self.completion is None


class Branches:
    """As long as its transaction, which is its driver."""

    def __init__(
        self,
        context: Context,
        owner: Conversation,
        global_id: GlobalId,
        generation: GenerationTag,
        participants: tuple[ParticipantName, ...],
    ) -> None:
        self._context = context
        self._owner = owner
        self.all = [
            Branch(name, branch_xid(global_id, number, generation))
            for number, name in enumerate(participants)
        ]
        self._verb = Verb.PREPARE

    @property
    def participants(self) -> tuple[ParticipantName, ...]:
        return tuple(branch.participant for branch in self.all)

    @property
    def votes(self) -> list[Vote | None]:
        return [branch.vote for branch in self.all]

    @property
    def completions(self) -> list[Completion]:
        """Of those that have acknowledged the end."""
        return [branch.completion for branch in self.all if branch.completion is not None]

    @property
    def finished(self) -> tuple[int, ...]:
        """Numbers of those that had nothing to commit."""
        return tuple([number for number, branch in enumerate(self.all) if branch.vote is Vote.READ_ONLY])

    @property
    def committed(self) -> tuple[int, ...]:
        """Numbers of those that have acknowledged a COMMIT."""
        completed = [branch.completion is Completion.COMMITTED for branch in self.all]
        return tuple([number for number, is_committed in enumerate(completed) if is_committed])

    def are_ended(self, entry: ParticipantsEntry) -> None:
        """What the log says of them: another coordinator had their votes, and their acknowledgements."""
        for number in entry.finished:
            self.all[number].vote = Vote.READ_ONLY
        for number in entry.committed:
            self.all[number].completion = Completion.COMMITTED

    @property
    def pending(self) -> tuple[ParticipantName, ...]:
        """Who has not acknowledged the end."""
        return tuple(branch.participant for branch in self.all if branch.has_to_be_told)

    @property
    def has_set_in_first_call(self) -> bool:
        """Whether a resource set was told for the first time what they are all told now, and has not answered. One that did not
        answer is away, and may be for long."""
        return any(
            branch.ticket is not None and branch.tries == 1 and branch.participant.startswith(SET_KIND)
            for branch in self.all
        )

    def tell(self, verb: Verb, now: Now) -> None:
        """Tells it to all that have to hear it; what they were told before needs no answer any more."""
        self._verb = verb
        for number, branch in enumerate(self.all):
            self._context.forget(branch.ticket)
            branch.ticket, branch.tries, branch.due_ms = None, 0, None
            if branch.has_to_be_told:
                self._call(number, branch)

    def tell_again(self, now: Now) -> None:
        """Those whose pause is over."""
        for number, branch in enumerate(self.all):
            if branch.due_ms is not None and branch.due_ms <= now.boottime_ms:
                branch.due_ms = None
                self._call(number, branch)

    def voted(self, number: int, vote: Vote, now: Now) -> bool:
        """Whether it was an answer."""
        branch = self.all[number]
        branch.ticket = None
        if vote is Vote.UNREACHABLE:
            self._pause(branch, now)
            return False
        branch.vote = vote
        return True

    def completed(self, number: int, completion: Completion, now: Now) -> bool:
        """Whether it was an answer."""
        branch = self.all[number]
        branch.ticket = None
        if completion is Completion.UNREACHABLE:
            self._pause(branch, now)
            return False
        branch.completion = completion
        return True

    def silent(self, participant: ParticipantName) -> list[int]:
        """Numbers of this participant's branches that were told more than once and have not answered."""
        return [
            number
            for number, branch in enumerate(self.all)
            if branch.participant == participant and branch.has_to_be_told and branch.tries > 1
        ]

    def drop_call(self, number: int) -> None:
        """Nobody waits for this one's answer any more, nor tells it again."""
        branch = self.all[number]
        self._context.forget(branch.ticket)
        branch.ticket = branch.due_ms = None

    def drop_calls(self) -> None:
        """Nobody waits for answers any more."""
        for number in range(len(self.all)):
            self.drop_call(number)

    def _call(self, number: int, branch: Branch) -> None:
        branch.ticket = self._context.ticket(self._owner, number)
        branch.tries += 1
        together = self.participants if self._verb is Verb.PREPARE else ()
        self._context.say(TellBranch(branch.ticket, branch.participant, branch.xid, self._verb, together))

    def _pause(self, branch: Branch, now: Now) -> None:
        branch.due_ms = now.boottime_ms + self._context.pause_ms(branch.tries)
        self._context.wake_at(branch.due_ms, self._owner)
