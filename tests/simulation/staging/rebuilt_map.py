"""`lockstep cluster rebuild-map --rebuild` for a script."""

from lockstep.core.ids import BrokerId
from tests.simulation.loop import SECOND
from tests.simulation.map_rebuild import MapRebuild
from tests.simulation.staging.stage import Stage


def rebuild_map(stage: Stage, generation: str, *without: BrokerId) -> None:
    """It has to be done; `without`: whose disks are given up."""
    stage.expect(try_to_rebuild_map(stage, generation, *without), "the map is rebuilt")


def try_to_rebuild_map(stage: Stage, generation: str, *without: BrokerId) -> bool:
    """False: it cannot be done, and nothing has changed."""
    rebuild = MapRebuild(stage.world)
    for wait_us in rebuild.attempt(generation, without):
        stage.run(wait_us / SECOND)
    return bool(rebuild.generations)
