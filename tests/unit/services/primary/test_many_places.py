"""Many messages of one publish that go to many queues, and are looked at one by one in each, take many short steps, on primaries
and on whoever follows them.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.apply_epochs import begin_epoch
from lockstep.core.clock import Now
from lockstep.core.commands import (
    AnyCommand,
    BindCommand,
    CommitCommand,
    Disposition,
    OutgoingMessage,
    PublishCommand,
    RollbackCommand,
    SettleCommand,
)
from lockstep.core.effects import AnyEffect
from lockstep.core.errors import ErrorCode
from lockstep.core.frames import Frame, decode_packed, decode_records, encode_frame
from lockstep.core.ids import BrokerId, Epoch, LogIndex, TransactionKey
from lockstep.core.inputs import AnyInput
from lockstep.core.invariants import check_invariants
from lockstep.core.log_copy import LogCopy
from lockstep.core.records import EpochBegins, Message, PackedPublish, Prepare, Publish
from lockstep.core.set_state import DECODED_AT_ONCE, SetState
from lockstep.core.state_hash import state_hash
from services.primary.core import publish_records, publishing
from services.primary.core.publish_records import ALIKE_PLACES_IN_ONE, PLACES_IN_ONE
from services.primary.core.publish_routes import find
from services.primary.core.selecting import COMPARED_IN_ALL
from services.primary.core.settings import PrimarySettings
from tests.counted_work import CountedCalls
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, take_turns
from tests.unit.services.primary.test_alone import SMALL, Longest
from tests.unit.services.primary.test_many_targets import say

QUEUES = 40
MANY = 6 * PLACES_IN_ONE // QUEUES
"""Messages: several times what is put into so many queues in one step."""
CALLS_IN_ONE = 48_000
"""Of functions, in one step."""
Messages = Sequence[OutgoingMessage]


def wired(client: RigClient, queues: int = QUEUES, *, is_mixed: bool = False, **options: object) -> None:
    """An exchange of headers that leads to many queues, to each of which goes what has any other header than its own."""
    client.exchange("all", kind="headers")
    for number in range(queues):
        client.declare(f"q{number}", is_durable=not is_mixed or number % 3 > 0, **options)
        others = tuple((f"h{other}", "1") for other in range(3) if other != number % 3)
        client.ok(BindCommand(0, "all", f"q{number}", "", (("x-match", "any"), ("all", "1"), *others)))
    client.rig.pass_time(50)


def prioritised(count: int) -> Messages:
    return tuple(
        OutgoingMessage(b"", b"%d" % each, headers=(("all", "1"),), priority=9) for each in range(count)
    )


def going_apart(count: int) -> Messages:
    """Each to two thirds of the queues."""
    return tuple(
        OutgoingMessage(b"", b"%d" % each, headers=((f"h{each % 3}", "1"),)) for each in range(count)
    )


def expiring(count: int) -> Messages:
    bodies = tuple(b"%d" % each for each in range(count))
    return AlikeMessages(bodies, ttl_ms=3_600_000, headers=(("all", "1"),))


def of_both_kinds(count: int) -> Messages:
    """Every other one is durable."""
    return tuple(
        OutgoingMessage(b"", b"%d" % each, each % 2 == 0, headers=(("all", "1"),), priority=each % 10)
        for each in range(count)
    )


KINDS = [prioritised, going_apart, expiring, of_both_kinds]


def publish(messages: Messages, key: TransactionKey | None = None) -> PublishCommand:
    return PublishCommand(0, "all", "k", messages, key, 1 if key is not None else 0)


def by_itself(client: RigClient, messages: Messages) -> list[int]:
    return said(client, publish(messages))


def with_its_commit(client: RigClient, messages: Messages) -> list[int]:
    key = client.begin()
    return said(client, CommitCommand(0, key, 1, last_publish=publish(messages, key)))


def before_its_commit(client: RigClient, messages: Messages) -> list[int]:
    key = client.begin()
    return said(client, publish(messages, key), CommitCommand(0, key, 1))


def rolled_back(client: RigClient, messages: Messages) -> list[int]:
    key = client.begin()
    return said(client, publish(messages, key), RollbackCommand(0, key))


def left_open(client: RigClient, messages: Messages) -> list[int]:
    return said(client, publish(messages, client.begin()))


WAYS = [by_itself, with_its_commit, before_its_commit, rolled_back, left_open]


def said(client: RigClient, *commands: AnyCommand) -> list[int]:
    numbers = say(client, *commands)
    take_turns(client.rig)
    return numbers


def calls_of(work: Callable[[], object]) -> int:
    with CountedCalls() as calls:
        work()
    return calls.total


def longest_of_who_follows(
    frames: Sequence[Frame], before: LogIndex, is_aborted: bool
) -> tuple[SetState, int]:
    """What somebody has who applies the frames behind an index, and the calls in the longest step of that."""
    copy = LogCopy(SetState(SET), LogIndex(0), 1 << 40)
    for frame in frames:
        copy.append(frame)
    copy.apply_to(before)
    longest = calls_of(lambda: copy.apply_at_once(copy.log_end, 1))
    works = [copy.apply_in_steps(copy.log_end)]
    if is_aborted:
        record = EpochBegins(None, Epoch(2), BrokerId("b"), False)
        works.append(begin_epoch(copy.state, LogIndex(copy.log_end + 1), record))
    totals = [0]
    with CountedCalls() as calls:
        for work in works:
            for _ in work:
                totals.append(calls.total)
            totals.append(calls.total)
    return copy.state, max(longest, *(later - earlier for earlier, later in pairwise(totals)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_step_looks_at_more_than_some_places(
    kind: Callable[[int], Messages], way: Callable[[RigClient, Messages], list[int]]
) -> None:
    rig, count, queues = Rig(SMALL), 400, 90
    client = rig.client()
    wired(client, queues, is_mixed=True)
    before = rig.core.context.writer.log.framed_end
    measured = Longest(rig)
    numbers = way(client, kind(count))
    assert measured.calls <= CALLS_IN_ONE
    assert [client.answers[number].code for number in numbers] == [ErrorCode.NONE] * len(numbers)
    is_there = way not in (rolled_back, left_open)
    to_first = [number for number in range(count) if kind is not going_apart or number % 3]
    assert rig.bodies("q0") == ([b"%d" % number for number in to_first] if is_there else [])
    rig.check_log()
    frames = list(rig.core.context.writer.log.frames_after(LogIndex(0)))
    state, calls = longest_of_who_follows(frames, before, is_aborted=way is left_open)
    assert calls <= CALLS_IN_ONE
    check_invariants(state)
    if way is not left_open:
        assert state_hash(state) == state_hash(rig.state)
    else:
        reserved = [queue.reserved_length for queue in state.queues.by_id.values()]
        assert len(state.contents) == 0 and not any(reserved)


def published(rig: Rig) -> list[PackedPublish]:
    """All records that publish, as backups have them."""
    frames = rig.core.context.writer.log.frames_after(LogIndex(0))
    return [
        record
        for frame in frames
        for _, record, _ in decode_packed(frame)
        if isinstance(record, PackedPublish)
    ]


def recorded(rig: Rig) -> list[tuple[Publish, bool]]:
    """The same with their messages, and whether each is durable."""
    frames = rig.core.context.writer.log.frames_after(LogIndex(0))
    found = [each for frame in frames for each in decode_records(frame)]
    return [(each.record, each.is_durable) for each in found if isinstance(each.record, Publish)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_record_puts_more_into_queues_than_is_done_in_one_step(
    rig: Rig, kind: Callable[[int], Messages]
) -> None:
    client = rig.client()
    wired(client, is_mixed=True)
    by_itself(client, kind(MANY))
    records = [record for record, _ in recorded(rig)]
    assert len(records) > 3
    for record in records:
        assert sum(len(message.queues) for message in record.messages) <= PLACES_IN_ONE
    for is_durable in (True, False):
        found = [record for record, kind_of in recorded(rig) if kind_of is is_durable]
        bodies = [message.body for record in found for message in record.messages]
        assert len(bodies) == len(set(bodies)) > 0, "each content is there once for each kind of queue"


def alike_by_headers(count: int) -> Messages:
    """Each has headers of its own, and they go to the same queues."""
    return tuple(
        OutgoingMessage(b"", b"%d" % each, headers=(("all", "1"), ("n", str(each)))) for each in range(count)
    )


def test_messages_that_go_to_the_same_queues_are_one_record_though_each_was_asked_for_by_itself(
    rig: Rig,
) -> None:
    client = rig.client()
    wired(client)
    by_itself(client, alike_by_headers(MANY))
    [record] = published(rig)
    assert record.alike is not None and len(record.alike.sizes) == MANY and len(record.alike.queues) == QUEUES
    assert rig.bodies("q7") == [b"%d" % number for number in range(MANY)]
    rig.check_log()


def test_messages_that_are_alike_are_one_record_with_their_commit(rig: Rig) -> None:
    client = rig.client()
    wired(client)
    measured = Longest(rig)
    bodies = (b"",) * MANY
    with_its_commit(client, AlikeMessages(bodies, headers=(("all", "1"),)))
    assert [type(record) for record in rig.records()[-2:]] == [Publish, Prepare]
    assert measured.calls < MANY * QUEUES / 4
    rig.check_log()


def test_names_of_queues_in_one_record_have_a_limit_however_alike_messages_are(rig: Rig) -> None:
    client = rig.client()
    wired(client)
    count = 10_000
    with_its_commit(client, AlikeMessages((b"",) * count, headers=(("all", "1"),)))
    found = [len(record.alike.sizes) for record in published(rig) if record.alike is not None]
    assert sum(found) == count and max(found) == ALIKE_PLACES_IN_ONE // QUEUES
    rig.check_log()


def test_what_differs_by_queue_is_made_in_a_step_of_its_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, kinds, made = rig.client(), 8, 0
    for number in range(kinds):
        client.declare(f"q{number}", message_ttl_ms=60_000 * (number + 1))
    client.exchange("all", *(f"q{number}" for number in range(kinds)))
    make = publish_records._messages

    def counted(*given: Any) -> list[Message]:
        nonlocal made
        made += 1
        return make(*given)

    monkeypatch.setattr(publish_records, "_messages", counted)
    context = rig.core.context
    command = PublishCommand(0, "all", "", AlikeMessages((b"",) * 1000))
    arriving = find(context, command)
    assert publishing.is_long(context, arriving)
    most = before = 0
    for _ in publishing._admit_in_steps(context, command, arriving):
        most, before = max(most, made - before), made
    assert made == kinds and most == 1


@pytest.mark.parametrize("way", [by_itself, before_its_commit])
def test_few_messages_with_an_end_are_begun_to_be_watched_in_one_step(
    way: Callable[[RigClient, Messages], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_one, queues, count = 80, 20, 48
    monkeypatch.setattr(publish_records, "PLACES_IN_ONE", in_one)
    monkeypatch.setattr(publishing, "PLACES_IN_ONE", in_one)
    rig = Rig(PrimarySettings(piece_cost=100))
    client = rig.client()
    wired(client, queues)
    most = before = 0

    def measured(given: AnyInput, now: Now) -> list[AnyEffect]:
        nonlocal most, before
        effects = handle(given, now)
        watched = len(rig.core.context.expiry._due)
        most, before = max(most, watched - before), watched
        return effects

    handle = rig.core.handle
    rig.core.handle = measured  # type: ignore[method-assign]
    way(client, expiring(count))
    assert before == count * queues
    assert most <= 2 * in_one


def test_a_big_frame_is_decoded_in_a_step_of_its_own(rig: Rig) -> None:
    client = rig.client()
    client.declare("q")
    client.publish("q", bytes(DECODED_AT_ONCE))
    *others, last = rig.core.context.writer.log.frames_after(LogIndex(0))
    state = SetState(SET)
    for each in others:
        state.apply_frame(each)
    steps = state.apply_in_steps(last)
    assert next(steps) > 0
    assert state.applied < last.header.first, "nothing of it is there yet"
    for _ in steps:
        pass
    assert state.applied == last.header.last and state_hash(state) == state_hash(rig.state)


def test_names_of_very_many_queues_are_serialised_with_their_record_and_not_with_their_frame(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.client()
    wired(client, is_mixed=True)
    named: list[int] = []

    def make(*given: Any) -> Frame:
        records = [each[0] for each in given[4] if each is not None]
        named.extend(
            sum(len(message.queues) for message in record.messages)
            for record in records
            if isinstance(record, Publish)
        )
        return encode_frame(*given)

    monkeypatch.setattr("services.primary.core.replication_log.encode_frame", make)
    numbers = by_itself(client, prioritised(MANY))
    assert client.answers[numbers[0]].value == MANY * QUEUES and sum(named) < PLACES_IN_ONE
    rig.check_log()


# --- refusals ---


@pytest.mark.parametrize("way", WAYS[:3])
@pytest.mark.parametrize("limit", ["length_max", "command_bytes_max"])
def test_what_is_refused_amid_that_leaves_nothing(
    limit: str, way: Callable[[RigClient, Messages], list[int]]
) -> None:
    settings = PrimarySettings(command_bytes_max=9 * QUEUES * MANY) if limit != "length_max" else None
    rig = Rig(settings)
    client = rig.client()
    wired(client, length_max=MANY - 1 if limit == "length_max" else 0)
    numbers = way(client, prioritised(MANY))
    code = ErrorCode.QUEUE_FULL if limit == "length_max" else ErrorCode.TOO_LARGE
    codes = [client.answers[number].code for number in numbers]
    assert codes == ([code, ErrorCode.ROLLED_BACK] if way is before_its_commit else [code])
    assert ("length_max" if limit == "length_max" else "bytes for 40 queues") in client.answers[
        numbers[0]
    ].message
    assert rig.bodies("q0") == [] and not rig.core.context.progress.of(rig.core.streams.by_number[1].session)
    assert not published(rig) and not rig.state.transactions.live
    assert [note.limit for note in rig.notes if note.event == "limit_reached"] == (
        [limit] if limit != "length_max" else []
    )
    rig.check_log()


def test_an_operation_out_of_its_turn_is_refused_however_much_it_brings(rig: Rig) -> None:
    client = rig.client()
    wired(client)
    key = client.begin()
    late = PublishCommand(0, "all", "k", prioritised(MANY), key, 2)
    numbers = said(client, late, CommitCommand(0, key, 2))
    codes = [client.answers[number].code for number in numbers]
    assert codes == [ErrorCode.SEQUENCE_GAP, ErrorCode.ROLLED_BACK]
    assert not published(rig)
    rig.check_log()


def test_operations_go_on_behind_one_of_several_records(rig: Rig) -> None:
    client = rig.client()
    wired(client)
    key = client.begin()
    commands = [
        PublishCommand(0, "all", "k", prioritised(count), key, each) for each, count in ((1, MANY), (2, 1))
    ]
    numbers = said(client, *commands, CommitCommand(0, key, 2))
    assert [client.answers[number].code for number in numbers] == [ErrorCode.NONE] * 3
    assert client.answers[numbers[0]].value == MANY * QUEUES
    assert rig.bodies("q0") == [b"%d" % number for number in (*range(MANY), 0)]
    rig.check_log()


def test_accepts_go_with_a_commit_that_brings_much(rig: Rig) -> None:
    client = rig.client()
    wired(client)
    client.declare("from")
    client.publish("from", b"0")
    client.consume("from")
    name = client.ok(CommitCommand(0, client.begin(), 0, begins=1)) - 1
    key = LogIndex(name), rig.core.epoch
    positions = client.positions("from")
    accept = SettleCommand(0, "from", rig.core.epoch, positions, Disposition.ACCEPT, key, 1)
    last = PublishCommand(0, "all", "k", prioritised(MANY), key, 2)
    numbers = said(client, accept, CommitCommand(0, key, 2, last_publish=last))
    assert [client.answers[number].code for number in numbers] == [ErrorCode.NONE] * 2
    assert rig.bodies("from") == [] and len(rig.bodies("q0")) == MANY
    rig.check_log()


def test_queues_that_evict_keep_the_last_ones() -> None:
    rig = Rig(SMALL)
    client = rig.client()
    wired(client, length_max=3, is_evicting=True)
    measured = Longest(rig)
    by_itself(client, AlikeMessages(tuple(b"%d" % each for each in range(MANY)), headers=(("all", "1"),)))
    assert {tuple(rig.bodies(f"q{number}")) for number in range(QUEUES)} == {
        tuple(b"%d" % each for each in range(MANY - 3, MANY))
    }
    assert measured.calls <= CALLS_IN_ONE
    rig.check_log()


def test_many_messages_that_are_compared_with_few_bindings_each_leave_others_their_turn(rig: Rig) -> None:
    client = rig.client()
    client.exchange("few", kind="headers")
    for number in range(COMPARED_IN_ALL // 1000):
        client.declare(f"q{number}")
        client.ok(BindCommand(0, "few", f"q{number}", "", ((f"h{number}", "1"),)))
    rig.pass_time(50)
    spent = rig.core.context.selectors.spent
    unlike = tuple(OutgoingMessage(b"", b"", headers=((f"h{each % 4}", "1"),)) for each in range(5000))
    numbers = said(client, PublishCommand(0, "few", "k", unlike))
    assert client.answers[numbers[0]].value == 5000
    assert rig.core.context.selectors.spent - spent >= 5000
    rig.check_log()
