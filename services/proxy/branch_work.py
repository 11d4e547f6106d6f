"""A client's branch of a distributed transaction: what `declare` with a `global-id` begins (AMQP 1.0, 4.5.2).

Law: a successful discharge means prepared, and not committed: the transaction's coordinator ends the branch, nobody else does.
A branch is work in one resource set, that of its first operation.

    open --prepare--> prepared (the coordinator's from then on)          open --rollback, failed--> rolled back

`global-id` is the encoding of an xid (`lockstep/core/xid.py`): its format id (4 bytes, big-endian), the length of the global id
(1 byte), the global id, the branch id. Our coordinator gives one for each participant `set:<name>` that is enlisted.
"""

import contextlib
from collections.abc import Sequence

from lockstep.client.command_batches import CommandBatches, Confirmation
from lockstep.client.resource_manager import Branch, ResourceManager
from lockstep.client.session import Session
from lockstep.client.set_session import SetSession
from lockstep.client.transaction_state import TransactionState
from lockstep.core.commands import Disposition, OutgoingMessage
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid

_GOOD = (XaStatus.OK, XaStatus.RDONLY)


class BranchWork:
    """Lives from declare to discharge; the same verbs as a `Transaction`, of which `commit` is here a vote."""

    def __init__(self, session: Session, xid: Xid, timeout_ms: int) -> None:
        self.state = TransactionState.OPEN
        self._session = session
        self._xid = xid
        self._timeout_ms = timeout_ms
        self._place: tuple[SetSession, CommandBatches] | None = None
        self._manager: ResourceManager | None = None
        self._branch: Branch | None = None
        self._failure: Rejected | None = None

    def __repr__(self) -> str:
        return f"BranchWork({self._xid}, {self.state.value})"

    async def publish(
        self, routing_key: str, messages: Sequence[OutgoingMessage], *, exchange: str = ""
    ) -> Confirmation:
        """Publishes if the branch commits. Raises `Rejected`."""
        branch = await self._enter(await self._session.of_target(exchange, routing_key))
        return branch.publish(routing_key, messages, exchange=exchange)

    async def accept_deliveries(
        self,
        place: tuple[SetSession, CommandBatches],
        queue: str,
        epoch: Epoch,
        positions: Sequence[QueuePosition],
    ) -> Confirmation:
        """Takes messages from their queue if the branch commits. Raises `Rejected`."""
        branch = await self._enter(place)
        return branch.batches.settle(queue, epoch, positions, Disposition.ACCEPT, branch.key)

    async def commit(self) -> None:
        """Ends the work and votes: returns when the branch is prepared. Raises `Rejected` (it is rolled back), `InDoubt`."""
        if self._manager is None:
            # Nothing was done: there is no branch to prepare, and its coordinator will find none.
            self.state = TransactionState.COMMITTED
            return
        try:
            status = await self._manager.end_and_prepare(self._xid)
            if status not in _GOOD:
                raise Rejected(ErrorCode.ROLLED_BACK, f"it answered {status.name}")
        except Rejected as rejected:
            await self.rollback()
            raise Rejected(
                ErrorCode.ROLLED_BACK, f"branch {self._xid} was rolled back: {rejected.message}"
            ) from rejected
        self.state = TransactionState.COMMITTED

    async def rollback(self) -> None:
        """Ends the branch without effect."""
        self.state = TransactionState.ROLLED_BACK
        if self._manager is None:
            return
        # What fails has ended already, or is gone: without a prepare it does not commit.
        with contextlib.suppress(LockstepError):
            await self._manager.end(self._xid, fail=True)
        with contextlib.suppress(LockstepError):
            await self._manager.rollback(self._xid)

    # Inside

    async def _enter(self, place: tuple[SetSession, CommandBatches]) -> Branch:
        if self.state is not TransactionState.OPEN:
            raise Rejected(ErrorCode.TRANSACTION_FINISHED, f"branch {self._xid} is {self.state.value}")
        if self._branch is None:
            self._place = place
            self._manager = ResourceManager(*place)
            self._manager.select_soon(has_many_branches=True)
            self._branch = await self._manager.start(self._xid)
            if self._timeout_ms:
                await self._manager.set_timeout(self._xid, self._timeout_ms / 1000)
        elif self._place is not None and self._place[0] is not place[0]:
            raise Rejected(
                ErrorCode.OTHER_SET,
                f"branch {self._xid} works in set {self._place[0].set_name}, not in {place[0].set_name}",
            )
        return self._branch
