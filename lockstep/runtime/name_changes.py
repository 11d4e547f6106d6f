"""Name changes: performs what primaries want of the cluster's directory of names (DESIGN 2), set by set, in their order.

Law: a name is claimed and released only while the process that asks leads the set, by the set's lease key, compared in the same
transaction. Claims that come one behind the other go to etcd together, so that a burst of new names costs a round trip for each
`OPERATIONS_MAX` of them; a release waits for the claims before it, and they for it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

from lockstep.core.cluster_map import Keys
from lockstep.core.effects import ClaimName, ReleaseName
from lockstep.core.ids import SetName
from lockstep.core.inputs import AnyInput, NameClaimed, Verdict
from lockstep.runtime.etcd import (
    OPERATIONS_MAX,
    Absent,
    Delete,
    EtcdClient,
    EtcdInDoubt,
    EtcdRejected,
    Get,
    GetDone,
    OperationDone,
    Put,
    PutDone,
    Transact,
    TransactDone,
    ValueEquals,
    entry_as_read,
)
from lockstep.runtime.etcd_watcher import RETRY_PAUSE_SECONDS
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.process import spawn

_failures = LimitLog(logging.getLogger("lockstep.name_changes"))

NameEffect = ClaimName | ReleaseName


class _Queue:
    """What one set has asked for and was not done yet."""

    def __init__(self) -> None:
        self.waiting: deque[NameEffect] = deque()
        self.has_come = asyncio.Event()


class NameChanges:
    """Lives as long as the process. `perform` queues an effect; one task per set works through its queue."""

    def __init__(self, etcd: EtcdClient, keys: Keys, feed: Callable[[AnyInput], None]) -> None:
        self._etcd = etcd
        self._keys = keys
        self._feed = feed
        self._queues: dict[SetName, _Queue] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def perform(self, effect: NameEffect) -> None:
        """Queue a claim, which is answered by a `NameClaimed`, or a release, which nobody hears of."""
        queue = self._queues.get(effect.set_name)
        if queue is None:
            queue = self._queues[effect.set_name] = _Queue()
            self._tasks.append(spawn(self._work(queue), f"name changes of {effect.set_name}"))
        queue.waiting.append(effect)
        queue.has_come.set()

    async def close(self) -> None:
        """End all tasks; what was not sent is never sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self, queue: _Queue) -> None:
        waiting = queue.waiting
        while True:
            queue.has_come.clear()
            while waiting:
                claims = _claims_in_front(waiting)
                if claims:
                    for _ in claims:
                        waiting.popleft()
                    await self._claim(claims)
                else:
                    release = waiting.popleft()
                    assert isinstance(release, ReleaseName), "all else is a claim"
                    await self._release(release)
            await queue.has_come.wait()

    async def _claim(self, claims: Sequence[ClaimName]) -> None:
        """Claims of one process for its set, each name once."""
        first = claims[0]
        keys = [self._keys.directory(one.kind, one.name) for one in claims]
        owner = first.set_name.encode()
        # A claim that is executed late, when another leads, would give the set a name that nobody there knows of.
        is_leading = ValueEquals(self._keys.set_lease(first.set_name), first.incarnation.encode())
        wanted = [Transact([Absent(key)], [Put(key, owner)], [Get(key)]) for key in keys]
        owners = [SetName("")] * len(claims)
        reason = "this process does not lead the set now"
        try:
            result = await self._etcd.transact([is_leading], wanted, [Get(key) for key in keys])
            owners = [_owner(response, first.set_name) for response in result.responses]
        except (EtcdRejected, EtcdInDoubt) as error:
            reason = error.message
        if not all(owners):
            names = [one.name for one, found in zip(claims, owners, strict=True) if not found]
            text = f"set={first.set_name} names={len(names)} first={names[0]} {reason}"
            _failures.seldom("claim_in_doubt", text, level=logging.INFO)
            # The replica asks again at once.
            await asyncio.sleep(RETRY_PAUSE_SECONDS)
        for one, found in zip(claims, owners, strict=True):
            is_own = found == one.set_name
            verdict = Verdict.DONE if is_own else Verdict.FAILED if found else Verdict.IN_DOUBT
            self._feed(NameClaimed(one.set_name, one.request, verdict, found))

    async def _release(self, effect: ReleaseName) -> None:
        key, lease_key = (
            self._keys.directory(effect.kind, effect.name),
            self._keys.set_lease(effect.set_name),
        )
        while True:
            try:
                found = await self._etcd.get_many([key, lease_key])
                entry, lease = found.get(key), found.get(lease_key)
                if entry is None or entry.value != effect.set_name.encode():
                    return
                if lease is None or lease.value != effect.incarnation.encode():
                    return
                # A first attempt that is executed late finds another revision once the name was claimed again.
                is_leading = ValueEquals(lease_key, effect.incarnation.encode())
                await self._etcd.transact([*entry_as_read(key, entry), is_leading], [Delete(key)])
                return
            except (EtcdRejected, EtcdInDoubt):
                await asyncio.sleep(RETRY_PAUSE_SECONDS)


def _claims_in_front(waiting: "deque[NameEffect]") -> list[ClaimName]:
    """Claims before the first release that can go together: of one process, each name once."""
    names: set[tuple[str, str]] = set()
    found: list[ClaimName] = []
    for one in takewhile(lambda one: isinstance(one, ClaimName), waiting):
        assert isinstance(one, ClaimName)
        if (
            len(found) == OPERATIONS_MAX
            or (one.kind, one.name) in names
            or (found and one.incarnation != found[0].incarnation)
        ):
            break
        names.add((one.kind, one.name))
        found.append(one)
    return found


def _owner(response: OperationDone, own: SetName) -> SetName:
    """Who has a claimed name now; "": nobody, for who asked does not lead."""
    if isinstance(response, TransactDone):
        (response,) = response.responses
    if isinstance(response, PutDone):
        return own
    assert isinstance(response, GetDone), "a read answers a read"
    return SetName(response.entry.value.decode(errors="replace")) if response.entry else SetName("")
