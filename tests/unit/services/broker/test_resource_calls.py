"""Queues, exchanges and bindings by call: which set is asked for what, and what a caller hears where nobody can tell."""

from collections.abc import Awaitable
from typing import Any, cast

import pytest

from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.commands import (
    BindCommand,
    Command,
    DeclareExchangeCommand,
    DeclareQueueCommand,
    DeleteExchangeCommand,
    DeleteQueueCommand,
    QueueOptions,
)
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName
from lockstep.runtime.channels import Channels
from lockstep.runtime.cluster_view import ClusterView, SetView
from lockstep.runtime.driver import Driver
from lockstep.runtime.serving import ServingRights
from lockstep.wire.v1 import resources_pb2 as pb
from services.broker.caller_sessions import CallerSessions
from services.broker.directory_service import Directory
from services.broker.forwarding import Forwarding
from services.broker.name_lookups import NameLookups
from services.broker.own_disk import OwnDisk
from services.broker.resource_calls import ResourceCalls
from services.primary.sessions import SessionsService
from tests.unit.services.broker.test_caller_sessions import ScriptedSet, heard

SET, OTHER, B1, B2 = SetName("orders"), SetName("elsewhere"), BrokerId("b1"), BrokerId("b2")
QUEUE_OPTIONS = QueueOptions(
    is_durable=False,
    is_auto_delete=True,
    length_max=1,
    bytes_max=2,
    is_evicting=True,
    message_ttl_ms=3,
    dead_letter_exchange="",
    dead_letter_key="dead",
    delivery_count_max=4,
)
CALLS: dict[str, tuple[Any, Command]] = {
    "declare_queue": (
        pb.DeclareQueueRequest(
            name="q",
            is_transient=True,
            is_auto_delete=True,
            length_max=1,
            bytes_max=2,
            is_evicting=True,
            message_ttl_ms=3,
            dead_letter_exchange="",
            dead_letter_key="dead",
            delivery_count_max=4,
        ),
        DeclareQueueCommand(1, "q", QUEUE_OPTIONS),
    ),
    "delete_queue": (
        pb.DeleteQueueRequest(name="q", if_unused=True, if_empty=True),
        DeleteQueueCommand(1, "q", True, True),
    ),
    "declare_exchange": (
        pb.DeclareExchangeRequest(name="x", kind="topic", is_transient=True),
        DeclareExchangeCommand(1, "x", "topic", False),
    ),
    "delete_exchange": (
        pb.DeleteExchangeRequest(name="x", if_unused=True),
        DeleteExchangeCommand(1, "x", True),
    ),
    "bind": (
        pb.BindRequest(exchange="x", queue="q", key="k", arguments={"b": "2", "a": "1"}),
        BindCommand(1, "x", "q", "k", (("a", "1"), ("b", "2"))),
    ),
    "unbind": (
        pb.UnbindRequest(exchange="x", queue="q", key="k", arguments={"a": "1"}),
        BindCommand(1, "x", "q", "k", (("a", "1"),), True),
    ),
}


class NoNames:
    """An etcd in which no name is."""

    async def value(self, _: str) -> bytes | None:
        return None


class Rig:
    """The service of b1, where `primary` leads the set."""

    def __init__(self, primary: BrokerId = B1, *, is_alone: bool = True, knows_set: bool = True) -> None:
        self.set, driver, view = ScriptedSet(), Driver(), ClusterView(Keys("c"))
        driver.host(SET, self.set)
        holder = Incarnation("p")
        for name in (SET,) if is_alone else (SET, OTHER):
            entry = SetMap(name, Epoch(1), primary, holder, (), (), (B1, B2), 1, 1, holder)
            if knows_set:
                view.sets[name] = SetView(entry)
        self.directory = view.directory
        self.directory.update({("queue", "q"): SET, ("exchange", "x"): SET})
        sessions = SessionsService(driver, ServingRights(), lambda _: [])
        lookups = cast(NameLookups, NoNames())
        directory = Directory(cast(Any, None), lookups, view, Driver(), OwnDisk(Channels(), "", view))
        self.calls = ResourceCalls(CallerSessions(sessions), Forwarding(B1, view, Channels()), directory)

    def call(self, name: str, request: Any = None, /, **fields: object) -> Awaitable[Any]:
        asked = type(request or CALLS[name][0])()
        asked.CopyFrom(request or CALLS[name][0])
        for field, value in fields.items():
            setattr(asked, field, value)
        answered: Awaitable[Any] = getattr(self.calls, f"_{name}")(asked)
        return answered


