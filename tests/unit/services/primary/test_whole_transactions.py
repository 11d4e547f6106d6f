"""Accepts that come with their commit are executed as a whole, and whatever is wrong with them as if they came one by one."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from lockstep.core.commands import (
    AnyCommand,
    CommitCommand,
    DeclareQueueCommand,
    Disposition,
    QueueOptions,
    SettleCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, TransactionKey
from lockstep.core.records import Dequeue
from lockstep.core.requests import Heartbeat
from lockstep.core.server_messages import PushedBack
from services.primary.core.client_hearing import ACCEPTS_MAX
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import Rig, publish

QUEUES = ("q", "r", "ring", "full")
_Spoken = tuple[list[tuple[int, ErrorCode, int]], dict[str, list[bytes]], list[str], list[int]]


class Scene:
    """A client that holds messages of two queues, and has the names of two transactions; another client has one message."""

    def __init__(self, settings: PrimarySettings | None = None) -> None:
        self.rig = Rig(settings)
        self.client = self.rig.client(outlives_hand_over=True)
        self.other = self.rig.client()
        self.client.declare("q")
        self.client.declare("r")
        self.client.declare("ring", length_max=6, is_evicting=True)
        self.client.declare("full", length_max=1)
        self.other.consume("q", credit=1)
        for queue in ("q", "r", "ring"):
            self.client.ok(publish(queue, *[b"%s%d" % (queue.encode(), number) for number in range(6)]))
        self.client.consume("q", credit=4)
        self.client.consume("r", credit=6)
        key = self.client.begin()
        committed = self.client.ok(CommitCommand(0, key, 0, begins=2))
        self.keys = [(LogIndex(committed - 2 + number), self.rig.core.epoch) for number in range(2)]

    def say(self, commands: Sequence[AnyCommand], is_together: bool) -> _Spoken:
        """What is answered to the commands, and what there is when all of them are done."""
        first = self.client.number + 1
        numbered = numbered_from(first, commands)
        self.client.number += len(numbered)
        if is_together:
            self.client.say(*numbered)
        else:
            for command in numbered:
                self.client.say(command)
        answers = [self.client.answers[command.number] for command in numbered]
        said = [(one.number, one.code, one.value) for one in answers]
        self.rig.check_log()
        queues = self.rig.state.queues.by_name
        held = [self.rig.core.context.dispatch.held_count(queues[name].id) for name in QUEUES]
        self.client.resume(heard=self.client.number)
        holders = sorted(f"{queue} {position}" for queue, position in self.client.in_hand)
        return said, {name: self.rig.bodies(name) for name in QUEUES}, holders, held

    @property
    def were_opened(self) -> bool:
        """Whether the log was told of a transaction before its operations."""
        return any(isinstance(record, Dequeue) and not record.positions for record in self.rig.records())


def numbered_from(first: int, commands: Sequence[AnyCommand]) -> list[AnyCommand]:
    return [msgspec.structs.replace(command, number=number) for number, command in enumerate(commands, first)]


def accept(
    scene: Scene, queue: str = "q", count: int = 1, sequence: int = 1, first: int = 0, key: int = 0
) -> SettleCommand:
    positions = scene.client.positions(queue)[first : first + count]
    return SettleCommand(
        0, queue, scene.rig.core.epoch, positions, Disposition.ACCEPT, scene.keys[key], sequence
    )


def commit(
    scene: Scene, operations: int, *bodies: bytes, queue: str = "r", key: int = 0, begins: int = 0
) -> CommitCommand:
    name = scene.keys[key]
    last = publish(queue, *bodies, transaction=name, sequence=operations) if bodies else None
    return CommitCommand(0, name, operations, begins, last)


Make = Callable[[Scene], list[AnyCommand]]

IN_ORDER: dict[str, Make] = {
    "an accept and a publish": lambda s: [accept(s), commit(s, 2, b"new")],
    "many of each": lambda s: [accept(s, count=4), commit(s, 2, *[b"%d" % n for n in range(9)])],
    "accepts alone": lambda s: [accept(s, count=2), commit(s, 1)],
    "accepts of two queues": lambda s: [accept(s), accept(s, "r", 3, sequence=2), commit(s, 3, b"new")],
    "to where it came from": lambda s: [accept(s, count=2), commit(s, 2, b"new", queue="q")],
    "to a queue that evicts": lambda s: [accept(s), commit(s, 2, b"1", b"2", queue="ring")],
    "two transactions": lambda s: [
        accept(s), commit(s, 2, b"1"), accept(s, first=1, key=1), commit(s, 2, b"2", key=1),
    ],
}  # fmt: skip

ONE_BY_ONE: dict[str, Make] = {
    "the same queue twice": lambda s: [accept(s), accept(s, sequence=2, first=1), commit(s, 3, b"new")],
    "the same message twice": lambda s: [accept(s), accept(s, sequence=2), commit(s, 3, b"new")],
    "a message of nobody": lambda s: [
        msgspec.structs.replace(accept(s), positions=(QueuePosition(7),)), commit(s, 2, b"new"),
    ],
    "a message of another session": lambda s: [
        msgspec.structs.replace(accept(s), positions=s.other.positions("q")), commit(s, 2, b"new"),
    ],
    "of another epoch": lambda s: [
        msgspec.structs.replace(accept(s), delivery_epoch=Epoch(9)), commit(s, 2, b"new"),
    ],
    "another disposition": lambda s: [
        msgspec.structs.replace(accept(s), disposition=Disposition.RELEASE), commit(s, 2, b"new"),
    ],
    "no such queue": lambda s: [msgspec.structs.replace(accept(s), queue="none"), commit(s, 2, b"new")],
    "a publish to no queue": lambda s: [accept(s), commit(s, 2, b"new", queue="none")],
    "a publish to a full queue": lambda s: [accept(s), commit(s, 2, b"1", b"2", queue="full")],
    "an operation that lacks": lambda s: [accept(s, sequence=2), commit(s, 3, b"new")],
    "a number that is not the next": lambda s: [accept(s, sequence=2), commit(s, 2, b"new")],
    "numbers in another order": lambda s: [accept(s, sequence=2), accept(s, "r"), commit(s, 3, b"new")],
    "an accept of another transaction": lambda s: [
        accept(s), accept(s, "r", sequence=2, key=1), commit(s, 3, b"new"),
    ],
    "an operation too many": lambda s: [accept(s), commit(s, 3, b"new")],
    "fewer than came": lambda s: [accept(s), commit(s, 0)],
    "a publish of another transaction": lambda s: [
        accept(s), msgspec.structs.replace(commit(s, 2), last_publish=commit(s, 2, b"new", key=1).last_publish),
    ],
    "a commit of another transaction": lambda s: [accept(s), commit(s, 2, b"new", key=1), commit(s, 1)],
    "a transaction that has ended": lambda s: [
        commit(s, 1, b"1"), accept(s), commit(s, 2, b"new"),
    ],
    "one that did something before": lambda s: [
        publish("r", b"1", transaction=s.keys[0], sequence=1), accept(s, sequence=2), commit(s, 3, b"new"),
    ],
    "more accepts than are looked through": lambda s: [
        *[accept(s, "r", sequence=number) for number in range(1, ACCEPTS_MAX + 2)], commit(s, 1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("make", IN_ORDER.values(), ids=IN_ORDER)
def test_what_is_in_order_is_executed_as_a_whole_and_comes_to_the_same(make: Make) -> None:
    together, apart = Scene(), Scene()
    assert together.say(make(together), is_together=True) == apart.say(make(apart), is_together=False)
    assert apart.were_opened and not together.were_opened
    assert not together.rig.core.context.tx_queues.by_key


@pytest.mark.parametrize("make", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_whatever_else_comes_is_executed_one_by_one(make: Make) -> None:
    together, apart = Scene(), Scene()
    assert together.say(make(together), is_together=True) == apart.say(make(apart), is_together=False)
    assert together.rig.records() == apart.rig.records()


@pytest.mark.parametrize(
    ("limit", "largest"), [("transaction_operations_max", 4), ("transaction_places_max", 3)]
)
def test_a_transaction_that_is_too_large_is_refused(limit: str, largest: int) -> None:
    for most, code in ((largest, ErrorCode.NONE), (largest - 1, ErrorCode.TOO_LARGE)):
        scene = Scene(PrimarySettings(**{limit: most}))
        said = scene.say([accept(scene), commit(scene, 2, b"1", b"2", b"3")], True)[0]
        assert said[1][1] is code


def test_a_whole_one_begins_others_and_is_answered_again_as_it_was() -> None:
    scene = Scene()
    key = scene.keys[1]
    commands: list[AnyCommand] = [accept(scene, key=1), commit(scene, 2, b"new", key=1, begins=3)]
    again = numbered_from(scene.client.number + 1, commands)
    said = scene.say(commands, True)[0]
    names: list[TransactionKey] = [(LogIndex(said[1][2] - n), key[1]) for n in (3, 2, 1)]
    assert all(scene.rig.core.context.progress.is_name(name) for name in names)
    before = scene.rig.core.log_end
    scene.client.answers.clear()
    scene.client.say(*again)
    assert [(one.number, one.code, one.value) for one in scene.client.answers.values()] == said
    assert scene.rig.core.log_end == before


def test_one_that_comes_behind_a_gap_is_pushed_back_and_goes_on_when_it_comes_again() -> None:
    scene = Scene()
    commands: list[AnyCommand] = [accept(scene), commit(scene, 2, b"new")]
    number = scene.client.number + 1
    scene.client.say(*numbered_from(number + 1, commands))
    assert scene.client.heard_of(PushedBack)[-1].number == number
    scene.client.say(*numbered_from(number, commands))
    assert [scene.client.answers[number + n].code for n in range(2)] == [ErrorCode.NONE] * 2
    scene.client.number += 2
    assert scene.client.publish("r", b"more").code is ErrorCode.NONE
    scene.rig.check_log()


def test_what_is_said_between_its_parts_parts_it() -> None:
    scene = Scene()
    first, last = numbered_from(scene.client.number + 1, [accept(scene), commit(scene, 2, b"new")])
    scene.client.say(first, Heartbeat(), last)
    assert scene.client.answers[last.number].code is ErrorCode.NONE
    assert scene.were_opened
    scene.rig.check_log()


def test_one_behind_a_command_that_waits_for_a_name_waits_with_it() -> None:
    scene = Scene()
    scene.rig.holds_claims = True
    declare = DeclareQueueCommand(0, "another", QueueOptions())
    number = scene.client.number + 1
    scene.client.say(*numbered_from(number, [declare, accept(scene), commit(scene, 2, b"new")]))
    assert not {number, number + 1, number + 2} & scene.client.answers.keys()
    scene.rig.claimed()
    assert [scene.client.answers[number + n].code for n in range(3)] == [ErrorCode.NONE] * 3
    scene.rig.check_log()


def test_who_is_another_session_ends_nothing_of_it() -> None:
    scene = Scene()
    stranger, number = scene.other, scene.other.number + 1
    held = msgspec.structs.replace(accept(scene), positions=stranger.positions("q"))
    stranger.say(*numbered_from(number, [held, commit(scene, 2, b"new")]))
    assert [stranger.answers[number + n].code for n in range(2)] == [ErrorCode.LOCKED] * 2
    assert scene.say([accept(scene), commit(scene, 2, b"new")], True)[0][1][1] is ErrorCode.NONE
