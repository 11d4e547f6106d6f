"""A transaction that is traced, in a process whose environment switches traces on.

Law: tracing changes nothing of what its caller hears: whatever goes wrong with it is not raised.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from lockstep.client.directory import Directory
from lockstep.client.outcome import Outcome
from lockstep.client.transaction import SessionPort, Transaction
from lockstep.client.transaction_state import TransactionState
from lockstep.core.errors import LockstepError
from lockstep.core.ids import parse_transaction_id
from lockstep.runtime.tracing import Span, Trace, now_ns, trace_of, trace_of_distributed
from lockstep.wire.v1 import cluster_pb2 as pb

if TYPE_CHECKING:
    from lockstep.runtime.tracing_sdk import Tracing

CALL_SECONDS = 1.0
"""For asking a broker which generation of the cluster this is."""


class Generations:
    """Which generation of the cluster an epoch of a resource set is of; lives as long as its session."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._known: tuple[int, str] = (0, "")

    async def of(self, epoch: int) -> str:
        """A new generation is a new epoch, too. Raises `LockstepError` when no broker answers."""
        if self._known[0] != epoch:
            request = pb.GetClusterStatusRequest()
            response = await self._directory.ask(
                lambda stub: stub.GetStatus(request, timeout=CALL_SECONDS), CALL_SECONDS, is_quick=True
            )
            self._known = epoch, response.generation
        return self._known[1]


class TracedTransaction(Transaction):
    """As a transaction; its span is the one that all others of its trace are below."""

    def __init__(
        self,
        session: SessionPort,
        ask: Callable[[str], Awaitable[Outcome]],
        timeout_ms: int,
        wide_timeout_ms: int,
        tracing: "Tracing",
        generations: Generations,
    ) -> None:
        super().__init__(session, ask, timeout_ms, wide_timeout_ms)
        self._tracing = tracing
        self._generations = generations
        self._begun_ns = now_ns()
        self._around = tracing.current()
        self._is_recorded = False

    async def commit(self) -> None:
        try:
            await super().commit()
        finally:
            await self._record()

    async def rollback(self) -> None:
        try:
            await super().rollback()
        finally:
            await self._record()

    async def _record(self) -> None:
        name = self.id
        if name is None or self._is_recorded:
            return
        self._is_recorded = True
        try:
            trace, attributes = await self._named(name)
        except LockstepError:
            return
        attributes |= {"lockstep.transaction": name, "lockstep.outcome": self.state.name.lower()}
        is_error = self.state is not TransactionState.COMMITTED
        span = Span("transaction", self._begun_ns, attributes, is_error=is_error, is_root=True)
        self._tracing.record(trace, span, self._around)

    async def _named(self, name: str) -> tuple[Trace, dict[str, str | int]]:
        if "/" not in name:
            return trace_of_distributed(name), {}
        set_name, (index, epoch) = parse_transaction_id(name)
        attributes: dict[str, str | int] = {
            "lockstep.set": set_name,
            "lockstep.index": index,
            "lockstep.epoch": epoch,
        }
        return trace_of(await self._generations.of(epoch), name), attributes
