"""Outcomes: how transactions ended, for as long as somebody may ask (DESIGN T5).

Law: what is recorded does not change; forgetting a heuristic end makes it an ordinary outcome with the same answer. Outcomes
recorded at or below the retention floor are gone, except heuristic ones, which an operator made and somebody must forget, and
those that the record which raised it names: somebody will ask for them. What is left of all others is the name horizon: a branch
of our coordinator that was begun behind it is none of them.
"""

from collections.abc import Collection, Iterator
from itertools import chain, takewhile
from typing import NamedTuple

import msgspec

from lockstep.core.branch_names import begun_ms_of
from lockstep.core.ids import LogIndex, TransactionKey
from lockstep.core.items import META_KEY, Changes, outcome_key
from lockstep.core.outcome_pages import PAGE_BITS, CapturedOutcomes, OutcomePages, page_of
from lockstep.core.taking_apart import emptied
from lockstep.core.transaction_states import HEURISTICS, TransactionState, Transition, after

NOTHING_TO_COMMIT = 128
"""Why a branch has committed by its vote alone: it had no operations. In snapshots, beside the numbers of `RollbackReason`; of
what an older version has recorded nobody knows it."""


class Outcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of a transaction as `SetState.outcome` answers it, and as it is kept when it has ended."""

    state: TransactionState
    reason: int = 0
    """A `RollbackReason` where it was rolled back, and the log still says why; or `NOTHING_TO_COMMIT`."""
    index: LogIndex = LogIndex(0)
    """The record that ended it."""
    xid: bytes = b""

    @property
    def had_nothing_to_commit(self) -> bool:
        """Whatever was decided for the other branches of its transaction, it did not end otherwise."""
        return self.state is TransactionState.COMMITTED and self.reason == NOTHING_TO_COMMIT


class BegunUpTo(NamedTuple):
    """Of outcomes that may be forgotten, of branches of our coordinator."""

    youngest_ms: int
    """When the youngest of their transactions was begun; 0: there are none."""
    ahead: dict[TransactionKey, LogIndex]
    """Those that have committed and were begun later than now, by a clock that is wrong; each with where it ended."""


XID_SHARDS = 256
RESTORED_IN_ONE = 500
"""Outcomes of a snapshot that are taken over in one step."""


class Outcomes:
    """Recorded outcomes of one resource set's state, which alone adds and forgets them."""

    __slots__ = ("_by_xid", "_changes", "_heuristic", "_late", "_ordinary", "floor", "name_horizon_ms")

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._ordinary = OutcomePages(changes.captures)
        self._heuristic: dict[TransactionKey, Outcome] = {}
        self._late: dict[TransactionKey, Outcome] = {}
        """Were heuristic and are ordinary now, or are kept below the floor; in no order, so few that forgetting looks at all."""
        self._by_xid: list[dict[bytes, TransactionKey]] = [{} for _ in range(XID_SHARDS)]
        """The branch of each xid that ended last; in shards, each of which is small."""
        self.floor = LogIndex(0)
        """The retention floor."""
        self.name_horizon_ms = 0
        """When the youngest transaction of our coordinator was begun of which a branch may be among what was forgotten."""

    def get(self, key: TransactionKey) -> Outcome | None:
        return self._ordinary.get(key) or self._heuristic.get(key) or self._late.get(key)

    def __contains__(self, key: TransactionKey) -> bool:
        page = self._ordinary.pages.get(key[0] >> PAGE_BITS)
        if page is not None and key in page:
            return True
        return (key in self._heuristic or key in self._late) if self._heuristic or self._late else False

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._heuristic) + len(self._late)

    def record(self, key: TransactionKey, outcome: Outcome) -> None:
        """Keep the outcome of a transaction that has none yet."""
        assert not (self._heuristic or self._late) or (
            key not in self._heuristic and key not in self._late
        ), f"transaction {key} ended twice"
        if outcome.xid or outcome.state in HEURISTICS:
            self._keep(key, outcome)
        else:
            self._ordinary.add(key, outcome)
        if self._changes.listener is not None:
            self._changed(outcome_key(key))

    def find_xid(self, xid: bytes) -> tuple[TransactionKey, Outcome] | None:
        """The last branch of this xid that ended and whose outcome is kept."""
        key = self._xids(xid).get(xid)
        outcome = self.get(key) if key is not None else None
        return (key, outcome) if key is not None and outcome is not None else None

    def heuristic(self) -> list[tuple[TransactionKey, Outcome]]:
        """Heuristically ended branches that nobody has forgotten, in no order."""
        return list(self._heuristic.items())

    def capture(self, applied: LogIndex) -> Iterator[list[tuple[TransactionKey, Outcome]]]:
        """All outcomes by key, as they are now, some at a time while the state goes on. `applied`: by the state."""
        captured = CapturedOutcomes(self._ordinary, self._changes.captures, applied)
        return _together(captured, sorted([*self._heuristic.items(), *self._late.items()]))

    @property
    def late_count(self) -> int:
        """Of those that each raising of the floor looks at, beside those that it forgets."""
        return len(self._late)

    def xids_up_to(self, floor: LogIndex) -> list[bytes]:
        """Of the branches that go, or are named to stay, if the floor is raised to this."""
        late = (outcome for outcome in self._late.values() if outcome.index <= floor)
        ended = chain(takewhile(lambda each: each.index <= floor, self._ordinary.first()), late)
        return [outcome.xid for outcome in ended if outcome.xid]

    def all(self) -> list[tuple[TransactionKey, Outcome]]:
        """All outcomes, by key."""
        return sorted([*self._ordinary.items(), *self._heuristic.items(), *self._late.items()])

    def next_floor(self, wanted: LogIndex, kept_max: int, batch_max: int) -> LogIndex:
        """The retention floor that leaves nothing at or below `wanted` and at most `kept_max` outcomes, or gets nearer to that.

        Raising it forgets about `batch_max` of them at most: those that one record ended go together.
        """
        excess = len(self._ordinary) - kept_max
        floor = self.floor
        for number, outcome in enumerate(self._ordinary.first(batch_max)):
            if outcome.index > wanted and number >= excess:
                return max(floor, wanted)
            floor = max(floor, outcome.index)
        return floor if len(self._ordinary) > batch_max else max(floor, wanted)

    def begun_up_to(self, floor: LogIndex, now_ms: int, ahead_ms: int) -> BegunUpTo:
        """When those were begun, by their names, that go if the floor is raised to this. What was begun later than now moves no
        horizon: whoever chooses such a name would have all others refused. `ahead_ms`: up to when it is a clock that is wrong.
        """
        youngest, ahead = 0, dict[TransactionKey, LogIndex]()
        is_any_ahead = False
        late = (outcome for outcome in self._late.values() if outcome.index <= floor)
        for outcome in chain(takewhile(lambda each: each.index <= floor, self._ordinary.first()), late):
            if outcome.xid and youngest < (begun_ms := begun_ms_of(outcome.xid)):
                if begun_ms <= now_ms:
                    youngest = begun_ms
                else:
                    is_any_ahead = True
        if is_any_ahead:
            ended = takewhile(lambda each: each[1].index <= floor, self._ordinary.first_items())
            for key, outcome in chain(ended, self._late.items()):
                is_meant = bool(outcome.xid) and now_ms < begun_ms_of(outcome.xid) <= ahead_ms
                if is_meant and outcome.state is TransactionState.COMMITTED and outcome.index <= floor:
                    ahead[key] = outcome.index
        return BegunUpTo(youngest, ahead)

    def forget(
        self, floor: LogIndex, name_horizon_ms: int = 0, kept: Collection[TransactionKey] = ()
    ) -> None:
        """Raise the retention floor; it never falls. `name_horizon_ms`: 0 leaves the horizon where it is. `kept`: stay until this
        is called again."""
        if floor <= self.floor:
            return
        self.floor = floor
        self.name_horizon_ms = name_horizon_ms or self.name_horizon_ms
        self._changed(META_KEY)
        stays = frozenset(kept)
        late = [(key, outcome) for key, outcome in self._late.items() if outcome.index <= floor]
        for key, _ in late:
            del self._late[key]
        for key, outcome in chain(self._ordinary.forget(floor), late):
            if key in stays:
                self._late[key] = outcome
                continue
            if outcome.xid:
                self._drop_xid(key, outcome)
            self._changed(outcome_key(key))

    def forget_heuristic(self, key: TransactionKey, name_horizon_ms: int = 0) -> None:
        """Make a heuristic end an ordinary outcome, gone at once if it lies at or below the floor; else nothing."""
        outcome = self._heuristic.pop(key, None)
        if outcome is None:
            return
        if outcome.index > self.floor:
            # Its place would be in the middle of the others.
            state = after(outcome.state, Transition.FORGET)
            self._late[key] = msgspec.structs.replace(outcome, state=state)
        else:
            self._drop_xid(key, outcome)
            self.name_horizon_ms = name_horizon_ms or self.name_horizon_ms
            self._changed(META_KEY)
        self._changed(outcome_key(key))

    def restore(
        self, outcomes: list[tuple[TransactionKey, Outcome]], floor: LogIndex, name_horizon_ms: int
    ) -> Iterator[int]:
        """Take over a snapshot's outcomes, in steps that say what they cost (`Pieces`)."""
        self.floor, self.name_horizon_ms = floor, name_horizon_ms
        parts: dict[int, list[tuple[TransactionKey, Outcome]]] = {}
        for begin in range(0, len(outcomes), RESTORED_IN_ONE):
            some = outcomes[begin : begin + RESTORED_IN_ONE]
            for pair in some:
                parts.setdefault(pair[1].index >> PAGE_BITS, []).append(pair)
            yield len(some)
        for number in sorted(parts):
            part = sorted(parts.pop(number), key=lambda pair: (pair[1].index, pair[0]))
            for key, outcome in part:
                self._keep(key, outcome)
            yield len(part)

    def take_apart(self) -> Iterator[int]:
        """Nobody has this state any more: leave nothing, in steps that say what they cost (`taking_apart`)."""
        yield from self._ordinary.take_apart()
        for others in (self._heuristic, self._late):
            yield from emptied(others)
        for xids in self._by_xid:
            yield from emptied(xids)

    def _keep(self, key: TransactionKey, outcome: Outcome) -> None:
        if outcome.state in HEURISTICS:
            self._heuristic[key] = outcome
        else:
            self._ordinary.add(key, outcome)
        if outcome.xid:
            self._xids(outcome.xid)[outcome.xid] = key

    def _xids(self, xid: bytes) -> dict[bytes, TransactionKey]:
        return self._by_xid[hash(xid) % XID_SHARDS]

    def _drop_xid(self, key: TransactionKey, outcome: Outcome) -> None:
        xids = self._xids(outcome.xid)
        if xids.get(outcome.xid) == key:
            del xids[outcome.xid]

    def _changed(self, key: bytes) -> None:
        if self._changes.listener is not None:
            self._changes.listener.items_changed((key,))


def _together(
    captured: CapturedOutcomes, others: list[tuple[TransactionKey, Outcome]]
) -> Iterator[list[tuple[TransactionKey, Outcome]]]:
    """Pages, and others by their key, in the order of keys."""
    place = 0
    while (number := captured.number) is not None:
        begin = place
        while place < len(others) and page_of(others[place][0]) <= number:
            place += 1
        page = captured.next()
        yield sorted([*others[begin:place], *page]) if place > begin else page
    yield others[place:]
