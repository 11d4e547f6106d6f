"""Who lets others run between pieces of work, and for how long they may keep the processor."""

from lockstep.runtime.courtesy import KEPT_SECONDS, PAUSE_SECONDS, Courtesy


class Processor:
    """Others keep it for so long when it is offered."""

    def __init__(self) -> None:
        self.now = 0.0
        self.kept = 0.0
        self.offers = 0
        self.courtesy = Courtesy(self.offer, lambda: self.now)

    def offer(self) -> None:
        self.offers += 1
        self.now += self.kept


def test_it_is_offered_again_to_those_who_give_it_back() -> None:
    the = Processor()
    the.kept = KEPT_SECONDS / 2
    for _ in range(5):
        the.courtesy()
    assert the.offers == 5


def test_it_is_not_offered_for_a_while_behind_somebody_who_kept_it() -> None:
    the = Processor()
    the.kept = 2 * KEPT_SECONDS
    for _ in range(5):
        the.courtesy()
    assert the.offers == 1
    the.now += PAUSE_SECONDS
    the.courtesy()
    assert the.offers == 2


def test_the_kernel_takes_the_offer() -> None:
    Courtesy()()
