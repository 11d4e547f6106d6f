"""Numbers of a later version, on every wire: whoever asked is answered, and never left waiting."""

import asyncio
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor
from msgspec.structs import replace

import lockstep
import lockstep.wire.v1 as wire
from lockstep.cli import cluster as cluster_command
from lockstep.cli import status as status_command
from lockstep.cli import tx as tx_command
from lockstep.cli.decided import Decided, heuristic_as_json, state_name
from lockstep.client.distributed_outcome import outcome_of
from lockstep.client.event_rows import events_in
from lockstep.client.outcome import OutcomeState
from lockstep.core.decision_log import OutcomeEntry, Verdict
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.server_messages import BranchDescription
from lockstep.core.wire_numbers import error_code, known
from lockstep.core.xa import BranchState, XaStatus
from lockstep.core.xid import Xid
from lockstep.runtime.session_codec import decode_response
from lockstep.wire.v1 import (
    cluster_pb2,
    coordinator_pb2,
    events_pb2,
    participant_pb2,
    session_pb2,
    transactions_pb2,
)
from services.broker.directory_service import Directory
from services.broker.events.groups import Groups
from services.broker.events.sources import change_of
from services.broker.transactions_codec import settle_command
from services.coordinator.core.votes import Completion, Vote
from services.coordinator.participant_ports import end_of, vote_of
from tests.unit.lockstep.client.fake_broker import FakeBroker
from tests.unit.services.primary.primary_rig import Rig

OF_LATER_VERSION: Any = 99
XID = Xid(1, b"g", b"b")
NAME = "lockstep.wire.v1."


# --- enums of the protos, by what reads them -------------------------------------------------------------------------------


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(Rejected) as raised:
        call()
    assert raised.value.code is ErrorCode.INVALID_ARGUMENT


def start_of_a_group() -> None:
    request = events_pb2.OpenSubscriptionRequest(group="g", start=OF_LATER_VERSION)
    refused(lambda: asyncio.run(Groups(cast(Any, None), cast(Any, None)).open(request)))


def kind_of_an_event() -> None:
    columns = events_pb2.EventBatch.Columns(kinds=[OF_LATER_VERSION], resources=[0])
    transaction = events_pb2.EventBatch.Transaction(index=7, events=1, events_here=1)
    resources = [events_pb2.EventBatch.Resource(name="q")]
    batch = events_pb2.EventBatch(events=columns, transactions=[transaction], resources=resources)
    assert [event.kind for event in events_in(batch)] == ["99"]


def name_in_the_directory() -> None:
    directory = Directory(*[cast(Any, None)] * 5)
    request = cluster_pb2.LocateRequest(kind=OF_LATER_VERSION, name="q")
    refused(lambda: asyncio.run(directory.locate(request)))


def role_of_a_replica() -> None:
    replica = cluster_pb2.Replica(role=OF_LATER_VERSION)
    assert status_command.ROLES.get(replica.role, "unknown") == "unknown"
    assert status_command._replica_as_json("B1", replica)["role"] == "unknown"


def verdict_of_a_rebuilt_map() -> None:
    one = cluster_pb2.RebuildMapResponse.RebuiltSet(name="east", verdict=OF_LATER_VERSION)
    shown = cluster_command._rebuilt_as_json(cluster_pb2.RebuildMapResponse(sets=[one]))
    assert shown["sets"][0]["verdict"] == "unknown"
    assert "cannot be rebuilt" in cluster_command._fate(one, is_written=True)


def state_of_a_distributed_transaction() -> None:
    answer = coordinator_pb2.CommitDistributedResponse(state=OF_LATER_VERSION)
    assert outcome_of("74" * 16, answer).state is OutcomeState.OF_LATER_VERSION
    assert state_name(OF_LATER_VERSION) == "99"


def state_of_a_branch() -> None:
    key = LogIndex(4), Epoch(1)
    branch = BranchDescription(XID.encode(), key, OF_LATER_VERSION, 0, 0, ())
    shown = tx_command._as_json("east", branch, Decided())
    assert shown["state"] == "unknown"


async def outcomes_that_a_client_is_told() -> None:
    async with FakeBroker("one") as broker, await lockstep.connect(broker.address) as client:
        broker.outcome = OF_LATER_VERSION
        assert (await client.get_outcome("one/4.1")).state is OutcomeState.OF_LATER_VERSION


async def statuses_that_a_client_is_told() -> None:
    async with FakeBroker("one") as broker, await lockstep.connect(broker.address) as client:
        broker.worlds["one"].value_of_verbs = OF_LATER_VERSION
        async with client.session() as session:
            manager = await session.resource_manager("one")
            for verb in (manager.prepare, manager.commit, manager.rollback, manager.forget):
                with pytest.raises(InDoubt):
                    await asyncio.wait_for(verb(XID), 30)