@pytest.mark.parametrize("name", list(CALLS))
async def test_a_call_is_a_command_in_the_set_that_has_the_names(name: str) -> None:
    rig = Rig(is_alone=False)
    answer = await rig.call(name)
    assert (answer.resource_set, answer.epoch > 0, answer.commit_index > 0) == (SET, True, True)
    assert rig.set.commands == [CALLS[name][1]]


async def test_answers_have_what_the_set_answered() -> None:
    rig = Rig()
    assert (await rig.call("declare_queue")).queue == 1
    assert (await rig.call("delete_queue")).messages == 1
    assert (await rig.call("declare_exchange")).exchange == 1


async def test_a_queue_is_durable_and_has_no_dead_letter_target_unless_said() -> None:
    rig = Rig()
    await rig.call("declare_queue", pb.DeclareQueueRequest(name="q"))
    assert rig.set.commands == [DeclareQueueCommand(1, "q", QueueOptions())]


async def test_a_dead_letter_key_alone_is_no_target_left_out() -> None:
    rig = Rig()
    await rig.call("declare_queue", pb.DeclareQueueRequest(name="q", dead_letter_key="dead"))
    assert rig.set.commands == [DeclareQueueCommand(1, "q", QueueOptions(dead_letter_key="dead"))]


async def test_something_new_goes_to_the_set_that_is_named_or_is_the_only_one() -> None:
    new = pb.DeclareQueueRequest(name="new")
    assert (await Rig().call("declare_queue", new)).resource_set == SET
    several = Rig(is_alone=False)
    assert (await several.call("declare_queue", new, resource_set=SET)).resource_set == SET
    with pytest.raises(LockstepError) as raised:
        await several.call("declare_queue", new)
    assert raised.value.code is ErrorCode.UNKNOWN_SET


async def test_what_is_not_there_is_not_found() -> None:
    rig = Rig()
    for name in ("delete_queue", "delete_exchange"):
        assert await heard(rig.call(name, name="nowhere")) == (Rejected, ErrorCode.NOT_FOUND)
    for name in ("bind", "unbind"):
        assert await heard(rig.call(name, exchange="nowhere")) == (Rejected, ErrorCode.NOT_FOUND)
        assert await heard(rig.call(name, queue="nowhere")) == (Rejected, ErrorCode.NOT_FOUND)


@pytest.mark.parametrize("name", ["bind", "unbind"])
async def test_a_binding_is_within_one_set(name: str) -> None:
    rig = Rig(is_alone=False)
    rig.directory["exchange", "x"] = OTHER
    assert await heard(rig.call(name)) == (Rejected, ErrorCode.OTHER_SET)


async def test_what_is_no_name_is_not_looked_for() -> None:
    for name in ("", "a\nb", "n" * 256):
        assert await heard(Rig().call("declare_queue", name=name)) == (Rejected, ErrorCode.INVALID_ARGUMENT)


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize(
    ("primary", "is_forwarded", "code"),
    [(BrokerId(""), False, ErrorCode.UNAVAILABLE), (B2, True, ErrorCode.NOT_PRIMARY)],
)
async def test_calls_are_in_doubt_where_nobody_can_say_what_became_of_an_earlier_one(
    name: str, primary: BrokerId, is_forwarded: bool, code: ErrorCode
) -> None:
    assert await heard(Rig(primary).call(name, is_forwarded=is_forwarded)) == (InDoubt, code)


@pytest.mark.parametrize("name", list(CALLS))
async def test_calls_are_in_doubt_at_a_broker_that_has_not_heard_of_the_set(name: str) -> None:
    assert await heard(Rig(knows_set=False).call(name, resource_set=SET)) == (InDoubt, ErrorCode.UNKNOWN_SET)
