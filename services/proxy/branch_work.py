"""A client's branch of a distributed transaction: what `declare` with a `global-id` begins (AMQP 1.0, 4.5.2).

Law: a successful discharge means prepared, and not committed: the transaction's coordinator ends the branch, nobody else does.
So only what this work has begun, and nobody can have prepared, is ended by it: a branch whose start was refused is somebody
else's, prepared perhaps and decided. A branch is work in one resource set, that of its first operation; without one no set has
it, and it is not prepared.

    open --prepare--> prepared (the coordinator's from then on)
    open --rollback, failed, start refused, nothing done--> rolled back

`global-id` is the encoding of an xid (`lockstep/core/xid.py`): its format id (4 bytes, big-endian), the length of the global id
(1 byte), the global id, the branch id. Our coordinator gives one for each participant `set:<name>` that is enlisted.
"""

import contextlib
from collections.abc import Callable, Sequence

from lockstep.client.command_batches import CommandBatches, Confirmation
from lockstep.client.resource_manager import Branch, ResourceManager, XaError
from lockstep.client.session import Session
from lockstep.client.set_session import SetSession
from lockstep.client.transaction_state import TransactionState
from lockstep.core.commands import Disposition, OutgoingMessage
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.xa import BranchState, XaStatus
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
        self._begun: tuple[ResourceManager, Branch] | None = None
        """The set has said that this work began the branch."""
        self._refusal: Rejected | None = None
        """Why it did not, or cannot know: it is asked once, for an id that is used now may be free when it is asked again."""

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
        check: Callable[[], None],
    ) -> Confirmation:
        """Takes messages from their queue if the branch commits. Raises `Rejected`, and what `check` raises when the branch has
        begun: the session that holds them may have been lost meanwhile."""
        branch = await self._enter(place)
        check()
        return branch.batches.settle(queue, epoch, positions, Disposition.ACCEPT, branch.key)

    async def commit(self) -> None:
        """Ends the work and votes: returns when the branch is prepared, or committed. Raises `Rejected` (this work did not
        prepare it; with ROLLED_BACK it cannot commit), `InDoubt`."""
        begun = self._work()
        if begun is None:
            self.state = TransactionState.ROLLED_BACK
            raise self._rolled_back(self._why_none()) from self._refusal
        manager, _ = begun
        self.state = TransactionState.IN_DOUBT
        try:
            status = await manager.end_and_prepare(self._xid)
        except XaError as refused:
            if refused.verb == "prepare" and refused.state is BranchState.COMMITTED:
                # Its work has ended, and its coordinator was before us: it has asked for the vote by itself, and decided.
                self.state = TransactionState.COMMITTED
                return
            self.state = TransactionState.ROLLED_BACK
            if refused.verb == "prepare":
                # Its work has ended, and whoever else works in the branch may have it prepared: not ours to roll back.
                text = f"branch {self._xid} was not prepared: {refused.message}"
                raise Rejected(refused.code, text) from refused
            # The session did not work in it any more, so it was undone before.
            raise self._rolled_back(refused.message) from refused
        if status not in _GOOD:
            self.state = TransactionState.ROLLED_BACK
            # It can only be rolled back, whoever does it.
            with contextlib.suppress(LockstepError):
                await manager.rollback(self._xid)
            raise self._rolled_back(f"it answered {status.name}")
        self.state = TransactionState.COMMITTED

    async def rollback(self) -> None:
        """Ends without effect what this work began."""
        self.state = TransactionState.ROLLED_BACK
        begun = self._work()
        if begun is None:
            return
        manager, _ = begun
        # Only what its end has failed is rolled back: where that is refused, the branch is gone, and its id may be in use again.
        with contextlib.suppress(LockstepError):
            await manager.end(self._xid, fail=True)
            await manager.rollback(self._xid)

    # Inside

    async def _enter(self, place: tuple[SetSession, CommandBatches]) -> Branch:
        if self.state is not TransactionState.OPEN:
            raise Rejected(ErrorCode.TRANSACTION_FINISHED, f"branch {self._xid} is {self.state.value}")
        if self._refusal is not None:
            raise self._refusal
        if self._begun is None:
            return await self._begin(place)
        if self._place is not None and self._place[0] is not place[0]:
            raise Rejected(
                ErrorCode.OTHER_SET,
                f"branch {self._xid} works in set {self._place[0].set_name}, not in {place[0].set_name}",
            )
        return self._begun[1]

    async def _begin(self, place: tuple[SetSession, CommandBatches]) -> Branch:
        manager = ResourceManager(*place)
        manager.select_soon(has_many_branches=True)
        try:
            branch = await manager.start(self._xid)
        except LockstepError as error:
            self._refusal = Rejected(error.code, error.message, **error.details)
            raise
        self._place, self._begun = place, (manager, branch)
        if self._timeout_ms:
            await manager.set_timeout(self._xid, self._timeout_ms / 1000)
        return branch

    def _work(self) -> tuple[ResourceManager, Branch] | None:
        """What this work began and has not lost. A session that is over takes its branches with it, and those that a start in
        doubt began, too: the set ends them."""
        return self._begun if self._begun is not None and self._begun[0].works_in(self._begun[1]) else None

    def _why_none(self) -> str:
        if self._refusal is not None:
            return self._refusal.message
        if self._begun is None:
            return "nothing was done in it, so no set has it"
        return "its session or epoch is over"

    def _rolled_back(self, why: str) -> Rejected:
        return Rejected(ErrorCode.ROLLED_BACK, f"the work in branch {self._xid} was rolled back: {why}")
