"""Transactions and branches by call: what a caller hears of a set that is not led, or whose primary does not know him."""

from collections.abc import Awaitable, Iterator
from typing import Any, cast

import pytest

from lockstep.client import client
from lockstep.core.asides import Aside
from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.commands import CommitCommand, EndCommand, PublishCommand
from lockstep.core.deaths import Death, DeathReason
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.ids import BrokerId, Epoch, Incarnation, LogIndex, QueuePosition, SetName
from lockstep.core.pieces import at_once
from lockstep.core.requests import GetOutcome
from lockstep.core.server_messages import AnyServerMessage, DeliveredMessage, OutcomeAnswer, OutcomeState
from lockstep.runtime.channels import Channels
from lockstep.runtime.client_message_codec import COUNT_MAX
from lockstep.runtime.cluster_view import ClusterView, SetView
from lockstep.runtime.driver import Driver
from lockstep.runtime.serving import ServingRights
from lockstep.wire.v1 import coordinator_pb2
from lockstep.wire.v1 import resource_manager_pb2 as rm
from lockstep.wire.v1 import transactions_pb2 as pb
from services.broker.branch_calls import BranchCalls
from services.broker.caller_secrets import SECRET_BYTES
from services.broker.caller_sessions import CallerSessions
from services.broker.directory_service import Directory
from services.broker.forwarding import Forwarding
from services.broker.own_disk import OwnDisk
from services.broker.set_queries import SetQueries
from services.broker.transactions_codec import (
    accept_command,
    acquired_messages,
    publish_command,
    settle_command,
)
from services.broker.transactions_service import SESSIONS_SHOWN_MAX, TransactionsService
from services.primary.sessions import SessionsService
from tests.unit.services.broker.test_caller_sessions import ScriptedSet, heard

SET, B1, B2 = SetName("orders"), BrokerId("b1"), BrokerId("b2")
NAME = "orders/7.1"
XID = coordinator_pb2.BranchXid(format_id=7, global_id=b"global", branch_id=b"one")
MESSAGE = pb.PublishRequest.OutgoingMessage()
SETTLE = pb.SettleRequest(
    session_id="mine",
    queue="q",
    delivery_epoch=1,
    positions=[1],
    disposition=pb.SettleRequest.DISPOSITION_ACCEPT,
)
REPEATED: dict[str, Any] = {
    "publish": pb.PublishRequest(transaction_id=NAME, sequence=1, messages=[MESSAGE]),
    "accept": pb.AcceptRequest(transaction_id=NAME, sequence=1, queue="q", positions=[1]),
    "settle": SETTLE,
    "commit": pb.CommitRequest(transaction_id=NAME),
    "rollback": pb.RollbackRequest(transaction_id=NAME),
    "end_session": pb.EndSessionRequest(session_id="mine"),
}
"""Calls of the Transactions service that may be the second ones."""
VERBS: dict[str, Any] = {
    "end": rm.EndBranchRequest(xid=XID),
    "prepare": rm.BranchRequest(xid=XID),
    "commit": rm.CommitBranchRequest(xid=XID),
    "rollback": rm.BranchRequest(xid=XID),
    "forget": rm.BranchRequest(xid=XID),
    "set_timeout": rm.SetBranchTimeoutRequest(xid=XID),
}
"""The same of the ResourceManager service."""
ONCE: dict[str, Any] = {
    "begin": pb.BeginRequest(),
    "acquire": pb.AcquireRequest(resource_set=SET, queue="q"),
}
UNLED = [(BrokerId(""), False, ErrorCode.UNAVAILABLE), (B2, True, ErrorCode.NOT_PRIMARY)]
"""(who leads, whether the call was forwarded, what is said)."""


