"""Subscriptions to committed events, and how branches have ended: what other services of a broker ask of a primary (DESIGN 7).

Law: read and written at the log's end, told when that is committed (R11). Changing a subscription twice in one way changes it
once: nothing here has a command number.
"""

from collections import deque
from collections.abc import Callable, Generator

from lockstep.core.branch_names import BranchName, branch_encodings, branch_name
from lockstep.core.clock import Now
from lockstep.core.effects import Note
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.records import AdvanceSubscription, CloseSubscription, OpenSubscription
from lockstep.core.requests import ChangeSubscription, FindBranches, SubscriptionChange
from lockstep.core.server_messages import BranchEnd, BranchesFound, SubscriptionsAnswer
from lockstep.core.set_state import SetState
from lockstep.core.transaction_states import COMMITS
from lockstep.core.xid import Xid
from services.primary.core import used_names
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.context import Context

_SAMPLES = 64
"""Of the log's end, over the retention."""
_OF_THE_OWED = (SubscriptionChange.OPEN, SubscriptionChange.START, SubscriptionChange.ADVANCE)
"""Changes after which a group goes on."""


def change_subscription(
    context: Context, streams: ClientStreams, stream: ClientStream, request: ChangeSubscription
) -> None:
    """Do it, and answer with all groups of the set."""
    code, text = ErrorCode.NONE, ""
    try:
        _change(context, request)
    except Rejected as error:
        context.note_refusal(error)
        code, text = error.code, error.message
    groups = tuple(group for _, group in sorted(context.state.subscriptions.by_name.items()))
    streams.tell_answer(
        stream, lambda: SubscriptionsAnswer(*streams.head(), request.request, code, text, groups)
    )


def _change(context: Context, request: ChangeSubscription) -> None:
    subscriptions, writer = context.state.subscriptions, context.writer
    group = subscriptions.by_name.get(request.group)
    if group is not None and group.is_left_behind and request.change in _OF_THE_OWED:
        raise Rejected(
            ErrorCode.OUT_OF_RANGE,
            f"group {group.name!r} was left behind at {group.floor}: close it, and open it anew",
        )
    match request.change:
        case SubscriptionChange.NONE:
            pass
        case SubscriptionChange.OPEN:
            if group is None:
                _check_new(context, request.group)
                floor = _start(context.state, request)
                writer.append(OpenSubscription(None, request.group, floor), True)
        case SubscriptionChange.ADVANCE | SubscriptionChange.START:
            if group is None:
                raise Rejected(ErrorCode.NOT_FOUND, f"no group {request.group!r} here: it was closed")
            floor = request.floor or LogIndex(0)
            _check_floor(context, floor, request.epoch)
            is_repeated = group.is_started and (
                request.change is SubscriptionChange.START or floor <= group.floor
            )
            if is_repeated:
                return
            group_id, begins = group.id, request.begins
            if not group.is_started and floor < group.floor:
                # Whoever opened it did not know that it has begun in other sets: a floor never falls, so it is opened anew.
                writer.append(CloseSubscription(None, group_id), True)
                group_id = writer.append(OpenSubscription(None, request.group, floor), True)
            writer.append(AdvanceSubscription(None, group_id, floor, begins), True)
        case SubscriptionChange.CLOSE:
            if group is not None and not (group.is_left_behind and request.is_left_behind):
                writer.append(CloseSubscription(None, group.id, request.is_left_behind), True)


def _check_floor(context: Context, floor: LogIndex, epoch: Epoch | None) -> None:
    """Raises `Rejected` WRONG_EPOCH for what is not in this log. What a reader is done with was committed, and a primary that
    serves knows all that was: if it is not there, the log has lost its end since (R7), and the reader has to hear of it.
    """
    commit_index, known = context.writer.log.commit_index, context.state.epochs.epoch_at(floor)
    if floor > commit_index:
        raise Rejected(
            ErrorCode.WRONG_EPOCH, f"{floor} is not in this log, which is committed up to {commit_index}"
        )
    if epoch is not None and known not in (epoch, None):
        raise Rejected(
            ErrorCode.WRONG_EPOCH, f"there is a record of epoch {known} at {floor}, not of {epoch}"
        )


