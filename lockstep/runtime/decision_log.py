"""Reads of the decision log in etcd: for coordinators, and for participants whose branches ask for their decision (DESIGN T3,
T4).

Law: a view is read in one transaction, at one revision. What a reader cannot understand is an error, never an absence.
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace

from lockstep.core.branch_names import GlobalId, ParticipantName, begun_ms
from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import (
    DecisionKeys,
    LoggedParticipants,
    LogView,
    OutcomeEntry,
    ParticipantsEntry,
    RevisionSeen,
    SetBackWatch,
    Verdict,
)
from lockstep.core.roll_call import CALLER_CHARACTERS, RollCall
from lockstep.core.stamps import Stamps
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.etcd import (
    Entry,
    EtcdClient,
    EtcdInDoubt,
    EtcdRejected,
    Get,
    GetDone,
    TransactionResult,
)
from lockstep.runtime.roll_calls import RollCalls

_log = logging.getLogger("lockstep.decision_log")

VIEW_KEYS = 6
LOOKS = 10
"""How often an answer to a roll call is looked for before the question is answered without."""
LOOK_SECONDS = 0.05
LISTED_MAX = 20_000
"""Transactions that one list looks at: as many as a coordinator may have in hand, in a second. More than that are not over only
where many coordinators are gone, or a participant is."""
LISTED_AT_ONCE = 200
"""Before others have their turn: 3 ms."""


def view_operations(cluster: str, global_id: GlobalId) -> list[Get]:
    """What a transaction reads to make a view of its answer; `view_from` is the other half."""
    keys = DecisionKeys(cluster)
    return [
        Get(Keys(cluster).generation),
        Get(Keys(cluster).set_back),
        Get(keys.participants(global_id)),
        Get(keys.decision(global_id)),
        Get(keys.outcome(global_id)),
        Get(Keys(cluster).stamps),
    ]


def view_from(result: TransactionResult) -> LogView:
    """The view that `view_operations` have read, if they were all that was executed; unattested where there are witnesses. Raises
    `ValueError` for values of others.
    """
    entries: list[Entry | None] = [one.entry for one in result.responses if isinstance(one, GetDone)]
    assert len(entries) == VIEW_KEYS, "executed what view_operations asked for"
    generation, set_back, participants, decision, outcome, stamped = entries
    stamps = Stamps.decode(stamped.value if stamped else b"")
    return LogView(
        generation.value.decode(errors="replace") if generation else "",
        ParticipantsEntry.decode(participants.value) if participants else None,
        participants.mod_revision if participants else 0,
        Verdict(decision.value.decode()) if decision else None,
        OutcomeEntry.decode(outcome.value) if outcome else None,
        result.revision,
        set_back is not None,
        stamps,
        stamped.mod_revision if stamped else 0,
        bool(stamps.witnesses),
        stamped.value if stamped else b"",
        participants.value if participants else b"",
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
        self._roll_call = RollCall(str(uuid.uuid4())[:CALLER_CHARACTERS])
        self._roll_calls = RollCalls(etcd, cluster, self._roll_call)

    async def read(self, global_id: GlobalId) -> LogView | None:
        """What the log says now; None: it does not answer, or was set back. Where it has nothing, the roll is called."""
        view = await self._read(global_id)
        for _ in range(LOOKS):
            if view is None or not view.is_unattested or not view.has_nothing:
                break
            await self._roll_calls.call(view)
            await asyncio.sleep(LOOK_SECONDS)
            view = await self._read(global_id)
        return view

    async def list(self, participant: ParticipantName, up_to_ms: int) -> LoggedParticipants | None:
        """The lists of transactions that are not over, were begun up to then, and by which this participant is awaited: of the
        `LISTED_MAX` oldest ones. None: the log does not answer, or was set back.
        """
        keys, after = DecisionKeys(self._cluster), ""
        found: list[tuple[GlobalId, ParticipantsEntry]] = []
        seen_up_to_ms = 0
        for _ in range(0, LISTED_MAX, LISTED_AT_ONCE):
            try:
                page = await self._etcd.get_page(keys.all_participants, after, LISTED_AT_ONCE)
            except EtcdRejected:
                return None
            for entry in page:
                try:
                    global_id, listed = keys.global_id(entry.key), ParticipantsEntry.decode(entry.value)
                except ValueError as error:
                    _log.error("event=log_not_understood key=%s %s", entry.key, error)
                    continue
                seen_up_to_ms = begun_ms(global_id)
                if seen_up_to_ms <= up_to_ms and listed.awaited(participant):
                    found.append((global_id, listed))
            if len(page) < LISTED_AT_ONCE or seen_up_to_ms > up_to_ms:
                return self._listed(found, None)
            after = page[-1].key.removeprefix(keys.all_participants)
        # Others may have been begun in the same millisecond.
        return self._listed(found, seen_up_to_ms - 1)

    def _listed(
        self, found: Sequence[tuple[GlobalId, ParticipantsEntry]], seen_up_to_ms: int | None
    ) -> LoggedParticipants | None:
        return None if self._watch.is_set_back else LoggedParticipants(tuple(found), seen_up_to_ms)

    async def _read(self, global_id: GlobalId) -> LogView | None:
        asked, now_ms = self._watch.seen, boottime_ms()
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
        if not is_view_believed(self._watch, view, asked):
            return None
        return replace(view, is_unattested=not self._roll_call.is_answered(view.stamps, now_ms))
