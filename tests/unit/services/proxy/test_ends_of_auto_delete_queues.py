"""An auto-delete queue ends with its last consumer: what may become a dead letter by a failure is told before that."""

import asyncio

import pytest
from proton import symbol

from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import QueuePosition
from services.proxy import steps
from services.proxy.engine_words import StateCode
from services.proxy.outgoing_link import RETURNED_AT_ONCE
from tests.unit.services.proxy.outgoing_rig import EPOCH, Rig


async def take_turns() -> None:
    """Whoever waits for what is done hears of it."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_fails_by_the_loss_of_its_client_is_told_before_the_consumer_ends() -> None:
    """It may have failed for the last time. So a primary does with what a client had whose session is lost."""
    rig = Rig()
    rig.deliver()
    assert rig.link is not None
    rig.link.end(is_lost=True)
    attaching = asyncio.ensure_future(rig.returning.over("q"))
    assert rig.broker.settled == [((QueuePosition(1),), Disposition.FAIL)]
    await take_turns()
    assert (rig.broker.stopped, rig.broker.settled_before_end) == (1, 1)
    assert not attaching.done(), "it is not back yet"
    rig.broker.confirmations[0].set_result(1)
    await attaching
    assert not len(rig.returning)


@pytest.mark.parametrize(("is_browser", "count"), [(True, 1), (False, 0)])
async def test_a_lost_link_of_which_nothing_fails_ends_its_consumer_at_once(
    is_browser: bool, count: int
) -> None:
    rig = Rig(is_browser=is_browser)
    for _ in range(count):
        rig.deliver()
    assert rig.link is not None
    rig.link.end(is_lost=True)
    assert (rig.broker.settled, rig.broker.stopped) == ([], 1)


async def test_what_a_client_leaves_that_is_not_lost_goes_back_behind_the_end_of_the_consumer() -> None:
    """It is not to come here again."""
    rig = Rig()
    rig.deliver()
    assert rig.link is not None
    rig.link.end(is_lost=False)
    assert rig.broker.settled == [((QueuePosition(1),), Disposition.RELEASE)]
    assert (rig.broker.stopped, rig.broker.settled_before_end) == (1, 0)


async def test_however_much_fails_the_consumer_ends_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP_SECONDS", 0.0)
    count = 3 * RETURNED_AT_ONCE
    rig = Rig(credit=count)
    assert rig.link is not None
    rig.deliver_again(EPOCH, *range(1, count + 1))
    rig.link.end(is_lost=True)
    while not rig.broker.settled:
        await asyncio.sleep(0)
    assert rig.broker.stopped == 0
    await asyncio.gather(*rig.works_run)
    await take_turns()
    assert sum(len(positions) for positions, _ in rig.broker.settled) == count
    assert (rig.broker.stopped, rig.broker.settled_before_end) == (1, len(rig.broker.settled))


def give_back_with_annotations(rig: Rig, *, has_failed: bool) -> None:
    delivery = rig.deliver()
    delivery.local.failed = has_failed
    delivery.local.annotations = {symbol("a"): True}
    delivery.update(StateCode.MODIFIED)
    delivery.settle()
    rig.exchange()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_consumer_ends_behind_a_failure_that_is_told_again_without_its_annotations(
    is_lost: bool,
) -> None:
    """So much is kept of a message over all of its deliveries: the last of them may be too much."""
    rig = Rig()
    give_back_with_annotations(rig, has_failed=True)
    assert rig.link is not None
    rig.link.end(is_lost=is_lost)
    await take_turns()
    assert rig.broker.stopped == 0
    (until_done,) = rig.works_run
    assert not until_done.done(), "the worker does not stop before that"
    rig.broker.confirmations[0].set_exception(Rejected(ErrorCode.TOO_LARGE, "too much"))
    await until_done
    assert rig.broker.settled == [((QueuePosition(1),), Disposition.FAIL)] * 2
    assert (rig.broker.stopped, rig.broker.settled_before_end) == (1, 2)


async def test_a_consumer_ends_behind_all_failures_that_may_be_told_again() -> None:
    rig = Rig(credit=2)
    for _ in range(2):
        give_back_with_annotations(rig, has_failed=True)
    assert rig.link is not None and len(rig.broker.confirmations) == 2
    rig.link.end(is_lost=False)
    rig.broker.confirmations[0].set_result(1)
    await take_turns()
    assert rig.broker.stopped == 0
    rig.broker.confirmations[1].set_exception(Rejected(ErrorCode.TOO_LARGE, "too much"))
    await take_turns()
    assert (rig.broker.stopped, rig.broker.settled_before_end) == (1, 3)


async def test_a_consumer_does_not_wait_for_what_cannot_become_a_dead_letter_by_its_annotations() -> None:
    rig = Rig()
    give_back_with_annotations(rig, has_failed=False)
    assert rig.link is not None
    rig.link.end(is_lost=False)
    assert rig.broker.stopped == 1
