"""What an epoch ends before its record is found with a look at a few queues and exchanges in each step."""

import pytest

from lockstep.core.pieces import at_once
from services.primary.core.gone_before import LOOKED_AT_IN_ONE, GoneBefore
from tests.unit.lockstep.core.history import Log, message

MANY = 4 * LOOKED_AT_IN_ONE


@pytest.mark.parametrize("is_restarted", [True, False])
def test_what_is_gone_before_is_found_in_steps(is_restarted: bool) -> None:
    log = Log()
    log.begin_epoch()
    queues = [log.queue(f"q{number}", number % 4 > 0) for number in range(MANY)]
    for number in range(LOOKED_AT_IN_ONE):
        log.exchange(f"x{number}", is_durable=number % 4 > 0)
    for queue in queues[:8]:
        log.publish(message((queue,)), is_durable=False)
    log.begin()
    costs = list(GoneBefore.of(log.state, is_restarted))
    gone = at_once(GoneBefore.of(log.state, is_restarted))
    assert gone.aborted == 1
    if not is_restarted:
        assert (costs, gone.lost, gone.names) == ([], 0, ())
        return
    assert len(costs) == (MANY + LOOKED_AT_IN_ONE) // LOOKED_AT_IN_ONE
    assert gone.lost == 6, "of durable queues"
    assert gone.names == tuple(
        [("queue", f"q{number}") for number in range(0, MANY, 4)]
        + [("exchange", f"x{number}") for number in range(0, LOOKED_AT_IN_ONE, 4)]
    )
