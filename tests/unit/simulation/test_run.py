"""One run of the simulator: what it leaves in its process."""

import gc

import pytest

from tests.simulation.options import draw
from tests.simulation.parts import Parts
from tests.simulation.run import run
from tests.simulation.world import World


def test_garbage_is_collected_behind_a_run_that_an_assertion_stops() -> None:
    def stop(_: World) -> None:
        raise AssertionError("a core stops")

    with pytest.raises(AssertionError, match="a core stops"):
        run(draw(0), Parts(prepare=stop))
    assert gc.isenabled()
