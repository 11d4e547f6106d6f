"""The coordinator's core: clients' requests, answers of participants and of the log, and time, each to whom it concerns.

Law: whatever is in memory here can be lost. A request names the whole transaction, so any coordinator can serve it, and two of
them can end the same one at once: the log decides between them (`transaction.py`).
"""

from collections.abc import Iterator
from typing import assert_never

from lockstep.core.branch_names import (
    SET_KIND,
    GenerationTag,
    GlobalId,
    ParticipantName,
    branch_xid,
)
from lockstep.core.clock import Now
from lockstep.core.decision_log import NO_LIST, ListRead, Verdict
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Incarnation
from lockstep.core.pieces import Pieces
from services.coordinator.core.closing import Closing
from services.coordinator.core.commit_hold import CommitHold
from services.coordinator.core.context import Context, Conversation
from services.coordinator.core.doubts import Doubts
from services.coordinator.core.inquiry import Inquiry
from services.coordinator.core.listing import Listing
from services.coordinator.core.log_sight import LogSight
from services.coordinator.core.messages import (
    BeginAsked,
    BegunAnswer,
    CloseAsked,
    CommitAsked,
    Completed,
    Effect,
    EnlistAsked,
    EnlistedAnswer,
    GivenUpAnswer,
    GiveUpAsked,
    HoldAsked,
    Input,
    LoggedTransaction,
    LogInDoubt,
    LogListed,
    LogRead,
    LogRefused,
    LogSeen,
    LogWritten,
    Note,
    OutcomeAnswer,
    OutcomeAsked,
    RecoverAsked,
    Refusal,
    RequestDropped,
    RequestId,
    RollbackAsked,
    State,
    Tick,
    Voted,
    WakeSoon,
    Woken,
)
from services.coordinator.core.one_phase import OnePhase
from services.coordinator.core.open_transactions import OpenTransactions
from services.coordinator.core.participant_lists import refusal_of
from services.coordinator.core.recovery import Recovery
from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.core.transaction import NOTHING_FOUND, STATES, Transaction
from services.coordinator.core.votes import Verb

AnyTransaction = Transaction | OnePhase
TAKE_UP_COST = 50
"""Of one transaction that was found in the log, in microseconds about."""