def _check_new(context: Context, name: str) -> None:
    settings = context.settings
    if not name or len(name.encode()) > settings.name_bytes_max or not name.isprintable():
        text = f"a group has a name of 1 to {settings.name_bytes_max} bytes of printable text"
        raise Rejected(ErrorCode.INVALID_ARGUMENT, text)
    subscriptions = context.state.subscriptions
    if len(subscriptions.by_id) >= settings.subscriptions_max:
        left_behind = len(subscriptions.by_id) - len(subscriptions.owed())
        text = f"the set has {settings.subscriptions_max} groups, subscriptions_max, and {left_behind} were left behind"
        raise LimitReached("subscriptions_max", ErrorCode.UNAVAILABLE, text)


def _start(state: SetState, request: ChangeSubscription) -> LogIndex:
    """Where a new group begins: never below what is kept."""
    if request.floor is not None:
        return LogIndex(min(request.floor, state.applied))
    floor = state.subscriptions.floor if request.is_earliest else None
    return state.applied if floor is None else floor


class LeftBehind:
    """Leaves groups behind that are owed log of before `subscription_retention_ms`, events or not: the disk is for those who
    read, and a reader that is there moves on although there are no events. Their names stay: one set does so long before another,
    or alone. Lives as long as the epoch: what it knows of times begins with it.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ends: deque[tuple[int, LogIndex]] = deque()
        """(CLOCK_BOOTTIME, log's end then), a few dozen over the retention."""

    def tick(self, now: Now) -> None:
        context, retention_ms = self._context, self._context.settings.subscription_retention_ms
        subscriptions = context.state.subscriptions
        if not subscriptions.owed():
            self._ends.clear()
            return
        if not self._ends or now.boottime_ms - self._ends[-1][0] >= retention_ms // _SAMPLES:
            self._ends.append((now.boottime_ms, context.writer.log.end))
        while self._ends[0][0] <= now.boottime_ms - retention_ms:
            _, end = self._ends.popleft()
            for group in [group for group in subscriptions.owed() if group.floor < end]:
                context.writer.append(CloseSubscription(None, group.id, is_left_behind=True), True)
                details = f"{group.name} at {group.floor}, older than {retention_ms} ms"
                context.effects.append(
                    Note(context.state.set_name, "subscription_left_behind", details, is_warning=True)
                )
            if not self._ends:
                return


_END_COST = 20
"""Of a look for all branches that a transaction may have here."""


def find_branches(
    context: Context, streams: ClientStreams, stream: ClientStream, request: FindBranches
) -> None:
    """How this set's branches of these transactions stand; of none: which are prepared. There may be very many of both."""
    streams.answer_in_turn(stream, _find_branches(context, streams, request))


def _find_branches(
    context: Context, streams: ClientStreams, request: FindBranches
) -> Generator[int, None, Callable[[], BranchesFound]]:
    found: list[BranchEnd] = []
    for xid in request.xids:
        found.append(_end_of(context, xid))
        yield _END_COST
    ends = tuple(found)
    prepared = () if request.xids else context.questions.xids(context.state.transactions)
    return lambda: BranchesFound(*streams.head(), request.request, ends, prepared)


def _end_of(context: Context, xid: bytes) -> BranchEnd:
    """Of the branch, or branches, that the transaction of this branch has here."""
    name, state = _name(xid), context.state
    if name is None:
        return BranchEnd()
    is_prepared, is_open, ended = False, False, []
    for sibling in branch_encodings(name.global_id, name.generation):
        buffer = state.transactions.find_xid(sibling)
        if buffer is not None:
            is_prepared |= buffer.is_prepared
            is_open |= not buffer.is_prepared
        elif (found := state.outcomes.find_xid(sibling)) is not None:
            ended.append(found[1])
    # Nothing of it is committed before all of it is prepared.
    may_be_forgotten = not is_open and used_names.may_be_forgotten(context, xid)
    if not ended:
        floor = LogIndex(0) if is_prepared else state.retention_floor
        return BranchEnd(is_prepared, forgotten_up_to=floor, may_be_forgotten=may_be_forgotten)
    indexes = [outcome.index for outcome in ended]
    first, last = min(indexes), max(indexes)
    return BranchEnd(
        is_prepared,
        last,
        any(outcome.state in COMMITS for outcome in ended),
        first_index=first if first < last else LogIndex(0),
        may_be_forgotten=may_be_forgotten,
    )


def _name(xid: bytes) -> BranchName | None:
    try:
        return branch_name(Xid.decode(xid))
    except ValueError:
        return None
