"""`lockstep cluster rebuild-map --rebuild` for a script."""

from tests.simulation.loop import SECOND
from tests.simulation.map_rebuild import MapRebuild
from tests.simulation.staging.stage import Stage


def rebuild_map(stage: Stage, generation: str) -> None:
    """Once; a script that goes on too early finds nothing changed."""
    rebuild = MapRebuild(stage.world)
    for wait_us in rebuild.attempt(generation):
        stage.run(wait_us / SECOND)
    stage.expect(rebuild.generations == [generation], "the map is rebuilt")
