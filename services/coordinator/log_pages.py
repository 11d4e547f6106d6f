"""Pages of what is not over, or did not end as decided: for people, who may find a hundred thousand transactions after an outage.

Law: a page is as long as etcd and this process read in one go, and is no older than its call. What it shows decides nothing: of a
transaction that goes on meanwhile it may show what was before.
"""

import time
from collections.abc import Collection, Sequence

from lockstep.core.branch_names import GlobalId, ParticipantName, begun_ms, branch_xid, parse_global_id
from lockstep.core.decision_log import DecisionKeys, OutcomeEntry, Verdict
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Incarnation
from lockstep.runtime.etcd import OPERATIONS_MAX, Entry, EtcdClient, EtcdRejected
from lockstep.runtime.xid_codec import encode_xid
from lockstep.wire.v1 import coordinator_pb2 as pb
from services.coordinator.core.branches import Branch
from services.coordinator.core.coordinator import AnyTransaction, Coordinator
from services.coordinator.core.messages import LoggedTransaction
from services.coordinator.core.transaction import Transaction
from services.coordinator.log_changes import LogListing, understood

PAGE_MAX = 500
"""Transactions on one page: some milliseconds' work, also with many participants."""
_DECIDED = {
    None: pb.DISTRIBUTED_STATE_UNDECIDED,
    Verdict.COMMIT: pb.DISTRIBUTED_STATE_COMMITTED,
    Verdict.ABORT: pb.DISTRIBUTED_STATE_ROLLED_BACK,
}


class LogPages:
    """Lives as long as the process."""

    def __init__(self, etcd: EtcdClient, cluster: str, core: Coordinator) -> None:
        """`core`: what it has in hand is shown, too."""
        self._etcd = etcd
        self._keys = DecisionKeys(cluster)
        self._core = core

    async def page(self, request: pb.ListDistributedRequest) -> pb.ListDistributedResponse:
        """Those that were begun behind the token, the oldest first. Raises `Rejected` UNAVAILABLE where etcd does not answer."""
        size = min(request.page_size or PAGE_MAX, PAGE_MAX)
        after = request.page_token.decode(errors="replace")
        try:
            entries = await self._etcd.get_page(self._keys.all_participants, after, size)
            listing = await self._listing(entries)
            kept_entries = await self._etcd.get_page(self._keys.all_heuristics, after, size)
        except EtcdRejected as error:
            raise Rejected(ErrorCode.UNAVAILABLE, f"etcd does not answer: {error.message}") from error
        logged, kept = {one.global_id.hex(): one for one in listing.found}, _kept(kept_entries)
        held = {key.hex(): one for key, one in self._core.transactions.items() if key.hex() > after}
        # Of what lies behind the last of a page that is full nothing is known here.
        ends = [_name(read[-1]) for read in (entries, kept_entries) if len(read) == size]
        end = min(ends, default="")
        names = sorted(name for name in {*logged, *kept, *held} if not end or name <= end)
        page = names[:size]
        token = page[-1] if len(names) > size else end
        return pb.ListDistributedResponse(
            transactions=[
                _logged(logged[name], listing.owners, held.get(name)) if name in logged else _held(held[name])
                for name in page
                if name in logged or name in held
            ],
            heuristics=[
                _heuristic(GlobalId(bytes.fromhex(name)), kept[name]) for name in page if name in kept
            ],
            next_page_token=token.encode(),
        )

    async def _listing(self, entries: Sequence[Entry]) -> LogListing:
        listing, keys = LogListing(self._keys), self._keys
        decisions = [f"{keys.all_decisions}{_name(entry)}" for entry in entries]
        for begin in range(0, len(decisions), OPERATIONS_MAX):
            found = await self._etcd.get_many(decisions[begin : begin + OPERATIONS_MAX])
            listing.take(list(found.values()))
        listing.take(entries)
        owners, _ = await self._etcd.get_prefix(keys.all_coordinators)
        listing.take(owners)
        return listing


def _name(entry: Entry) -> str:
    """Of the transaction whose entry it is."""
    return entry.key.rpartition("/")[2]


def _kept(entries: Sequence[Entry]) -> dict[str, OutcomeEntry]:
    """Outcomes that operators have not had forgotten."""
    found = {}
    for entry in entries:
        with understood(entry.key):
            found[parse_global_id(_name(entry)).hex()] = OutcomeEntry.decode(entry.value)
    return found


def hazards_of(hazards: Sequence[tuple[ParticipantName, str]]) -> list[pb.Hazard]:
    return [pb.Hazard(participant=name, ended=ended) for name, ended in hazards]


def _heuristic(global_id: GlobalId, outcome: OutcomeEntry) -> pb.ListDistributedResponse.Heuristic:
    return pb.ListDistributedResponse.Heuristic(
        transaction_id=global_id,
        age_ms=_age_ms(global_id),
        state=_DECIDED[outcome.verdict] if outcome.is_known else pb.DISTRIBUTED_STATE_NOT_KNOWN,
        heuristic=outcome.heuristic,
        hazards=hazards_of(outcome.hazards),
    )


def _logged(
    one: LoggedTransaction, owners: Collection[Incarnation], held: AnyTransaction | None
) -> pb.ListDistributedResponse.Transaction:
    entry = one.entry
    branches = (
        _branches(held.branches.all)
        if held is not None
        else [
            pb.ListDistributedResponse.Branch(
                participant=name, xid=encode_xid(branch_xid(one.global_id, number, entry.generation))
            )
            for number, name in enumerate(entry.participants)
        ]
    )
    return pb.ListDistributedResponse.Transaction(
        transaction_id=one.global_id,
        age_ms=_age_ms(one.global_id),
        generation=entry.generation,
        state=_DECIDED[one.decision],
        owner=entry.owner,
        is_owner_alive=entry.owner in owners,
        is_closed=entry.is_closed,
        phase=_phase(held),
        branches=branches,
    )


def _held(held: AnyTransaction) -> pb.ListDistributedResponse.Transaction:
    return pb.ListDistributedResponse.Transaction(
        transaction_id=held.global_id,
        age_ms=_age_ms(held.global_id),
        generation=held.generation,
        phase=_phase(held),
        branches=_branches(held.branches.all),
    )


def _phase(held: AnyTransaction | None) -> str:
    if held is None:
        return ""
    return held.phase.value if isinstance(held, Transaction) else "one phase"


def _branches(branches: list[Branch]) -> list[pb.ListDistributedResponse.Branch]:
    return [
        pb.ListDistributedResponse.Branch(
            participant=branch.participant,
            xid=encode_xid(branch.xid),
            vote=branch.vote.value if branch.vote else "",
            ended=branch.completion.value if branch.completion else "",
        )
        for branch in branches
    ]


def _age_ms(global_id: GlobalId) -> int:
    return max(0, time.time_ns() // 1_000_000 - begun_ms(global_id))
