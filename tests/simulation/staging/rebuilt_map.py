"""`lockstep cluster rebuild-map --rebuild` for a script."""

from tests.simulation.loop import SECOND
from tests.simulation.map_rebuild import MapRebuild
from tests.simulation.staging.stage import Stage


def rebuild_map(stage: Stage, generation: str) -> None:
    """It has to be done."""
    stage.expect(try_to_rebuild_map(stage, generation), "the map is rebuilt")


def try_to_rebuild_map(stage: Stage, generation: str) -> bool:
    """False: it cannot be done, and nothing has changed."""
    rebuild = MapRebuild(stage.world)
    for wait_us in rebuild.attempt(generation):
        stage.run(wait_us / SECOND)
    return bool(rebuild.generations)
