"""The Kubernetes manifests by themselves: valid for the API, without rights, spread out, and open only to whom they name."""

from typing import Any

import kubernetes_validate
import pytest

from tests.unit.deploy.kubernetes import (
    OVERLAYS,
    WORKLOADS,
    Manifest,
    containers,
    of_kind,
    pod_of,
    pods,
    rendered,
    selects,
)

VERSION = "1.37"
"""Of Kubernetes, whose schemas are asked."""
COMPONENT = "app.kubernetes.io/component"
BROKER, COORDINATOR, PROXY, ETCD = "broker", "coordinator", "proxy", "etcd"


def labels_of(overlay: str) -> dict[str, dict[str, str]]:
    """Labels of pods, by component."""
    return {pod["metadata"]["labels"][COMPONENT]: pod["metadata"]["labels"] for pod in pods(overlay)}


def test_there_are_overlays_for_an_etcd_of_its_own_one_that_is_there_and_the_pipeline() -> None:
    assert set(OVERLAYS) == {"production", "external-etcd", "with-pipeline"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_object_is_one_of_the_api(overlay: str) -> None:
    for manifest in rendered(overlay):
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_the_schemas_refuse_what_is_not_of_the_api() -> None:
    service: Manifest = next(one for one in rendered("production") if one["kind"] == "Service")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service | {"spec": {"portz": []}}, VERSION, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_is_in_one_namespace_and_belongs_together(overlay: str) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered(overlay)]
    assert len(set(names)) == len(names)
    for manifest in rendered(overlay):
        if manifest["kind"] not in {"Namespace", "PriorityClass"}:
            assert manifest["metadata"]["namespace"] == "lockstep", manifest["metadata"]
    for pod in pods(overlay):
        assert pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "lockstep"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_have_no_rights(overlay: str) -> None:
    (namespace,) = of_kind(overlay, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods(overlay):
        check_rights(pod["spec"])


def check_rights(spec: dict[str, Any]) -> None:
    """The restricted pod security standard, and a root file system that nobody writes."""
    rights = spec["securityContext"]
    assert rights["runAsNonRoot"] is True and rights["runAsUser"] == rights["runAsGroup"] == 10001
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & spec.keys()
    allowed = {"name", "configMap", "emptyDir", "secret", "persistentVolumeClaim", "projected"}
    assert all(volume.keys() <= allowed for volume in spec.get("volumes", []))
    for one in containers({"spec": spec}):
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, one["name"]
        assert one["resources"]["requests"].keys() == {"cpu", "memory"}, one["name"]
        assert one["resources"]["limits"].keys() == {"memory"}, "a throttled process misses heartbeats"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_who_talks_to_the_api_has_a_token(overlay: str) -> None:
    for pod in pods(overlay):
        is_driver = pod["metadata"]["labels"][COMPONENT] == "pipeline-driver"
        assert pod["spec"]["automountServiceAccountToken"] is is_driver


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_members_that_count_are_on_hosts_of_their_own_and_spread_over_zones(overlay: str) -> None:
    for workload in of_kind(overlay, *WORKLOADS):
        pod = pod_of(workload)
        labels, spec = pod["metadata"]["labels"], pod["spec"]
        if labels[COMPONENT] == "pipeline-driver":
            assert workload["spec"]["replicas"] == 1
            continue
        spread = {one["topologyKey"]: one for one in spec["topologySpreadConstraints"]}
        assert "topology.kubernetes.io/zone" in spread
        for one in spread.values():
            assert selects(one["labelSelector"], labels)
        if labels[COMPONENT] in {COORDINATOR, PROXY}:
            # As many as one likes: more than hosts, and none waits for a host that takes no pods.
            hosts = spread["kubernetes.io/hostname"]
            assert hosts["whenUnsatisfiable"] == "DoNotSchedule" and hosts["nodeTaintsPolicy"] == "Honor"
            assert "affinity" not in spec
        else:
            (term,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert term["topologyKey"] == "kubernetes.io/hostname"
            assert selects(term["labelSelector"], labels)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_brokers_and_etcd_find_room_before_anybody_else(overlay: str) -> None:
    (priority,) = of_kind(overlay, "PriorityClass")
    assert priority["value"] > 0 and "preemptionPolicy" not in priority
    for pod in pods(overlay):
        is_critical = pod["metadata"]["labels"][COMPONENT] in {BROKER, ETCD}
        name = pod["spec"].get("priorityClassName")
        assert name == (priority["metadata"]["name"] if is_critical else None)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_one_of_a_kind_may_be_disrupted_at_a_time(overlay: str) -> None:
    budgets = of_kind(overlay, "PodDisruptionBudget")
    for component, labels in labels_of(overlay).items():
        if component != "pipeline-driver":
            (budget,) = (one for one in budgets if selects(one["spec"]["selector"], labels))
            assert budget["spec"]["maxUnavailable"] == 1
            keeps_something = component in {BROKER, ETCD}
            policy = "IfHealthyBudget" if keeps_something else "AlwaysAllow"
            assert budget["spec"]["unhealthyPodEvictionPolicy"] == policy, component


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_lead_to_the_ports_of_pods(overlay: str) -> None:
    for service in of_kind(overlay, "Service"):
        spec = service["spec"]
        (pod,) = (
            one
            for one in pods(overlay)
            if selects({"matchLabels": spec["selector"]}, one["metadata"]["labels"])
        )
        open_ports = {
            port["name"]: port["containerPort"] for one in containers(pod) for port in one.get("ports", [])
        }
        for port in spec["ports"]:
            assert open_ports[port["targetPort"]] == port["port"], service["metadata"]["name"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_clients_find_proxies_and_peers_find_each_other_before_they_are_ready(overlay: str) -> None:
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(overlay, "Service")}
    assert services["lockstep"]["selector"][COMPONENT] == PROXY
    assert "publishNotReadyAddresses" not in services["lockstep"]
    for stateful in of_kind(overlay, "StatefulSet"):
        headless = services[stateful["spec"]["serviceName"]]
        assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"] is True
        assert selects({"matchLabels": headless["selector"]}, pod_of(stateful)["metadata"]["labels"])
        # One that waits for the others would wait for ever.
        assert stateful["spec"]["podManagementPolicy"] == "Parallel"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_of_ports_are_those_of_their_pods(overlay: str) -> None:
    for pod in pods(overlay):
        names = {port["name"] for one in containers(pod) for port in one.get("ports", [])}
        numbers = [port["containerPort"] for one in containers(pod) for port in one.get("ports", [])]
        assert len(set(numbers)) == len(numbers), "containers of a pod share its network"
        for policy in of_kind(overlay, "NetworkPolicy"):
            if not selects(policy["spec"]["podSelector"], pod["metadata"]["labels"]):
                continue
            for rule in policy["spec"].get("ingress", []):
                asked = {port["port"] for port in rule["ports"]}
                assert asked & names or pod["metadata"]["labels"][COMPONENT] == "pipeline-driver", policy[
                    "metadata"
                ]["name"]


def may_call(overlay: str, caller: dict[str, str], called: str, port: int) -> bool:
    """Whether the policies let pods with these labels of the same namespace reach a component's port."""
    target = next(pod for pod in pods(overlay) if pod["metadata"]["labels"][COMPONENT] == called)
    ports = {
        one["containerPort"]: one["name"] for each in containers(target) for one in each.get("ports", [])
    }
    is_let_out = is_let_in = False
    for policy in of_kind(overlay, "NetworkPolicy"):
        spec = policy["spec"]
        if selects(spec["podSelector"], caller):
            is_let_out |= any(
                allows(rule, "to", target["metadata"]["labels"], {port, ports[port]})
                for rule in spec.get("egress", [])
            )
        if selects(spec["podSelector"], target["metadata"]["labels"]):
            is_let_in |= any(
                allows(rule, "from", caller, {port, ports[port]}) for rule in spec.get("ingress", [])
            )
    # Pods of others are let out by whoever has the say over them.
    return is_let_in and (is_let_out or "app.kubernetes.io/part-of" not in caller)


def allows(rule: dict[str, Any], side: str, labels: dict[str, str], ports: set[int | str]) -> bool:
    peers = rule.get(side)
    is_peer = peers is None or any(selects(peer.get("podSelector"), labels) for peer in peers)
    open_ports = rule.get("ports")
    return is_peer and (open_ports is None or bool(ports & {one["port"] for one in open_ports}))


CALLS = {
    (BROKER, BROKER, 7071), (COORDINATOR, BROKER, 7071), (PROXY, BROKER, 7071),
    (PROXY, COORDINATOR, 7091), (BROKER, COORDINATOR, 7091),
    (BROKER, ETCD, 2379), (COORDINATOR, ETCD, 2379), (ETCD, ETCD, 2379), (ETCD, ETCD, 2380),
}  # fmt: skip
"""Who calls whom, and where; AMQP clients call proxies from anywhere."""


def test_policies_let_through_who_has_to_call_and_nobody_else() -> None:
    labels = labels_of("production")
    targets = [*{(called, port) for _, called, port in CALLS}, (BROKER, 7102), (PROXY, 7101)]
    allowed = {
        (caller, called, port)
        for caller in labels
        for called, port in targets
        if may_call("production", labels[caller], called, port)
    }
    assert allowed == CALLS


def test_the_pipeline_reaches_brokers_and_nothing_else_of_the_cluster() -> None:
    labels = labels_of("with-pipeline")["pipeline-driver"]
    for one in (labels, labels | {COMPONENT: "pipeline-executor"}):
        reached = {
            target
            for target in ((BROKER, 7071), (COORDINATOR, 7091), (ETCD, 2379))
            if may_call("with-pipeline", one, *target)
        }
        assert reached == {(BROKER, 7071)}


def test_clients_of_other_namespaces_are_let_in_by_a_label() -> None:
    stranger, client = {"app": "shop"}, {"app": "shop", "lockstep-client": "true"}
    assert may_call("production", stranger, PROXY, 5672)
    assert not may_call("production", stranger, BROKER, 7071)
    assert may_call("production", client, BROKER, 7071)
    assert may_call("production", client, COORDINATOR, 7091)
    assert not may_call("production", client, ETCD, 2379)


def test_participants_of_other_namespaces_read_the_decision_log() -> None:
    participant = {"app": "shop", "lockstep-participant": "true"}
    assert may_call("production", participant, ETCD, 2379)
    assert not may_call("production", participant, ETCD, 2380)
    assert not may_call("production", participant, BROKER, 7071)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_proxy_may_be_reached_by_tls_where_an_overlay_adds_it(overlay: str) -> None:
    (policy,) = (
        one for one in of_kind(overlay, "NetworkPolicy") if one["metadata"]["name"] == "lockstep-proxy"
    )
    (rule,) = policy["spec"]["ingress"]
    assert rule == {"ports": [{"port": "amqp"}, {"port": "amqps"}]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everybody_is_shut_in_unless_a_policy_says_otherwise(overlay: str) -> None:
    (nobody,) = (
        one for one in of_kind(overlay, "NetworkPolicy") if one["metadata"]["name"] == "lockstep-nobody"
    )
    assert nobody["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & nobody["spec"].keys()
    for pod in pods(overlay):
        assert selects(nobody["spec"]["podSelector"], pod["metadata"]["labels"])
