"""Which function applies which kind of record.

Law: every kind of `AnyRecord` is here once.
"""

from collections.abc import Callable

from lockstep.core.apply_branches import (
    apply_associate,
    apply_dissociate,
    apply_forget_undone,
    apply_identify,
    apply_select_dtx,
    apply_set_timeout,
)
from lockstep.core.apply_epochs import apply_epoch_begins
from lockstep.core.apply_messages import (
    apply_annotate,
    apply_dequeue,
    apply_move,
    apply_publish,
    apply_requeue,
)
from lockstep.core.apply_sessions import (
    apply_accept_command,
    apply_close_session,
    apply_consume,
    apply_open_session,
    apply_reject_command,
)
from lockstep.core.apply_subscriptions import (
    apply_advance_subscription,
    apply_close_subscription,
    apply_open_subscription,
)
from lockstep.core.apply_transactions import (
    apply_begin,
    apply_commit,
    apply_forget_heuristic,
    apply_forget_outcomes,
    apply_mark_rollback_only,
    apply_prepare,
    apply_rollback,
)
from lockstep.core.apply_wiring import (
    apply_bind,
    apply_declare_exchange,
    apply_declare_queue,
    apply_delete_exchange,
    apply_delete_queue,
    apply_unbind,
    apply_use_queue,
)
from lockstep.core.records import (
    AcceptCommand,
    AdvanceSubscription,
    Annotate,
    Associate,
    Begin,
    Bind,
    CloseSession,
    CloseSubscription,
    Commit,
    Consume,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Dequeue,
    Dissociate,
    EpochBegins,
    ForgetHeuristic,
    ForgetOutcomes,
    ForgetUndone,
    Identify,
    MarkRollbackOnly,
    Move,
    OpenSession,
    OpenSubscription,
    PackedPublish,
    Prepare,
    Publish,
    RejectCommand,
    Requeue,
    Rollback,
    SelectDtx,
    SetTimeout,
    Unbind,
    UseQueue,
)
from lockstep.core.reply import Reply

# A table and not a `match`: with 33 kinds of records `match` costs as much as applying a small one.
APPLY: dict[type, Callable[..., Reply]] = {
    DeclareExchange: apply_declare_exchange,
    DeleteExchange: apply_delete_exchange,
    DeclareQueue: apply_declare_queue,
    DeleteQueue: apply_delete_queue,
    Bind: apply_bind,
    Unbind: apply_unbind,
    UseQueue: apply_use_queue,
    Publish: apply_publish,
    PackedPublish: apply_publish,
    Dequeue: apply_dequeue,
    Move: apply_move,
    Requeue: apply_requeue,
    Annotate: apply_annotate,
    Begin: apply_begin,
    Prepare: apply_prepare,
    Commit: apply_commit,
    Rollback: apply_rollback,
    MarkRollbackOnly: apply_mark_rollback_only,
    ForgetOutcomes: apply_forget_outcomes,
    ForgetHeuristic: apply_forget_heuristic,
    Associate: apply_associate,
    Identify: apply_identify,
    Dissociate: apply_dissociate,
    SetTimeout: apply_set_timeout,
    ForgetUndone: apply_forget_undone,
    OpenSession: apply_open_session,
    CloseSession: apply_close_session,
    RejectCommand: apply_reject_command,
    AcceptCommand: apply_accept_command,
    SelectDtx: apply_select_dtx,
    Consume: apply_consume,
    OpenSubscription: apply_open_subscription,
    AdvanceSubscription: apply_advance_subscription,
    CloseSubscription: apply_close_subscription,
    EpochBegins: apply_epoch_begins,
}
