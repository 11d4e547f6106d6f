"""`lockstep status`: what it shows says how old it is."""

import pytest

from lockstep.cli.status import as_json, show
from lockstep.client.administration import ClusterStatus
from lockstep.wire.v1 import cluster_pb2 as pb


def status_of(view_age_ms: int = 0) -> ClusterStatus:
    """Of one broker, which leads a set."""
    view = pb.GetClusterStatusResponse(broker="B1", cluster="c", view_age_ms=view_age_ms)
    view.members.add(broker="B1", address="h:1", incarnation="i")
    view.sets.add(
        name="east", epoch=4, primary="B1", in_sync=["B1"], brokers=["B1"], min_in_sync=1, is_led=True
    )
    view.replicas.add(
        resource_set="east", role=pb.ROLE_PRIMARY, epoch=4, commit_index=9, log_end=9, age_ms=12_300
    )
    return ClusterStatus(view, {"B1": view})


def test_a_replica_is_shown_with_its_age(capsys: pytest.CaptureFixture[str]) -> None:
    show(status_of(), False)
    shown = capsys.readouterr().out
    assert "AGE" in shown and "12.3 s" in shown and "etcd" not in shown
    (entry,) = as_json(status_of())["sets"]
    assert entry["replicas"][0]["age_ms"] == 12_300


def test_a_map_that_may_be_old_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show(status_of(view_age_ms=90_000), False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "up, without etcd for 90 s" in shown
    assert "B1, which tells of members and sets, has not heard of etcd for 90 s" in shown
    found = as_json(status_of(view_age_ms=90_000))
    assert (found["view_age_ms"], found["brokers"][0]["etcd_silent_ms"]) == (90_000, 90_000)