class Services:
    """Of b1, where `primary` leads the set; "": nobody does."""

    def __init__(self, primary: BrokerId, *, knows_set: bool = True, driver: Driver | None = None) -> None:
        sessions = SessionsService(driver or Driver(), ServingRights(), lambda _: [])
        self.view = view = ClusterView(Keys("c"))
        holder = Incarnation("p")
        if knows_set:
            entry = SetMap(SET, Epoch(1), primary, holder, (), (), (B1, B2), 1, 1, holder)
            view.sets[SET] = SetView(entry)
        own_disk = OwnDisk(Channels(), "", view)
        directory = Directory(cast(Any, None), cast(Any, None), view, Driver(), own_disk)
        around = CallerSessions(sessions), SetQueries(sessions), Forwarding(B1, view, Channels()), directory
        self.transactions = TransactionsService(*around, lambda: view.generation)
        self.branches = BranchCalls(*around)

    def call(self, name: str, request: Any, *, is_branch: bool, is_forwarded: bool = False) -> Awaitable[Any]:
        asked = type(request)()
        asked.CopyFrom(request)
        asked.is_forwarded = is_forwarded
        if hasattr(asked, "resource_set") and not asked.resource_set:
            asked.resource_set = SET
        service = self.branches if is_branch else self.transactions
        answered: Awaitable[Any] = getattr(service, f"_{name}")(asked)
        return answered


@pytest.mark.parametrize("name", list(REPEATED))
@pytest.mark.parametrize(("primary", "is_forwarded", "code"), UNLED)
async def test_what_may_be_repeated_is_in_doubt_where_nobody_can_say_what_became_of_it(
    name: str, primary: BrokerId, is_forwarded: bool, code: ErrorCode
) -> None:
    """The first call may have done it, and its primary died with the answer."""
    call = Services(primary).call(name, REPEATED[name], is_branch=False, is_forwarded=is_forwarded)
    assert await heard(call) == (InDoubt, code)


@pytest.mark.parametrize("name", list(VERBS))
@pytest.mark.parametrize(("primary", "is_forwarded", "code"), UNLED)
async def test_verbs_of_branches_are_in_doubt_where_nobody_can_say_what_became_of_them(
    name: str, primary: BrokerId, is_forwarded: bool, code: ErrorCode
) -> None:
    call = Services(primary).call(name, VERBS[name], is_branch=True, is_forwarded=is_forwarded)
    assert await heard(call) == (InDoubt, code)


@pytest.mark.parametrize(("primary", "is_forwarded", "code"), UNLED)
@pytest.mark.parametrize("name", list(ONCE))
async def test_what_cannot_be_repeated_has_not_happened_where_nobody_leads(
    name: str, primary: BrokerId, is_forwarded: bool, code: ErrorCode
) -> None:
    call = Services(primary).call(name, ONCE[name], is_branch=False, is_forwarded=is_forwarded)
    assert await heard(call) == (Rejected, code)


@pytest.mark.parametrize("name", list(REPEATED) + list(VERBS))
async def test_what_may_be_repeated_is_in_doubt_at_a_broker_that_has_not_heard_of_the_set(name: str) -> None:
    """Its view may lag behind that of the broker that served the first call."""
    services = Services(B1, knows_set=False)
    for requests, is_branch in ((REPEATED, False), (VERBS, True)):
        if name in requests:
            call = services.call(name, requests[name], is_branch=is_branch)
            assert await heard(call) == (InDoubt, ErrorCode.UNKNOWN_SET)


async def test_a_settle_of_a_session_that_the_next_primary_does_not_know_is_in_doubt() -> None:
    """It may have been accepted before the failover."""
    assert await heard(Services(B1).call("settle", SETTLE, is_branch=False)) == (
        InDoubt,
        ErrorCode.UNKNOWN_SESSION,
    )


async def test_what_is_wrong_whoever_says_it_is_rejected() -> None:
    nothing = pb.CommitRequest(transaction_id="no name")
    call = Services(BrokerId("")).transactions._commit(nothing)
    assert await heard(call) == (Rejected, ErrorCode.INVALID_ARGUMENT)


# --- whose transactions are -----------------------------------------------------------------------------------------------


def with_set() -> tuple[TransactionsService, ScriptedSet]:
    """At the primary of a set that does whatever it is told."""
    scripted, driver = ScriptedSet(), Driver()
    driver.host(SET, scripted)
    services = Services(B1, driver=driver)
    return services.transactions, scripted


