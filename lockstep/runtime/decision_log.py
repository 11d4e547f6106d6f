"""Reads of the decision log in etcd: for coordinators, and for participants whose branches ask for their decision (DESIGN T3,
T4).

Law: a view is read in one transaction, at one revision. What a reader cannot understand is an error, never an absence.
"""

import logging

from lockstep.core.branch_names import GlobalId
from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import (
    DecisionKeys,
    LogView,
    OutcomeEntry,
    ParticipantsEntry,
    RevisionSeen,
    SetBackWatch,
    Verdict,
)
from lockstep.runtime.etcd import (
    Entry,
    EtcdClient,
    EtcdInDoubt,
    EtcdRejected,
    Get,
    GetDone,
    TransactionResult,
)

_log = logging.getLogger("lockstep.decision_log")

VIEW_KEYS = 5


def view_operations(cluster: str, global_id: GlobalId) -> list[Get]:
    """What a transaction reads to make a view of its answer; `view_from` is the other half."""
    keys = DecisionKeys(cluster)
    return [
        Get(Keys(cluster).generation),
        Get(Keys(cluster).set_back),
        Get(keys.participants(global_id)),
        Get(keys.decision(global_id)),
        Get(keys.outcome(global_id)),
    ]


def view_from(result: TransactionResult) -> LogView:
    """The view that `view_operations` have read, if they were all that was executed. Raises `ValueError` for values of others."""
    entries: list[Entry | None] = [one.entry for one in result.responses if isinstance(one, GetDone)]
    assert len(entries) == VIEW_KEYS, "executed what view_operations asked for"
    generation, set_back, participants, decision, outcome = entries
    return LogView(
        generation.value.decode(errors="replace") if generation else "",
        ParticipantsEntry.decode(participants.value) if participants else None,
        participants.mod_revision if participants else 0,
        Verdict(decision.value.decode()) if decision else None,
        OutcomeEntry.decode(outcome.value) if outcome else None,
        result.revision,
        set_back is not None,
    )


def is_view_believed(watch: SetBackWatch, view: LogView, asked: RevisionSeen) -> bool:
    """Whether anything may be concluded from it: neither this process nor a disk is known to have seen more of etcd."""
    return is_believed(watch, view.revision, view.generation, asked) and not view.is_set_back


def is_believed(watch: SetBackWatch, revision: int, generation: str, asked: RevisionSeen) -> bool:
    """As `SetBackWatch.take`; an operator is told, once, when it notices that etcd was set back."""
    was_set_back, seen = watch.is_set_back, watch.seen
    answer = watch.take(revision, generation, asked)
    if watch.is_set_back and not was_set_back:
        _log.error(
            "event=log_set_back revision=%d generation=%s seen=%d seen_generation=%s: etcd lacks what it had, and decisions "
            "with it; this process believes nothing of the decision log until rebuild-map has made another generation",
            revision,
            generation,
            seen.revision,
            seen.generation,
        )
    return answer


class DecisionLogReader:
    """Lives as long as its process. From an etcd that it has seen set back, nothing may be concluded (DESIGN R1, history 26)."""

    def __init__(self, etcd: EtcdClient, cluster: str) -> None:
        self._etcd = etcd
        self._cluster = cluster
        self._watch = SetBackWatch()

    async def read(self, global_id: GlobalId) -> LogView | None:
        """What the log says now; None: it does not answer, or was set back."""
        asked = self._watch.seen
        try:
            # It changes nothing, so that a doubt about it is a read that failed.
            result = await self._etcd.transact([], view_operations(self._cluster, global_id))
        except (EtcdRejected, EtcdInDoubt):
            return None
        try:
            view = view_from(result)
        except ValueError as error:
            _log.error("transaction=%s event=log_not_understood %s", global_id.hex(), error)
            return None
        return view if is_view_believed(self._watch, view, asked) else None
