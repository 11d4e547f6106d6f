"""Which containers are connected as the only connection of their name, in the whole cluster (JMS client ids).

Law: a name is a queue of this worker's session, which the brokers delete with the session: a proxy that died gives its names
back.
"""

import asyncio
from collections.abc import Callable

from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.runtime.limit_log import LimitLog
from services.proxy.core.addresses import container_claim
from services.proxy.nodes import Nodes

PAUSE_SECONDS = 0.2
"""Between two tries while another proxy's claim may be about to end."""


class Containers:
    """Lives as long as its worker. Whoever claims is known by his own object."""

    def __init__(
        self,
        nodes: Nodes,
        wait_seconds: float,
        keep: Callable[["asyncio.Task[None]"], None],
        log: LimitLog,
    ) -> None:
        """`wait_seconds`: how long a name is waited for whose proxy may have died."""
        self._nodes = nodes
        self._wait_seconds = wait_seconds
        self._keep = keep
        self._log = log
        self._owners: dict[str, object | None] = {}
        """None: its end is being told to the cluster."""
        self._claiming: set[str] = set()
        """Names whose claim is not answered: what releases them tells the cluster behind that."""

    async def claim(self, name: str, owner: object) -> bool:
        """Whether the name is the owner's from now on. Raises `Rejected`, `InDoubt` when nobody can tell."""
        deadline = asyncio.get_running_loop().time() + self._wait_seconds
        while True:
            if name not in self._owners:
                self._owners[name] = owner
                self._claiming.add(name)
                is_refused = False
                try:
                    await self._nodes.declare_own_queue(container_claim(name))
                    return self._owners[name] is owner
                except Rejected as rejected:
                    is_refused = True
                    if rejected.code not in (ErrorCode.LOCKED, ErrorCode.ALREADY_EXISTS):
                        raise
                finally:
                    self._claiming.discard(name)
                    is_gone = self._owners[name] is not owner
                    if is_refused:
                        del self._owners[name]
                    elif is_gone:
                        self._tell_released(name)
                if is_gone:
                    return False
            elif self._owners[name] is not None:
                return False
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(PAUSE_SECONDS)

    def release(self, name: str, owner: object) -> None:
        """The owner is gone, if it was: the name is free when the cluster has heard of it."""
        if self._owners.get(name) is owner:
            self._owners[name] = None
            if name not in self._claiming:
                self._tell_released(name)

    def _tell_released(self, name: str) -> None:
        self._keep(asyncio.ensure_future(self._release(name)))

    async def _release(self, name: str) -> None:
        try:
            await self._nodes.delete_queue(container_claim(name))
        except LockstepError as error:
            self._log.seldom("container_not_released", f"container={name} error={error}")
        finally:
            del self._owners[name]