@pytest.mark.parametrize("guess", ["", "zeros", "shorter", "longer", "of another", "of another process"])
async def test_nothing_is_done_in_a_transaction_without_its_secret(guess: str) -> None:
    """Names of transactions can be guessed: they are places in the log."""
    transactions, scripted = with_set()
    begun = await transactions._begin(pb.BeginRequest(resource_set=SET))
    assert len(begun.secret) == SECRET_BYTES
    other = await with_set()[0]._begin(pb.BeginRequest(resource_set=SET))
    assert other.transaction_id == begun.transaction_id
    secret = {
        "": b"",
        "zeros": bytes(SECRET_BYTES),
        "shorter": begun.secret[:-1],
        "longer": begun.secret + b"x",
        "of another": transactions._callers.secrets.secret_of(SET, (LogIndex(41), Epoch(3))),
        "of another process": other.secret,
    }[guess]
    before = len(scripted.commands)
    for name, request in REPEATED.items():
        if name in ("settle", "end_session"):
            continue
        asked = type(request)()
        asked.CopyFrom(request)
        asked.transaction_id, asked.secret = begun.transaction_id, secret
        assert await heard(getattr(transactions, f"_{name}")(asked)) == (Rejected, ErrorCode.UNAUTHORIZED)
    assert len(scripted.commands) == before
    own = pb.PublishRequest(
        transaction_id=begun.transaction_id, secret=begun.secret, sequence=1, messages=[MESSAGE]
    )
    await transactions._publish(own)
    await transactions._commit(
        pb.CommitRequest(transaction_id=begun.transaction_id, secret=begun.secret, operations=1)
    )
    assert [type(command) for command in scripted.commands[before:]] == [PublishCommand, CommitCommand]


async def test_a_secret_holds_for_as_long_as_its_process() -> None:
    """What is forgotten here may be open in its set for a while: its caller may still fence it."""
    transactions, _ = with_set()
    begun = await transactions._begin(pb.BeginRequest(resource_set=SET))
    key = LogIndex(40), Epoch(3)
    commit = pb.CommitRequest(transaction_id=begun.transaction_id, secret=begun.secret)
    await transactions._commit(commit)
    assert transactions._callers.find(SET, key) is None
    assert transactions._callers.secrets.is_secret_of(SET, key, begun.secret)


async def test_only_its_caller_says_that_all_of_a_branch_has_come() -> None:
    """Its xid is told to everybody who asks for branches."""
    scripted, driver = ScriptedSet(), Driver()
    driver.host(SET, scripted)
    branches = Services(B1, driver=driver).branches
    started = await branches._start(rm.StartBranchRequest(resource_set=SET, xid=XID))
    before = len(scripted.commands)
    for guess in (b"", bytes(SECRET_BYTES), started.secret[:-1], started.secret + b"x"):
        guessed = rm.EndBranchRequest(resource_set=SET, xid=XID, operations=1, secret=guess)
        assert await heard(branches._end(guessed)) == (Rejected, ErrorCode.UNAUTHORIZED)
    assert len(scripted.commands) == before
    for _ in range(2):
        await branches._end(rm.EndBranchRequest(resource_set=SET, xid=XID, secret=started.secret))
    assert [type(command) for command in scripted.commands[before:]] == [EndCommand]


async def test_whoever_has_not_heard_of_its_start_may_have_a_branch_rolled_back() -> None:
    scripted, driver = ScriptedSet(), Driver()
    driver.host(SET, scripted)
    branches = Services(B1, driver=driver).branches
    await branches._start(rm.StartBranchRequest(resource_set=SET, xid=XID))
    await branches._end(rm.EndBranchRequest(resource_set=SET, xid=XID, is_failed=True))
    (ended,) = [command for command in scripted.commands if isinstance(command, EndCommand)]
    assert ended.is_failed


async def test_who_shows_more_sessions_than_may_be_is_refused() -> None:
    request = pb.GetOutcomeRequest(
        transaction_id=NAME, fence=True, session_ids=["x"] * (SESSIONS_SHOWN_MAX + 1)
    )
    call = with_set()[0]._get_outcome(request)
    assert await heard(call) == (Rejected, ErrorCode.INVALID_ARGUMENT)


