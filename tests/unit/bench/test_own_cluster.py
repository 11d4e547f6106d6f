"""Lockstep's second turn, through the proxy."""

from dataclasses import replace
from typing import cast

from bench.cases import W3_PUBLISH, W4_XA, Case
from bench.load_programs import Plan
from bench.own_cluster import NAME, OwnCluster, ThroughProxy


class Cluster:
    """What is asked of one."""

    def __init__(self, *, has_client: bool) -> None:
        self.has_client = has_client
        self.planned: list[Case] = []

    def handles(self, case: Case) -> bool:
        return case.path != "amqp" or self.has_client

    async def plan(self, case: Case, *, seconds: float, warm_seconds: float) -> Plan:
        self.planned.append(case)
        return Plan(NAME, case.path, case.workload, case.title, [], {}, warm_seconds, seconds)


def through(cluster: Cluster) -> ThroughProxy:
    return ThroughProxy(cast(OwnCluster, cluster))


async def test_the_case_is_the_same_and_only_its_path_is_another() -> None:
    cluster = Cluster(has_client=True)
    plan = await through(cluster).plan(W3_PUBLISH, seconds=5.0)
    assert cluster.planned == [replace(W3_PUBLISH, path="amqp")]
    assert (plan.system, plan.path, (plan.workload, plan.title)) == (NAME, "amqp", W3_PUBLISH.key)


def test_what_its_protocol_has_not_and_a_missing_client_are_left_out() -> None:
    assert not through(Cluster(has_client=True)).handles(W4_XA[0])
    assert not through(Cluster(has_client=False)).handles(W3_PUBLISH)
    assert through(Cluster(has_client=True)).handles(W3_PUBLISH)
