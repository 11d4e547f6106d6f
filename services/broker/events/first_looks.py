"""What new groups have seen of the logs behind their floors, on their way to where they begin: a log may be longer than a call.

Law: what was seen is kept from call to call, for it is committed and does not change. It is dropped when its group has begun,
was opened behind other floors, or is not asked for any more.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping

from lockstep.core.branch_names import GlobalId
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.server_messages import BranchEnd
from services.broker.core.events.first_cut import BranchStands
from services.broker.core.events.planning import JointCommit, LogView, Offset
from services.broker.events.sources import EventSources

KEPT_SECONDS = 60.0
"""Behind the last call: longer than callers need to ask again."""
LOOKS_MAX = 16
"""Groups that are being opened at once here; of more the oldest begins anew."""
_LOST = frozenset((ErrorCode.WRONG_EPOCH, ErrorCode.OUT_OF_RANGE))
"""What was looked at is not what the log has."""


class StillLooking(Exception):
    """The caller asks again."""


class FirstLook:
    """Of one group; from its first call to its beginning, each call after the other."""

    def __init__(self) -> None:
        self.commits: dict[GlobalId, dict[SetName, list[JointCommit]]] = {}
        """Behind the floors, as far as was looked."""
        self.first_whole = 0.0
        """When the logs had been looked at to their ends for the first time, in monotonic seconds."""
        self.kept_until = 0.0
        """While no call uses it, in monotonic seconds."""
        self._floors: dict[SetName, Offset] = {}
        self._ends: dict[SetName, Offset] = {}
        self._xids: dict[GlobalId, bytes] = {}
        self._incomplete: set[GlobalId] = set()
        """Transactions of which it is not known that all of their branches were seen."""
        self._taking: asyncio.Future[None] | None = None
        """A thread that takes what was described; where a call is cut off meanwhile, the next one waits for it."""

    async def go_on(
        self,
        sources: EventSources,
        floors: Mapping[SetName, Offset],
        committed: Mapping[SetName, LogIndex],
        until: float,
    ) -> dict[SetName, LogIndex]:
        """Looks at each log up to its end, which is behind what is `committed`; returns how far that is. Raises `StillLooking`
        when it is not done by `until`, in monotonic seconds, and what brokers say.
        """
        await self._taken()
        if any(floors.get(name) != floor for name, floor in self._floors.items()):
            self._forget()
        self._floors = dict(floors)
        for name, floor in floors.items():
            offset, is_end = self._ends.get(name, floor), False
            while not is_end:
                if time.monotonic() >= until:
                    raise StillLooking
                try:
                    log = await sources.log_of(name, offset, 0, committed[name])
                except Rejected as error:
                    if error.code in _LOST:
                        self._forget()
                    raise
                self._taking = asyncio.ensure_future(asyncio.to_thread(self._take, name, log))
                await self._taken()
                offset, is_end = log.end, log.is_end
        self.first_whole = self.first_whole or time.monotonic()
        return {name: self._ends[name].index for name in floors}

    def to_ask(
        self, prepared: Mapping[GlobalId, bytes]
    ) -> tuple[dict[GlobalId, dict[SetName, BranchStands]], dict[GlobalId, bytes]]:
        """Transactions whose commits in all of their sets were seen, and need not be asked for; and the xids of all others."""
        asked = {global_id: self._xids[global_id] for global_id in self._incomplete} | dict(prepared)
        seen = BranchStands(BranchEnd(), Epoch(0))
        known = {
            global_id: dict.fromkeys(by_set, seen)
            for global_id, by_set in self.commits.items()
            if global_id not in asked
        }
        return known, asked

    async def _taken(self) -> None:
        """Returns when what was described last is taken."""
        taking = self._taking
        if taking is None:
            return
        try:
            await asyncio.shield(taking)
        except Exception:
            self._forget()
            raise
        finally:
            if taking.done():
                self._taking = None

    def _take(self, name: SetName, log: LogView) -> None:
        for joint in log.joint_commits:
            by_set = self.commits.setdefault(joint.global_id, {})
            by_set.setdefault(name, []).append(joint)
            named = joint.resource_sets
            if named and all(len(by_set.get(SetName(one), ())) >= named.count(one) for one in named):
                self._incomplete.discard(joint.global_id)
                self._xids.pop(joint.global_id, None)
            else:
                self._incomplete.add(joint.global_id)
                self._xids[joint.global_id] = joint.xid
        self._ends[name] = log.end

    def _forget(self) -> None:
        for kept in (self.commits, self._ends, self._xids, self._incomplete):
            kept.clear()
        self.first_whole = 0.0


class FirstLooks:
    """Lives as long as the process."""

    def __init__(self) -> None:
        self._looks: dict[str, FirstLook] = {}

    @contextlib.contextmanager
    def of(self, group: str) -> Iterator[FirstLook]:
        """That of a group, for one call alone: another one at once has its own. It is kept unless the call has an answer."""
        look = self._looks.pop(group, None) or FirstLook()
        try:
            yield look
        except BaseException:
            self._looks[group] = look
            if len(self._looks) > LOOKS_MAX:
                del self._looks[next(iter(self._looks))]
            look.kept_until = time.monotonic() + KEPT_SECONDS
            asyncio.get_running_loop().call_later(KEPT_SECONDS + 1, self._drop_old, group)
            raise

    def _drop_old(self, group: str) -> None:
        look = self._looks.get(group)
        if look is not None and time.monotonic() >= look.kept_until:
            del self._looks[group]