async def test_an_outcome_says_in_which_history_of_the_cluster_it_is_told() -> None:
    driver = Driver()
    driver.host(SET, Ended(OutcomeState.ROLLED_BACK))
    services = Services(B1, driver=driver)
    services.view.generation = "12345678-and-so-on"
    told = await services.transactions._get_outcome(pb.GetOutcomeRequest(transaction_id=NAME))
    assert (told.state, told.generation) == (pb.OUTCOME_STATE_ROLLED_BACK, "12345678-and-so-on")


def test_a_client_shows_no_more_sessions_than_brokers_take() -> None:
    assert client.SESSIONS_SHOWN_MAX <= SESSIONS_SHOWN_MAX


class Ended(ScriptedSet):
    """Its transactions have ended since."""

    def __init__(self, state: int) -> None:
        super().__init__()
        self._state = state

    def _answers(self, message: object) -> Iterator[AnyServerMessage]:
        if isinstance(message, GetOutcome):
            head = Epoch(3), LogIndex(90)
            yield OutcomeAnswer(*head, message.request, message.transaction, self._state, 0)
        else:
            yield from super()._answers(message)


@pytest.mark.parametrize("name", ["commit", "rollback", "publish", "accept"])
async def test_what_is_repeated_when_its_outcome_was_forgotten_is_in_doubt(name: str) -> None:
    """The first call may have done it: nobody can say any more."""
    driver = Driver()
    driver.host(SET, Ended(OutcomeState.EXPIRED))
    call = Services(B1, driver=driver).call(name, REPEATED[name], is_branch=False)
    assert await heard(call) == (InDoubt, ErrorCode.EXPIRED)


@pytest.mark.parametrize("count", [COUNT_MAX, COUNT_MAX + 1])
def test_a_call_names_no_more_than_a_step_takes(count: int) -> None:
    key = LogIndex(1), Epoch(1)
    for make in (
        lambda: at_once(publish_command(pb.PublishRequest(sequence=1, messages=[MESSAGE] * count), key)),
        lambda: accept_command(pb.AcceptRequest(sequence=1, positions=range(count)), key),
        lambda: settle_command(pb.SettleRequest(disposition=SETTLE.disposition, positions=range(count))),
    ):
        if count <= COUNT_MAX:
            make()
            continue
        with pytest.raises(Rejected) as refused:
            make()
        assert refused.value.code is ErrorCode.TOO_LARGE


@pytest.mark.parametrize("name", ["publish", "accept"])
@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (OutcomeState.COMMITTED, (InDoubt, ErrorCode.TRANSACTION_FINISHED)),
        (OutcomeState.HEURISTICALLY_COMMITTED, (InDoubt, ErrorCode.TRANSACTION_FINISHED)),
        (OutcomeState.PREPARED, (InDoubt, ErrorCode.ILLEGAL_STATE)),
        (OutcomeState.ROLLED_BACK, (Rejected, ErrorCode.ROLLED_BACK)),
    ],
)
async def test_an_operation_that_is_repeated_when_its_transaction_has_committed_is_in_doubt(
    name: str, state: int, expected: tuple[type[LockstepError], ErrorCode]
) -> None:
    """The first call may have added it. What was rolled back has nothing of it."""
    driver = Driver()
    driver.host(SET, Ended(state))
    call = Services(B1, driver=driver).call(name, REPEATED[name], is_branch=False)
    assert await heard(call) == expected


def test_an_acquired_message_has_what_was_said_of_it_beside_what_was_sent() -> None:
    death = Death("q", DeathReason.EXPIRED, 2, 3, 4)
    said = Aside((death,), b"\xa3\x01a\x41", 9)
    plain, other = acquired_messages(
        DeliveredMessage(QueuePosition(7), b"p", b"b", 1, 5, True, aside) for aside in (None, said)
    )
    assert not (plain.deaths or plain.annotations or plain.HasField("priority"))
    assert (other.annotations, other.priority) == (said.annotations, 9)
    (found,) = other.deaths
    assert Death(found.queue, found.reason, found.count, found.first_ms, found.last_ms) == death
    for message in (plain, other):
        assert (message.position, message.properties, message.body) == (7, b"p", b"b")
        assert (message.delivery_count, message.expires_ms, message.is_durable) == (1, 5, True)
