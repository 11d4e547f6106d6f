"""Frames have a size that every stream carries: what multiplies contents, or names many messages, is refused or done in parts."""

from typing import get_args, get_origin, get_type_hints

import msgspec
import pytest

from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.commands import (
    BindCommand,
    Disposition,
    OutgoingMessage,
    PublishCommand,
    PurgeQueueCommand,
    SettleCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.frames import FRAME_BYTES_MAX
from lockstep.core.ids import Epoch, ExchangeId, LogIndex, QueueId, QueuePosition
from lockstep.core.inputs import Woken
from lockstep.core.records import (
    AcceptCommand,
    AdvanceSubscription,
    Annotate,
    AnyRecord,
    Bind,
    Dequeue,
    ForgetOutcomes,
    Message,
    Move,
    Prepare,
    Publish,
    Requeue,
    Unbind,
)
from lockstep.core.set_state import SetState
from lockstep.runtime.request_limits import MESSAGE_BYTES_MAX
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish

SIZE = 1000
BESIDE = 1500
"""What a frame has beside content, at most: records and their names, in these tests."""


def biggest(rig: Rig) -> int:
    """Bytes of the biggest frame."""
    frames = list(rig.core.context.writer.log.frames_after(LogIndex(0)))
    return max(len(frame.durable) + len(frame.transient) for frame in frames)


def of_kinds(client: RigClient, count: int) -> None:
    """An exchange over so many queues, no two of which have the same time to live."""
    names = [f"q{number}" for number in range(count)]
    for number, name in enumerate(names):
        client.declare(name, message_ttl_ms=60_000 * (number + 1))
    client.exchange("x", *names)


# --- publishing ---


@pytest.mark.parametrize("are_alike", [False, True])
def test_a_content_counts_once_for_each_kind_of_queue_that_it_goes_to(are_alike: bool) -> None:
    rig = Rig(PrimarySettings(command_bytes_max=4 * SIZE))
    client = rig.client()
    of_kinds(client, 5)
    body = bytes(SIZE)
    messages = AlikeMessages((body,)) if are_alike else (OutgoingMessage(b"", body),)
    refused = client.do(PublishCommand(0, "x", "", messages))
    assert refused.code is ErrorCode.TOO_LARGE and "5165 bytes for 5 queues, at most 4000" in refused.message
    assert all(rig.bodies(f"q{number}") == [] for number in range(5))
    for number in (3, 4):
        client.ok(BindCommand(0, "x", f"q{number}", f"q{number}", is_unbind=True))
    assert client.ok(PublishCommand(0, "x", "", messages)) == 3
    assert biggest(rig) < 4 * SIZE + BESIDE
    rig.check_log()


def test_a_content_counts_once_for_queues_of_one_kind() -> None:
    rig = Rig(PrimarySettings(command_bytes_max=2 * SIZE))
    client = rig.client()
    names = [f"q{number}" for number in range(20)]
    for name in names:
        client.declare(name)
    client.exchange("x", *names)
    assert client.publish("", bytes(SIZE), exchange="x").value == 20
    assert biggest(rig) < 2 * SIZE + BESIDE


def test_a_content_counts_for_durable_queues_and_for_others() -> None:
    rig = Rig(PrimarySettings(command_bytes_max=2 * SIZE))
    client = rig.client()
    client.declare("durable")
    client.declare("transient", is_durable=False)
    client.exchange("x", "durable", "transient")
    assert client.publish("", bytes(SIZE), exchange="x").code is ErrorCode.TOO_LARGE
    assert client.publish("", bytes(SIZE), exchange="x", is_durable=False).value == 2, "one record has both"


def test_names_of_queues_count_where_many_messages_go_to_many_queues() -> None:
    rig = Rig(PrimarySettings(command_bytes_max=2200))
    client = rig.client()
    names = [f"q{number}" for number in range(30)]
    for name in names:
        client.declare(name)
    client.exchange("x", *names)
    assert client.publish("", *[b""] * 8, exchange="x").code is ErrorCode.TOO_LARGE
    assert client.publish("", *[b""] * 7, exchange="x").value == 210


def test_names_of_queues_count_in_a_frame_whichever_message_has_the_most() -> None:
    rig = Rig(PrimarySettings(frame_bytes_max=SIZE))
    client = rig.client()
    client.exchange("x", kind="headers")
    for number in range(60):
        client.declare(f"q{number}")
        others = (("few", "1"),) if number == 0 else ()
        client.ok(BindCommand(0, "x", f"q{number}", "", (("x-match", "any"), ("all", "1"), *others)))
    few, many = (OutgoingMessage(b"", b"", headers=((name, "1"),)) for name in ("few", "all"))
    before = len(rig.core.context.writer.log.frames_after(LogIndex(0)))
    rig.holds_store = True
    for _ in range(20):
        client.command(PublishCommand(0, "x", "", (few, many)))
    rig.acknowledge()
    frames = list(rig.core.context.writer.log.frames_after(LogIndex(0)))[before:]
    assert max(len(frame.durable) for frame in frames) < SIZE
    rig.check_log()


def test_messages_count_once_for_each_kind_of_queue_though_they_have_no_content() -> None:
    rig = Rig(PrimarySettings(command_bytes_max=2000))
    client = rig.client()
    of_kinds(client, 10)
    assert client.publish("", *[b""] * 7, exchange="x").code is ErrorCode.TOO_LARGE
    before = rig.core.log_end
    assert client.publish("", *[b""] * 6, exchange="x").value == 60
    frames = rig.core.context.writer.log.frames_after(LogIndex(0))
    assert max(len(frame.durable) for frame in frames if frame.header.last > before) < 2000
    rig.check_log()


def test_messages_without_content_fill_frames_too() -> None:
    rig = Rig(PrimarySettings(frame_bytes_max=SIZE))
    client = rig.client()
    client.declare("q")
    rig.holds_store = True
    for _ in range(20):
        client.command(publish("q", *[b""] * 40))
    rig.acknowledge()
    assert len(rig.bodies("q")) == 800 and biggest(rig) < SIZE + BESIDE
    rig.check_log()


def test_a_transaction_counts_what_the_log_has_of_it() -> None:
    """As every replica keeps it."""
    rig = Rig(PrimarySettings(transaction_bytes_max=5 * SIZE))
    client = rig.client()
    of_kinds(client, 3)
    transaction = client.begin()
    first = publish("", bytes(SIZE), exchange="x", transaction=transaction, sequence=1)
    client.ok(first)
    refused = client.do(publish("", bytes(SIZE), exchange="x", transaction=transaction, sequence=2))
    assert refused.code is ErrorCode.TOO_LARGE and "would have 6198 bytes" in refused.message
    client.rollback(transaction)
    rig.check_log()


# --- dead letters ---


def dead_lettering(rig: Rig, count: int, **options: object) -> RigClient:
    """A client that published so many messages to a queue whose dead letters are copied."""
    client = rig.client()
    client.declare("dead", is_durable=False)
    client.declare("q", dead_letter_exchange="", dead_letter_key="dead", **options)
    for number in range(count):
        client.publish("q", bytes([number]) * SIZE)
    return client


def dead(count: int) -> list[bytes]:
    return [bytes([number]) * SIZE for number in range(count)]


def reject(client: RigClient) -> int:
    """All that is in hand; the number of the command."""
    return client.command(
        SettleCommand(0, "q", client.rig.core.epoch, client.positions("q"), Disposition.REJECT)
    )


def test_a_reject_of_much_is_done_in_parts_and_answered_behind_the_last() -> None:
    rig = Rig(PrimarySettings(command_bytes_max=3 * SIZE, frame_bytes_max=SIZE))
    client = dead_lettering(rig, 10)
    client.consume("q")
    rig.holds_store = True
    before = len(rig.records())
    number = reject(client)
    assert number not in client.answers
    rig.acknowledge()
    assert client.answers[number].code is ErrorCode.NONE and client.answers[number].value == 10
    assert rig.bodies("dead") == dead(10) and rig.bodies("q") == []
    assert biggest(rig) < 3 * SIZE + BESIDE
    made = rig.records()[before:]
    assert [type(record) for record in made] == [Publish, Dequeue] * 4 + [AcceptCommand]
    rig.check_log()


def test_a_reject_of_much_waits_while_too_much_is_not_committed() -> None:
    rig = Rig(PrimarySettings(command_bytes_max=SIZE, frame_bytes_max=SIZE, uncommitted_bytes_max=2 * SIZE))
    client = dead_lettering(rig, 10)
    client.consume("q")
    rig.holds_store = True
    number = reject(client)
    assert 0 < len(rig.bodies("dead")) < 5 and number not in client.answers
    rig.acknowledge()
    assert rig.bodies("dead") == dead(10) and client.answers[number].code is ErrorCode.NONE
    rig.check_log()


def test_expired_messages_become_dead_letters_in_frames_of_their_own() -> None:
    rig = Rig(PrimarySettings(frame_bytes_max=2 * SIZE))
    dead_lettering(rig, 20, message_ttl_ms=100)
    rig.pass_time(200)
    assert rig.bodies("dead") == dead(20) and rig.bodies("q") == []
    assert biggest(rig) < 2 * SIZE + BESIDE
    rig.check_log()


def test_what_expires_behind_others_that_wait_goes_behind_them() -> None:
    rig = Rig(PrimarySettings(uncommitted_bytes_max=4 * SIZE))
    client = rig.client()
    client.declare("dead")
    client.declare("q", dead_letter_exchange="", dead_letter_key="dead")
    client.publish("q", *[b"first"] * 600, ttl_ms=100)
    client.publish("q", b"last", ttl_ms=300)
    rig.holds_store = True
    client.command(publish("q", bytes(5 * SIZE)))
    rig.pass_time(200)
    rig.pass_time(200)
    assert rig.bodies("dead") == []
    rig.acknowledge()
    for _ in range(5):
        rig.pass_time(50)
    assert rig.bodies("dead") == [b"first"] * 600 + [b"last"]
    rig.check_log()


def test_worn_out_messages_become_dead_letters_in_frames_of_their_own() -> None:
    rig = Rig(PrimarySettings(frame_bytes_max=2 * SIZE))
    client = dead_lettering(rig, 20, delivery_count_max=1)
    client.consume("q")
    assert client.settle("q", disposition=Disposition.FAIL).code is ErrorCode.NONE
    assert rig.bodies("dead") == dead(20) and rig.bodies("q") == []
    assert biggest(rig) < 2 * SIZE + BESIDE
    rig.check_log()


@pytest.mark.parametrize("cut", range(12))
def test_whatever_part_of_the_dead_letters_a_successor_has_each_message_is_in_one_place(cut: int) -> None:
    rig = Rig(PrimarySettings(frame_bytes_max=2 * SIZE))
    client = dead_lettering(rig, 10, delivery_count_max=1)
    client.consume("q")
    rig.holds_store = True
    before = rig.core.log_end
    client.command(SettleCommand(0, "q", rig.core.epoch, client.positions("q"), Disposition.FAIL))
    rig.acknowledge()
    successor = SetState(SET)
    frames = list(rig.core.context.writer.log.frames_after(LogIndex(0)))
    old = [frame for frame in frames if frame.header.last <= before]
    for frame in frames[: len(old) + cut]:
        successor.apply_frame(frame)
    places = [
        message.body[:1]
        for name in ("q", "dead")
        for message in successor.queues.by_name[name].messages(successor.queues.by_name[name].positions())
    ]
    assert sorted(places) == [bytes([number]) for number in range(10)]


def test_names_of_targets_count_in_a_frame() -> None:
    rig = Rig(PrimarySettings(frame_bytes_max=SIZE))
    client = rig.client()
    names = [f"dead{number}" for number in range(60)]
    for name in names:
        client.declare(name, message_ttl_ms=60_000)
    client.exchange("x", *names)
    client.declare("q", dead_letter_exchange="x")
    client.publish("q", *[b""] * 20)
    client.consume("q")
    before = len(rig.core.context.writer.log.frames_after(LogIndex(0)))
    rig.holds_store = True
    for position in client.positions("q"):
        client.command(SettleCommand(0, "q", rig.core.epoch, (position,), Disposition.REJECT))
    rig.acknowledge()
    frames = list(rig.core.context.writer.log.frames_after(LogIndex(0)))[before:]
    assert max(len(frame.durable) for frame in frames) < 2 * SIZE
    rig.check_log()


def test_transient_targets_with_one_time_to_live_share_a_copy() -> None:
    rig = Rig()
    client = rig.client()
    for name in ("first", "second", "brief"):
        client.declare(name, is_durable=False, message_ttl_ms=50 if name == "brief" else 0)
    client.exchange("x", "first", "second", "brief")
    client.declare("q", dead_letter_exchange="x")
    client.publish("q", b"1", b"2")
    client.consume("q")
    before = len(rig.records())
    client.settle("q", disposition=Disposition.REJECT)
    assert rig.bodies("first") == rig.bodies("second") == rig.bodies("brief") == [b"1", b"2"]
    assert [type(record) for record in rig.records()[before:]] == [Publish, Publish, Dequeue, AcceptCommand]
    rig.pass_time(50)
    assert rig.bodies("brief") == [] and rig.bodies("first") == rig.bodies("second") == [b"1", b"2"]
    rig.check_log()


def test_a_message_has_no_more_copies_than_a_command_may_bring() -> None:
    """One alone must be rejected, whatever it was bound to."""
    rig = Rig(PrimarySettings(command_bytes_max=2 * SIZE))
    client = rig.client()
    for number in range(4):
        client.declare(f"dead{number}", is_durable=False, message_ttl_ms=60_000 * (number + 1))
    client.declare("durable")
    client.exchange("x", "dead0", "dead1", "dead2", "dead3", "durable")
    client.declare("q", dead_letter_exchange="x")
    client.publish("q", bytes(SIZE))
    client.publish("q", b"small")
    client.publish("q", bytes(SIZE), is_durable=False)
    client.consume("q")
    assert client.settle("q", disposition=Disposition.REJECT).code is ErrorCode.NONE
    lengths = [len(rig.bodies(name)) for name in ("dead0", "dead1", "dead2", "dead3", "durable")]
    assert lengths == [3, 3, 2, 2, 3], "what is not durable is moved, and needs no copies"
    assert biggest(rig) < 2 * SIZE + BESIDE
    rig.check_log()


# --- positions ---


def test_a_purge_of_much_is_in_several_frames_and_answered_behind_the_last() -> None:
    rig = Rig(PrimarySettings(command_messages_max=10, frame_bytes_max=100))
    client = rig.client()
    client.declare("q")
    for _ in range(10):
        client.publish("q", *[b""] * 10)
    before = len(rig.core.context.writer.log.frames_after(LogIndex(0)))
    number = client.command(PurgeQueueCommand(0, "q"))
    while number not in client.answers:
        rig.feed(Woken(SET))
    assert client.answers[number].value == 100
    frames = list(rig.core.context.writer.log.frames_after(LogIndex(0)))[before:]
    assert len(frames) == 10 and max(len(frame.durable) for frame in frames) < 300
    assert rig.bodies("q") == []
    rig.check_log()


def test_what_one_big_message_pushes_out_is_in_several_frames() -> None:
    rig = Rig(PrimarySettings(command_messages_max=10, frame_bytes_max=100))
    client = rig.client()
    client.declare("q", bytes_max=100, is_evicting=True)
    for _ in range(10):
        client.publish("q", *[b"x"] * 10)
    before = len(rig.core.context.writer.log.frames_after(LogIndex(0)))
    assert client.publish("q", bytes(100)).code is ErrorCode.NONE
    frames = list(rig.core.context.writer.log.frames_after(LogIndex(0)))[before:]
    assert len(frames) == 10 and rig.bodies("q") == [bytes(100)]
    rig.check_log()


def test_sessions_that_end_together_give_back_in_several_frames() -> None:
    rig = Rig(PrimarySettings(frame_bytes_max=200))
    client = rig.client()
    client.declare("q")
    client.publish("q", *[b""] * 200)
    for number in range(20):
        other = rig.client(f"gone{number}")
        other.consume("q", credit=10)
        other.lose_stream()
    before = rig.core.log_end
    rig.pass_time(10_000)
    frames = list(rig.core.context.writer.log.frames_after(LogIndex(0)))
    assert [session.id for session in rig.state.sessions.by_key.values()] == [client.session_id]
    assert max(len(frame.durable) for frame in frames if frame.header.first > before) < 1000
    rig.check_log()


# --- the last line ---


def test_streams_carry_the_biggest_frame_and_what_it_has_beside_content() -> None:
    settings = PrimarySettings()
    assert FRAME_BYTES_MAX + 16 * (1 << 20) <= MESSAGE_BYTES_MAX
    assert settings.frame_bytes_max + settings.command_bytes_max < FRAME_BYTES_MAX
    assert settings.message_bytes_max < settings.command_bytes_max


def test_what_no_stream_would_carry_stops_the_process_before_it_is_in_the_log() -> None:
    log = Rig().core.context.writer.log
    end, record = log.end, AcceptCommand(None)
    log.append(record, False, FRAME_BYTES_MAX // 2)
    with pytest.raises(AssertionError, match="in a frame"):
        log.append(record, False, FRAME_BYTES_MAX // 2 + 1)
    assert log.end == end + 1
    log.end_command(1)
    log.append(record, False, FRAME_BYTES_MAX // 2 + 1)


# --- what is no content ---


KEY = LogIndex(1 << 40), Epoch(1 << 20)
POSITION = QueuePosition(1 << 50)
QUEUE = QueueId(1 << 40)
LONG = [
    Annotate(None, QUEUE, (POSITION,) * 100, bytes(4000)),
    Bind(None, ExchangeId(1), QUEUE, "k", (("name", "v" * 2000), ("other", "w" * 2000))),
    Bind(None, ExchangeId(1), QUEUE, "k", (("", "\u20ac"),) * 1000),
    Dequeue(None, None, 0, QUEUE, (POSITION,) * 1000),
    ForgetOutcomes(None, LogIndex(1), 0, (KEY,) * 1000),
    Move(None, 0, QUEUE, (POSITION,), (QUEUE,) * 1000, 1, (1 << 60,) * 1000),
    Publish(None, None, 0, (Message((QUEUE,) * 1000, b"", b""),)),
    Requeue(None, QUEUE, (POSITION,) * 1000),
    Unbind(None, ExchangeId(1), QUEUE, "k", (("name", "v" * 4000),)),
]


@pytest.mark.parametrize("record", LONG, ids=lambda record: type(record).__name__)
def test_what_is_long_in_a_record_counts_as_bytes_of_its_frame(
    rig: Rig, record: AnyRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = rig.core.context.writer
    monkeypatch.setattr(type(writer.state), "apply", lambda *_: None)
    before = writer.log.pending_bytes
    places = 1000 if isinstance(record, Publish) else 0
    writer.append(record, True, places)
    written, size = writer.log.pending_bytes - before, len(msgspec.msgpack.encode(record))
    assert size <= written + 100
    assert written <= 3 * size
    assert size > 3000


def test_every_record_that_has_something_long_is_measured() -> None:
    """What is named or said many times, or is as long as a client wants."""
    short = {
        AdvanceSubscription: "begins",  # Resource sets.
        Prepare: "resource_sets",
    }
    for kind in get_args(AnyRecord):
        named = {
            field
            for field, its_type in get_type_hints(kind).items()
            if get_origin(its_type) is tuple and field != "transaction" and get_args(its_type)[-1:] == (...,)
        }
        if named - {short.get(kind)}:
            assert kind in {type(record) for record in LONG}, kind