READERS: dict[str, Callable[[], object]] = {
    "OpenSubscriptionRequest.Start": start_of_a_group,
    "ChangeSubscriptionRequest.Change": lambda: refused(lambda: change_of(OF_LATER_VERSION)),
    "EventBatch.Kind": kind_of_an_event,
    "LocateRequest.Kind": name_in_the_directory,
    "Role": role_of_a_replica,
    "RebuildMapResponse.Verdict": verdict_of_a_rebuilt_map,
    "DistributedState": state_of_a_distributed_transaction,
    "SettleRequest.Disposition": lambda: refused(
        lambda: settle_command(
            transactions_pb2.SettleRequest(queue="q", positions=[], disposition=OF_LATER_VERSION)
        )
    ),
    "OutcomeState": lambda: asyncio.run(outcomes_that_a_client_is_told()),
    "XaStatus": lambda: asyncio.run(statuses_that_a_client_is_told()),
    # Told to callers of the unary calls; what the SDK recovers is a number of its own stream.
    "RecoverBranchesResponse.State": state_of_a_branch,
    "ParticipantVote": lambda: _is(
        vote_of(participant_pb2.ParticipantPrepareResponse(vote=OF_LATER_VERSION)), Vote.NO
    ),
    "ParticipantEnd": lambda: _is(
        end_of(participant_pb2.ParticipantCommitResponse(end=OF_LATER_VERSION)),
        Completion.HEURISTICALLY_MIXED,
    ),
}
"""Enum -> a reading of an unknown number of it."""


def _is(found: object, expected: object) -> None:
    assert found is expected


def enums() -> Iterator[EnumDescriptor]:
    """Of all protos."""
    for module in pkgutil.iter_modules(wire.__path__):
        if module.name.endswith("_pb2"):
            file: FileDescriptor = importlib.import_module(f"{wire.__name__}.{module.name}").DESCRIPTOR
            yield from file.enum_types_by_name.values()
            for message in file.message_types_by_name.values():
                yield from _within(message)


def _within(message: Descriptor) -> Iterator[EnumDescriptor]:
    yield from message.enum_types
    for nested in message.nested_types:
        yield from _within(nested)


def test_every_enum_of_the_wire_has_a_reader_that_is_tried() -> None:
    assert {enum.full_name.removeprefix(NAME) for enum in enums()} == set(READERS)


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_number_of_a_later_version_is_an_answer(name: str) -> None:
    READERS[name]()


# --- numbers that are no enums of the protos ---------------------------------------------------------------------------------


def test_an_error_of_a_later_version_is_an_error_in_every_message_of_a_primary() -> None:
    """What has a code is found in the messages themselves: a new one is tried, too."""
    tried = []
    for field in session_pb2.ServerMessage.DESCRIPTOR.oneofs_by_name["message"].fields:
        message = session_pb2.ServerMessage()
        inner = getattr(message, field.name)
        inner.SetInParent()
        if hasattr(inner, "code"):
            inner.code = OF_LATER_VERSION
        elif hasattr(inner, "codes"):
            inner.numbers.append(1)
            inner.codes.append(OF_LATER_VERSION)
        else:
            continue
        response = session_pb2.SessionResponse(resource_set="one", epoch=1, messages=[message])
        _, (decoded,) = decode_response(response.SerializeToString())
        code = decoded.answers[0].code if hasattr(decoded, "answers") else decoded.code  # type: ignore[union-attr]
        assert code is ErrorCode.ILLEGAL_STATE
        tried.append(field.name)
    assert {"answers", "attach_refused", "ended", "pushed_back", "consumer_closed"} <= set(tried)


async def test_a_state_of_a_later_version_that_a_verb_met_is_unknown_and_its_neighbours_are_answered() -> (
    None
):
    async with FakeBroker("one") as broker, await lockstep.connect(broker.address) as client:
        broker.directory["a"] = "one"
        world = broker.worlds["one"]
        async with client.session() as session:
            await session.publish("a", b"warm")
            world.value_of_verbs, world.code_of_verbs = OF_LATER_VERSION, ErrorCode.ILLEGAL_STATE
            manager = await session.resource_manager("one")
            asking = asyncio.ensure_future(manager.rollback(XID))
            publishing = asyncio.ensure_future(session.publish("a", b"in the same answer"))
            async with asyncio.timeout(30):
                await publishing
                with pytest.raises(Rejected) as raised:
                    await asking
            assert getattr(raised.value, "state", None) is BranchState.UNKNOWN


def test_an_answer_that_a_primary_of_a_later_version_recorded_is_given_again() -> None:
    """After a failover to a broker that is not upgraded yet."""
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1")
    session = rig.state.sessions.by_key[client.session]
    session.answers[2] = replace(session.answers[2], code=OF_LATER_VERSION)
    client.answers.clear()
    client.say(client.sent[2])
    client.resume(heard=1)
    assert client.answers[2].code is ErrorCode.ILLEGAL_STATE


def test_a_heuristic_of_a_later_version_is_one_that_somebody_has_to_look_at() -> None:
    entry = OutcomeEntry(Verdict.COMMIT, (), XaStatus.HEURMIX)
    later = entry.encode().replace(b'"heuristic":6', b'"heuristic":99')
    assert later != entry.encode()
    assert OutcomeEntry.decode(later) == OutcomeEntry(Verdict.COMMIT, (), XaStatus.HEURHAZ)
    shown = coordinator_pb2.ListDistributedResponse.Heuristic(heuristic=99, state=OF_LATER_VERSION)
    assert heuristic_as_json(shown)["state"] == "heuristic"


def test_numbers_that_are_known_stay_what_they_are() -> None:
    assert [error_code(int(code)) for code in ErrorCode] == list(ErrorCode)
    assert known(XaStatus, 6, None) is XaStatus.HEURMIX
