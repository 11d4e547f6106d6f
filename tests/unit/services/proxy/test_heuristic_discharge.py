"""A discharge whose commit was decided and undone by somebody else: the client hears no success."""

from lockstep.client.heuristics import HeuristicallyRolledBack, HeuristicHazard
from lockstep.core.errors import ErrorCode, LockstepError
from services.proxy.core.conditions import CONNECTION_FORCED, ROLLED_BACK
from tests.amqp import codec
from tests.amqp.raw_client import RawClient
from tests.amqp.stub_brokers import StubSession, StubTransaction
from tests.amqp.stub_proxy import serving


class UndoneTransaction(StubTransaction):
    def __init__(self, error: LockstepError) -> None:
        super().__init__()
        self._error = error

    async def commit(self) -> None:
        raise self._error


class UndoingSession(StubSession):
    """Its transactions end like that."""

    def __init__(self, error: LockstepError) -> None:
        super().__init__()
        self._error = error

    def transaction(self, *, timeout_ms: int = 0, wide_timeout_ms: int = 0) -> StubTransaction:
        return UndoneTransaction(self._error)


async def test_what_was_rolled_back_everywhere_is_a_rollback() -> None:
    session = UndoingSession(HeuristicallyRolledBack(ErrorCode.ROLLED_BACK, "by operators"))
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_coordinator()
        outcome = await client.discharge(await client.declare())
        assert outcome.name == "rejected"
        assert codec.named(outcome["error"])["condition"] == ROLLED_BACK


async def test_what_happened_in_a_part_ends_the_connection_as_what_is_in_doubt() -> None:
    """A rollback would be done again, and a part of it twice."""
    session = UndoingSession(HeuristicHazard(ErrorCode.ILLEGAL_STATE, "in a part"))
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_coordinator()
        name = await client.declare()
        body = codec.composite("discharge", txn_id=codec.binary(name), fail=False)
        client.transfer(codec.request(body), handle=0)
        assert await client.expect_end() == CONNECTION_FORCED
