"""What is said of a message by whoever gives it back: for whoever gets it next, through failovers, restarts and dead letters."""

import pytest

from lockstep.core.amqp.sections import join
from lockstep.core.commands import Disposition, SettleCommand
from lockstep.core.errors import ErrorCode
from lockstep.core.invariants import check_invariants
from lockstep.core.server_messages import CommandAnswered
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from services.primary.core.settling import ANNOTATIONS_BYTES_MAX
from tests.unit.lockstep.core.amqp.amqp_messages import decoded
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient

TRUE, FALSE, OTHER = b"\xa3\x01a\x41", b"\xa3\x01a\x42", b"\xa3\x01b\x41"


def say(client: RigClient, annotations: bytes, disposition: int = Disposition.FAIL) -> CommandAnswered:
    """Of all that it has of the queue."""
    return client.do(settle(client, annotations, disposition))


def with_one_in_hand() -> tuple[Rig, RigClient]:
    """A set, and a client that has the only message of its queue."""
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1")
    client.consume("q")
    return rig, client


def settle(client: RigClient, annotations: bytes, disposition: int) -> SettleCommand:
    positions = client.positions("q")
    for position in positions:
        del client.in_hand["q", position]
    return SettleCommand(0, "q", client.rig.core.epoch, positions, disposition, annotations=annotations)


def said(client: RigClient, queue: str) -> list[bytes]:
    return [client.in_hand[queue, position].annotations for position in client.positions(queue)]


@pytest.mark.parametrize("is_durable", [True, False])
@pytest.mark.parametrize("disposition", [Disposition.RELEASE, Disposition.FAIL])
def test_whoever_gets_it_next_is_told(disposition: int, is_durable: bool) -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1", b"2", is_durable=is_durable)
    client.consume("q")
    assert say(client, TRUE, disposition).code is ErrorCode.NONE
    assert said(client, "q") == [TRUE, TRUE]
    assert say(client, OTHER, disposition).code is ErrorCode.NONE
    assert say(client, FALSE, disposition).code is ErrorCode.NONE
    assert said(client, "q") == [FALSE + OTHER] * 2
    counts = [client.in_hand["q", position].delivery_count for position in client.positions("q")]
    assert counts == [3 if disposition == Disposition.FAIL else 0] * 2
    rig.check_log()
    check_invariants(rig.state)


@pytest.mark.parametrize("disposition", [Disposition.RELEASE, Disposition.FAIL])
def test_it_is_not_told_before_it_is_committed(disposition: int) -> None:
    rig, client = with_one_in_hand()
    rig.holds_store = True
    client.command(settle(client, TRUE, disposition))
    assert said(client, "q") == []
    rig.acknowledge()
    assert said(client, "q") == [TRUE]


def test_it_outlives_a_restart_and_a_snapshot() -> None:
    rig, client = with_one_in_hand()
    say(client, TRUE, Disposition.RELEASE)
    rig.check_log()
    for in_blocks in (False, True):
        copy = SetState.from_items(SET, rig.state.items(in_blocks=in_blocks))
        assert state_hash(copy) == state_hash(rig.state)
        assert list(copy.queues.by_name["q"].annotations.values()) == [TRUE]
    rig = Rig(predecessor=rig, is_restarted=True)
    client = rig.client()
    client.consume("q")
    assert said(client, "q") == [TRUE]


def test_a_dead_letter_has_it_as_well() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("dead")
    client.declare("q", dead_letter_key="dead", delivery_count_max=1)
    client.publish("q", b"1")
    client.consume("q")
    say(client, TRUE)
    client.consume("dead")
    assert said(client, "dead") == [TRUE]
    assert rig.state.queues.by_name["q"].annotations == {}
    rig.check_log()


@pytest.mark.parametrize("disposition", [Disposition.ACCEPT, Disposition.REJECT])
def test_only_what_goes_back_is_annotated(disposition: int) -> None:
    rig, client = with_one_in_hand()
    assert say(client, TRUE, disposition).code is ErrorCode.INVALID_ARGUMENT
    assert rig.bodies("q") == [b"1"]


def test_what_is_no_annotation_is_refused() -> None:
    _, client = with_one_in_hand()
    assert say(client, b"\xa3").code is ErrorCode.INVALID_ARGUMENT


def test_a_message_has_so_many_bytes_of_them_and_no_more() -> None:
    rig, client = with_one_in_hand()
    half = ANNOTATIONS_BYTES_MAX // 2
    large = [b"\xa3\x01%c\xb0" % key + (half - 8).to_bytes(4, "big") + bytes(half - 8) for key in b"abc"]
    assert say(client, large[0]).code is ErrorCode.NONE
    assert say(client, large[1]).code is ErrorCode.NONE
    assert say(client, large[2]).code is ErrorCode.TOO_LARGE
    assert [note.limit for note in rig.notes if note.event == "limit_reached"] == ["annotations_bytes_max"]


def test_a_copy_of_a_dead_letter_has_it_as_well() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("dead", is_durable=False)
    client.declare("q", dead_letter_key="dead", delivery_count_max=1)
    client.publish("q", b"\x00\x53\x75\xa0\x01x", properties=b"\x00\x53\x70\x45")
    client.consume("q")
    say(client, TRUE)
    client.consume("dead")
    (message,) = [client.in_hand["dead", position] for position in client.positions("dead")]
    raw = join(message.properties, message.body, delivery_count=0, expires_ms=0, is_durable=True, now_ms=0)
    annotations = dict(decoded(raw).annotations or {})
    assert annotations["a"] is True and annotations["x-last-death-reason"] == "delivery_limit"
    rig.check_log()