class Coordinator:
    """Lives as long as its process; driven by its driver. Every input is handled to its end."""

    def __init__(self, process: Incarnation, limits: CoordinatorLimits) -> None:
        self._context = Context(process, limits)
        self._limits = limits
        self._transactions: dict[GlobalId, AnyTransaction] = {}
        self._open = OpenTransactions(limits)
        self._recovery = Recovery(self._context)
        self.doubts = Doubts(self._context)
        """For whoever shows its figures."""
        self._listing = Listing(self._context)
        self._sight = LogSight(limits)
        self._pieces = Pieces(limits.piece_cost)

    @property
    def transactions(self) -> dict[GlobalId, AnyTransaction]:
        """Those in hand, for whoever shows them."""
        return dict(self._transactions)

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def hold(self) -> CommitHold:
        """For whoever shows its figures."""
        return self._context.hold

    def handle(self, given: Input, now: Now) -> list[Effect]:
        """Takes one input; returns what is to be done, in order."""
        self._sight.begin(now)
        match given:
            case BeginAsked():
                self._begin(given, now)
            case EnlistAsked():
                self._enlist(given, now)
            case CloseAsked():
                self._close(given, now)
            case CommitAsked() | RollbackAsked():
                self._end(given, now)
            case OutcomeAsked():
                self._inquire(given, now)
            case RecoverAsked():
                self._listing.ask(now, given.request)
            case HoldAsked():
                self._context.hold.ask(given.request, self._over_the_log(), now)
            case GiveUpAsked():
                self._give_up(given, now)
            case RequestDropped():
                waiters = self._context.waiters.get(given.request)
                if waiters is not None:
                    waiters.drop(given.request)
                self._context.hold.drop(given.request, now)
            case LogSeen():
                self._sight.seen(given.asked_ms, now)
            case Tick():
                self._tick(now)
            case Woken():
                self._go_on()
            case LogListed():
                self._listed(given, now)
            case Voted() | Completed() | LogWritten() | LogRefused() | LogRead() | LogInDoubt():
                self._answered(given, now)
            case _:
                assert_never(given)
        effects, self._context.effects = self._context.effects, []
        return effects

    # Clients

    def _begin(self, asked: BeginAsked, now: Now) -> None:
        if asked.open_ms > self._limits.open_ms_max:
            message = f"a transaction is open for at most {self._limits.open_ms_max} ms, not {asked.open_ms}"
            self._context.say(Refusal(asked.request, ErrorCode.INVALID_ARGUMENT, message))
            return
        self._open.begin(asked.global_id, asked.generation, asked.open_ms, now)
        self._context.say(BegunAnswer(asked.request))

    def _enlist(self, asked: EnlistAsked, now: Now) -> None:
        if not self._are_names(asked.request, (asked.participant,), asked.number + 1):
            pass
        elif asked.global_id in self._transactions:
            self._refuse_state(asked.request, "it is being ended")
        else:
            self._open.enlist(asked.global_id, asked.generation, asked.number, asked.participant, now)
            xid = branch_xid(asked.global_id, asked.number, asked.generation)
            self._context.say(EnlistedAnswer(asked.request, xid))

    def _close(self, asked: CloseAsked, now: Now) -> None:
        if not self._are_names(asked.request, asked.participants):
            return
        if not asked.participants:
            self._context.say(Refusal(asked.request, ErrorCode.INVALID_ARGUMENT, "it has no participants"))
        elif asked.global_id in self._transactions:
            self._refuse_state(asked.request, "it is being ended")
        else:
            self._open.forget(asked.global_id)
            Closing(self._context, asked).begin(now)

    def _end(self, asked: CommitAsked | RollbackAsked, now: Now) -> None:
        if not self._are_names(asked.request, asked.participants):
            return
        opened_ms = self._open.forget(asked.global_id)
        known = self._transactions.get(asked.global_id)
        if known is not None:
            self._join(known, asked, now)
        elif not asked.participants and not asked.is_closed:
            state = State.COMMITTED if isinstance(asked, CommitAsked) else State.ROLLED_BACK
            self._context.say(OutcomeAnswer(asked.request, state))
        elif len(self._transactions) >= self._limits.transactions_max:
            message = f"{self._limits.transactions_max} transactions are being ended: try again, or elsewhere"
            self._context.say(Refusal(asked.request, ErrorCode.UNAVAILABLE, message, "transactions_max"))
        else:
            self._take_up(asked, opened_ms, now)

    def _join(self, known: AnyTransaction, asked: CommitAsked | RollbackAsked, now: Now) -> None:
        # One that is to be aborted may know of fewer participants than its client, and aborts nevertheless.
        is_aborting = isinstance(known, Transaction) and known.aim is Verdict.ABORT
        if isinstance(asked, CommitAsked) and asked.participants != known.participants and not is_aborting:
            self._refuse_state(asked.request, "it is being ended with other participants")
            return
        if isinstance(known, Transaction) and (len(asked.participants) > 1 or asked.is_closed):
            known.is_asked_for()
        known.join(asked.request, now)
        if isinstance(known, Transaction) and isinstance(asked, RollbackAsked):
            known.abandon(now)
        self._forget_ended(known)

    def _take_up(self, asked: CommitAsked | RollbackAsked, opened_ms: int | None, now: Now) -> None:
        """`opened_ms`: as `LogSight.covers` has it."""
        is_commit = isinstance(asked, CommitAsked)
        if len(asked.participants) == 1 and not asked.is_closed:
            verb = Verb.COMMIT_ONE_PHASE if is_commit else Verb.ROLL_BACK
            single = OnePhase(self._context, asked.global_id, asked.generation, asked.participants[0], verb)
            self._transactions[asked.global_id] = single
            single.join(asked.request, now)
            single.begin(now)
            return
        aim = Verdict.COMMIT if is_commit else Verdict.ABORT
        is_older = not self._sight.covers(asked.global_id, opened_ms, now)
        transaction = self._new_transaction(
            asked.global_id,
            asked.generation,
            asked.participants,
            aim,
            # A list that it has to find first says more of that: by whom it was written.
            may_be_decided=is_older and (is_commit or not asked.is_closed),
            is_unseen=is_older and self._sight.was_lost_before(now),
            is_named=True,
        )
        transaction.join(asked.request, now)
        transaction.begin(now, looks_first=asked.is_closed)
        self._forget_ended(transaction)  # One that is too old ends at once.

    def _inquire(self, asked: OutcomeAsked, now: Now) -> None:
        known = self._transactions.get(asked.global_id)
        if isinstance(known, OnePhase) or (
            isinstance(known, Transaction) and (asked.is_fence or known.is_answered)
        ):
            known.join(asked.request, now)
            if isinstance(known, Transaction):
                known.abandon(now)
            self._forget_ended(known)
        else:
            Inquiry(self._context, asked).begin(now)

    def _give_up(self, asked: GiveUpAsked, now: Now) -> None:
        if asked.participant.startswith(SET_KIND):
            message = "a resource set comes back with its disks: it is not given up"
            self._context.say(Refusal(asked.request, ErrorCode.INVALID_ARGUMENT, message))
            return
        known = self._transactions.get(asked.global_id)
        if not isinstance(known, Transaction):
            message = "this coordinator does not end such a transaction"
            self._context.say(Refusal(asked.request, ErrorCode.NOT_FOUND, message))
        elif not known.give_up(asked.participant, now):
            message = f"no {asked.participant!r} is being told how it ends, or it was told only once"
            self._context.say(Refusal(asked.request, ErrorCode.ILLEGAL_STATE, message))
        else:
            assert known.verdict is not None, "told when it is decided"
            self._context.say(GivenUpAnswer(asked.request, STATES[known.verdict]))
            self._after(known, now)

    # Participants and the log

    def _answered(
        self, given: Voted | Completed | LogWritten | LogRefused | LogRead | LogInDoubt, now: Now
    ) -> None:
        if self._listing.take(given.ticket):
            assert isinstance(given, LogInDoubt), "a listing is answered by a list, or not at all"
            self._pieces.begin_in_turn(self._answer_listing((), now))
            self._go_on()
            return
        waiting = self._context.take(given.ticket)
        if waiting is None:
            return
        conversation, number = waiting
        match given:
            case Voted():
                conversation.voted(number, given.vote, now)
            case Completed():
                conversation.completed(number, given.completion, now)
            case LogWritten():
                conversation.written(given.revision, now)
            case LogRefused() | LogRead():
                conversation.read(given.view, now)
            case LogInDoubt():
                conversation.doubted(now)
        self._after(conversation, now)

    def _after(self, conversation: Conversation, now: Now) -> None:
        if isinstance(conversation, Inquiry) and conversation.to_be_fenced is not None:
            found, conversation.to_be_fenced = conversation.to_be_fenced, None
            known = self._transactions.get(found.global_id)
            if known is None:
                known = self._recovered(found, now)
                known.join(conversation.asked.request, now)
                known.begin(now, looks_first=True)
            else:
                known.join(conversation.asked.request, now)
                if isinstance(known, Transaction):
                    known.abandon(now)
            self._forget_ended(known)
        if isinstance(conversation, Transaction | OnePhase):
            self._forget_ended(conversation)
        if isinstance(conversation, Transaction):
            self._context.hold.look(conversation, now)

    # Time and recovery

    def _tick(self, now: Now) -> None:
        self._context.hold.tick(now)
        for woken in self._context.ring(now):
            if isinstance(woken, Transaction | OnePhase):
                self._forget_ended(woken)
        if self._recovery.is_due(now):
            self._listing.ask(now)
            for late in self._open.timed_out(now):
                if late.global_id not in self._transactions:
                    self._context.say(Note("timed_out", late.global_id))
                    transaction = self._new_transaction(
                        late.global_id, late.generation, late.listed, Verdict.ABORT, NOTHING_FOUND
                    )
                    transaction.begin(now, looks_first=False)
                    self._forget_ended(transaction)

    def _listed(self, listed: LogListed, now: Now) -> None:
        if self._listing.take(listed.ticket):
            self._pieces.begin_in_turn(self._take_in(listed, now))
            self._go_on()

    def _take_in(self, listed: LogListed, now: Now) -> Iterator[int]:
        """In steps that say what they cost (`Pieces`): there may be a hundred thousand in the log."""
        yield from self.doubts.listed(listed.transactions)
        taken_up: list[GlobalId] = []
        for found in (yield from self._recovery.orphans(listed, self._transactions.__contains__, now)):
            if found.global_id in self._transactions:
                continue  # Somebody has asked for it meanwhile.
            self._context.say(
                Note("taken_up", found.global_id, f"owner={found.entry.owner} decision={found.decision}")
            )
            self._recovered(found, now, found.read).begin(now, looks_first=True)
            taken_up.append(found.global_id)
            yield TAKE_UP_COST
        self._recovery.listed(self._listing.asked_ms)
        yield from self._answer_listing(tuple(taken_up), now)

    def _answer_listing(self, taken_up: tuple[GlobalId, ...], now: Now) -> Iterator[int]:
        yield from self.doubts.look(self._transactions, now)
        self._listing.answer(taken_up)

    def _go_on(self) -> None:
        """With what is too much for one step; others have their turn before the next one."""
        self._pieces.go_on()
        if self._pieces.works:
            self._context.say(WakeSoon())

    def _recovered(self, found: LoggedTransaction, now: Now, only: ListRead = NO_LIST) -> Transaction:
        """To be aborted, unless the log says that it is decided; `only`: while that very list stands."""
        entry = found.entry
        return self._new_transaction(
            found.global_id,
            entry.generation,
            entry.participants,
            Verdict.ABORT,
            only,
            # Its list may be of this process, and have been asked for long before it was written.
            is_unseen=not self._sight.covers(found.global_id, None, now) and self._sight.was_lost_before(now),
        )

    # Inside

    def _over_the_log(self) -> list[Transaction]:
        return [one for one in self._transactions.values() if isinstance(one, Transaction)]

    def _new_transaction(
        self,
        global_id: GlobalId,
        generation: GenerationTag,
        participants: tuple[ParticipantName, ...],
        aim: Verdict,
        found: ListRead = NO_LIST,
        *,
        may_be_decided: bool = False,
        is_unseen: bool = False,
        is_named: bool = False,
    ) -> Transaction:
        transaction = Transaction(
            self._context,
            global_id,
            generation,
            participants,
            aim,
            found,
            may_be_decided=may_be_decided,
            is_unseen=is_unseen,
            is_named=is_named,
        )
        self._transactions[global_id] = transaction
        return transaction

    def _forget_ended(self, transaction: AnyTransaction) -> None:
        if transaction.is_ended and self._transactions.get(transaction.global_id) is transaction:
            del self._transactions[transaction.global_id]

    def _are_names(
        self, request: RequestId, participants: tuple[ParticipantName, ...], count: int = 0
    ) -> bool:
        """Refuses lists that are too long, and names that are empty or too long."""
        refusal = refusal_of(request, participants, self._limits, count)
        if refusal is not None:
            self._context.say(refusal)
        return refusal is None

    def _refuse_state(self, request: RequestId, message: str) -> None:
        self._context.say(Refusal(request, ErrorCode.ILLEGAL_STATE, message))
