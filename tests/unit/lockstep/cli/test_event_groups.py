"""`lockstep events groups` against a fake broker: what operators see of groups."""

import json

from typer.testing import CliRunner

from lockstep.cli.main import app
from lockstep.client.event_offsets import EventOffset
from lockstep.client.events import EventsClient
from tests.unit.lockstep.client.fake_events import FakeEvents, Serving


def test_a_group_that_was_left_behind_is_shown_as_such_where_it_was() -> None:
    offsets = {name: EventOffset(10, 2).in_set(name) for name in ("east", "west")}
    broker = FakeEvents({}, groups={"audit": offsets, "live": offsets}, left_behind={"audit": ["west"]})
    with Serving(broker) as serving:
        listed = ["events", "groups", "-b", serving.addresses[0]]
        shown = CliRunner().invoke(app, listed).stdout
        printed = CliRunner().invoke(app, [*listed, "--json"]).stdout
        with EventsClient(serving.addresses) as client:
            assert client.left_behind() == {"audit": ["west"]}
    assert [line.split() for line in shown.splitlines()][1:] == [
        ["audit", "east", "10", "2"],
        ["audit", "west", "10", "2", "left", "behind"],
        ["live", "east", "10", "2"],
        ["live", "west", "10", "2"],
    ]
    where = {"east": "10.2", "west": "10.2"}
    assert json.loads(printed) == {"audit": {**where, "left_behind": ["west"]}, "live": where}
