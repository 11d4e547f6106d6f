"""Prepared branches ask for their decision by themselves (DESIGN T3, T4), so that a coordinator that is gone holds no locks.

Law: what the log decides is done, by those that it was decided for; undecided branches wait. Abort is presumed only where nothing
is left, in the generation in which the transaction was begun, and by an answer that no vote has overtaken.
"""

from lockstep.core.branch_names import BranchName, ParticipantName, branch_name, set_participant
from lockstep.core.clock import Now
from lockstep.core.decision_log import Fate, fate
from lockstep.core.effects import AskDecision, Note
from lockstep.core.ids import TransactionKey
from lockstep.core.inputs import DecisionHeard
from lockstep.core.records import Commit, Rollback, RollbackReason
from lockstep.core.tx_buffer import DtxBuffer, TxBuffer
from lockstep.core.xid import Xid
from services.primary.core.context import Context
from services.primary.core.outcome_askers import Answer
from services.primary.core.transacting import evict_touched


def watch(context: Context, branch: TxBuffer) -> None:
    """A branch is prepared, from now on or since before this epoch: it will ask, if our coordinator made it."""
    name = _name_of(branch)
    if name is not None:
        context.questions.prepared(branch.key, name.global_id, context.now.boottime_ms)


def ask(context: Context, now: Now) -> None:
    """Have the branches that have been prepared for long ask what became of their transaction."""
    for question in context.questions.ask_due(now.boottime_ms):
        context.effects.append(AskDecision(context.state.set_name, *question))


def ask_for(context: Context, key: TransactionKey, answer: Answer) -> bool:
    """A client asks what became of a prepared transaction (T5): has the branch look at once, and `answer` called when it has.
    False: nothing is to be waited for.
    """
    if key not in context.questions or not context.askers.may_wait(key):
        return False
    now_ms = context.now.boottime_ms
    if not context.askers.is_waited_for(key):
        question = context.questions.ask_now(key, now_ms)
        context.effects.append(AskDecision(context.state.set_name, *question))
    context.askers.wait(key, now_ms + context.settings.outcome_wait_ms, answer)
    return True


def heard(context: Context, given: DecisionHeard) -> None:
    """What the log says; `view` None: it did not answer."""
    is_outdated = context.questions.is_outdated(given.transaction, given.request)
    _follow(context, given)
    if not is_outdated:
        context.askers.answer(given.transaction)


def _follow(context: Context, given: DecisionHeard) -> None:
    branch = context.state.transactions.get(given.transaction)
    is_believed = context.questions.answered(given.transaction, given.request)
    if not isinstance(branch, DtxBuffer) or not branch.is_prepared or not is_believed or given.view is None:
        return
    name = _name_of(branch)
    assert name is not None, "only branches of ours ask"

    def is_own(participant: ParticipantName) -> bool:
        return participant == set_participant(context.state.set_name)

    match fate(given.view, name, is_own, branch.prepared_ms):
        case Fate.COMMIT:
            _note(context, "decision found", f"{_text(branch)}: commit")
            context.writer.append(Commit(None, branch.key, durable_records=branch.durable_records), True)
            evict_touched(context, branch)
        case Fate.ROLL_BACK:
            _note(context, "decision found", f"{_text(branch)}: rollback")
            record = Rollback(None, branch.key, RollbackReason.COORDINATOR, branch.durable_records)
            context.writer.append(record, True)
        case Fate.ASK_AN_OPERATOR:
            if context.questions.give_up(branch.key):
                text = "it was begun in another history of the cluster, and nothing certain is left: an operator has to end it"
                _note(context, "no decision", f"{_text(branch)}: {text}")
        case Fate.WAIT:
            pass


def _name_of(buffer: TxBuffer) -> BranchName | None:
    """None: another transaction manager's, which looks after it."""
    try:
        return branch_name(Xid.decode(buffer.xid))
    except ValueError:
        return None


def _text(branch: TxBuffer) -> str:
    return str(Xid.decode(branch.xid))


def _note(context: Context, event: str, details: str) -> None:
    context.effects.append(Note(context.state.set_name, event, details))
