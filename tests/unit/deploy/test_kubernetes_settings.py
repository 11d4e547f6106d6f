"""The Kubernetes manifests against the programs that they start: arguments, ports, probes, limits of time and room."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import DEFAULT_ENDPOINT

from lockstep.client.administration import STEP_DOWN_MARGIN_SECONDS
from lockstep.runtime.health import READY, STARTED
from services.broker import settings as broker
from services.coordinator import settings as coordinator
from services.pipeline import command as pipeline
from services.primary.core.settings import PrimarySettings
from services.proxy import settings as proxy
from services.store import settings as store
from tests.unit.deploy.command_lines import environment_names, parsed
from tests.unit.deploy.kubernetes import (
    DEPLOY,
    KUBERNETES,
    OVERLAYS,
    arguments,
    container,
    containers,
    environment,
    named,
    of_kind,
    pods,
    probes,
    selects,
    settings,
)

PARSERS: Mapping[str, Callable[[list[str]], Any]] = {
    "store": store.parse_arguments,
    "broker": broker.parse_arguments,
    "coordinator": coordinator.parse_arguments,
    "proxy": proxy.parse_arguments,
}
HEALTH = {"broker": "listen", "coordinator": "listen", "store": "health_listen", "proxy": "health_listen"}
"""Which of its settings says where a program tells of its health."""
GIB = 1 << 30
OUTCOME_BYTES = 220
"""As `PrimarySettings.outcomes_max` says."""
SPARK = KUBERNETES / "components" / "pipeline"


def given(overlay: str, name: str) -> Any:
    """The settings that a program makes of its arguments."""
    return PARSERS[name](arguments(overlay, container(overlay, name)))


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", PARSERS)
def test_each_program_takes_its_arguments(overlay: str, name: str) -> None:
    given(overlay, name)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_that_a_program_serves_is_a_port_of_its_container(overlay: str) -> None:
    for name in PARSERS:
        told = given(overlay, name)
        served = {told.metrics_port, port_of(getattr(told, HEALTH[name]))}
        if not told.listen.startswith("unix:"):
            served.add(port_of(told.listen))
        assert served == {port["containerPort"] for port in container(overlay, name)["ports"]}, name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_where_health_is_served_for_names_that_it_has(overlay: str) -> None:
    for name in PARSERS:
        told, found = given(overlay, name), dict(probes(container(overlay, name)))
        address = getattr(told, HEALTH[name])
        assert address.startswith("0.0.0.0:"), "the kubelet asks from outside"
        assert found.keys() == {"startupProbe", "livenessProbe", "readinessProbe"}
        services = {kind: probe["grpc"].get("service", "") for kind, probe in found.items()}
        assert {probe["grpc"]["port"] for probe in found.values()} == {port_of(address)}
        is_broker = name == "broker"
        assert services == {
            "startupProbe": STARTED if is_broker else "",
            "livenessProbe": "",
            "readinessProbe": READY if is_broker else "",
        }, name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports_are_those_of_compose(overlay: str) -> None:
    lines = (DEPLOY / ".env").read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert port_of(given(overlay, "broker").listen) == int(env["LOCKSTEP_BROKER_PORT"])
    assert port_of(given(overlay, "coordinator").listen) == int(env["LOCKSTEP_COORDINATOR_PORT"])
    assert port_of(given(overlay, "proxy").health_listen) == int(env["LOCKSTEP_HEALTH_PORT"])
    for name in ("broker", "coordinator", "proxy"):
        assert given(overlay, name).metrics_port == int(env["LOCKSTEP_METRICS_PORT"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_an_overlay_says_of_logs_and_traces_reaches_every_program(overlay: str) -> None:
    for name in PARSERS:
        assert settings(overlay).items() <= environment(overlay, container(overlay, name)).items(), name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_traces_may_leave_for_a_collector(overlay: str) -> None:
    policy = named(overlay, "NetworkPolicy", "lockstep-traces")["spec"]
    ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
    assert ports == [urlsplit(DEFAULT_ENDPOINT).port], "where a collector listens"
    for pod in pods(overlay):
        if {one["name"] for one in containers(pod)} & PARSERS.keys():
            assert selects(policy["podSelector"], pod["metadata"]["labels"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_broker_has_the_store_of_its_pod_and_the_name_of_its_pod(overlay: str) -> None:
    told, kept = given(overlay, "broker"), given(overlay, "store")
    assert told.store == kept.listen
    assert told.broker == "lockstep-broker-1"
    service = named(overlay, "StatefulSet", "lockstep-broker")["spec"]["serviceName"]
    assert told.advertise == f"lockstep-broker-1.{service}.lockstep.svc:{port_of(told.listen)}"
    sidecar = container(overlay, "store")
    assert sidecar["restartPolicy"] == "Always", "it starts before the broker and ends after it"
    mounts = {one["name"]: one["mountPath"] for one in sidecar["volumeMounts"]}
    assert str(kept.data).startswith(f"{mounts['data']}/")
    assert kept.listen.startswith(f"unix:{mounts['socket']}/")
    assert {"name": "socket", "mountPath": mounts["socket"]} in container(overlay, "broker")["volumeMounts"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everybody_finds_the_same_etcd_and_the_brokers(overlay: str) -> None:
    told = given(overlay, "broker"), given(overlay, "coordinator")
    assert len({(one.etcd, one.cluster) for one in told}) == 1
    service = named(overlay, "Service", "lockstep-brokers")
    assert given(overlay, "proxy").brokers == (f"lockstep-brokers:{service['spec']['ports'][0]['port']}",)
    assert settings(overlay)["LOCKSTEP_BROKERS"] in given(overlay, "proxy").brokers


def test_a_member_of_etcd_starts_again_when_settings_have_changed() -> None:
    """Its pod is replaced by hand; the ConfigMap has another name by then, and the old one may have been removed."""
    assert "configMapKeyRef" not in str(container("production", "etcd"))


def test_the_etcd_of_its_own_has_the_members_that_everybody_is_told() -> None:
    stateful = named("production", "StatefulSet", "lockstep-etcd")["spec"]
    told = dict(
        argument.removeprefix("--").split("=", 1)
        for argument in arguments("production", container("production", "etcd"))
    )
    members = [f"lockstep-etcd-{number}" for number in range(stateful["replicas"])]
    hosts = [f"{member}.{stateful['serviceName']}" for member in members]
    peers = ",".join(f"{member}=http://{host}:2380" for member, host in zip(members, hosts, strict=True))
    assert told["initial-cluster"] == peers
    assert given("production", "broker").etcd == ",".join(f"http://{host}:2379" for host in hosts)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_broker_steps_down_before_it_is_stopped_and_has_the_time_for_it(overlay: str) -> None:
    command = container(overlay, "broker")["lifecycle"]["preStop"]["exec"]["command"]
    told = given(overlay, "broker")
    assert command[:2] == ["lockstep", "step-down"]
    found = parsed(command[1:])
    assert found["address"] == f"127.0.0.1:{port_of(told.listen)}"
    grace = named(overlay, "StatefulSet", "lockstep-broker")["spec"]["template"]["spec"][
        "terminationGracePeriodSeconds"
    ]
    assert found["seconds"] + STEP_DOWN_MARGIN_SECONDS + told.hand_over_seconds < grace


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_process_that_hangs_is_not_asked_to_step_down(overlay: str) -> None:
    for kind, probe in probes(container(overlay, "broker")):
        if kind != "readinessProbe":
            assert probe["terminationGracePeriodSeconds"] <= 30


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_volume_has_room_for_what_its_store_may_keep(overlay: str) -> None:
    limits = given(overlay, "store").limits
    (claim,) = named(overlay, "StatefulSet", "lockstep-broker")["spec"]["volumeClaimTemplates"]
    room = claim["spec"]["resources"]["requests"]["storage"]
    assert room.endswith("Gi")
    assert int(room.removesuffix("Gi")) * GIB > 2 * (limits.owed_bytes_max + 2 * limits.reserve_bytes)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_memory_holds_the_content_that_a_broker_keeps(overlay: str) -> None:
    request = container(overlay, "broker")["resources"]["requests"]["memory"]
    assert int(request.removesuffix("Gi")) * GIB >= 4 * given(overlay, "broker").resident_body_bytes_max


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_primary_of_two_sets_may_use_what_its_limits_allow(overlay: str) -> None:
    limit = container(overlay, "broker")["resources"]["limits"]["memory"]
    primary = PrimarySettings()
    one_set = (
        given(overlay, "broker").resident_body_bytes_max
        + primary.catching_up_bytes_max
        + primary.outcomes_max * OUTCOME_BYTES
        + primary.uncommitted_bytes_max
        + primary.retained_bytes_max
    )
    assert int(limit.removesuffix("Gi")) * GIB >= 2 * one_set + 2 * GIB


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_whoever_waits_for_others_to_come_is_let_wait(overlay: str) -> None:
    """For etcd, or for a broker, which may take half an hour: killed, it would only wait longer before it begins again."""
    for name in ("broker", "coordinator", "proxy"):
        probe = container(overlay, name)["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 1800, name
    assert 1700 <= given(overlay, "proxy").start_seconds < 1800


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_of_the_environment_are_those_that_programs_read(overlay: str) -> None:
    read = environment_names(["status"])
    for name in PARSERS:
        one = container(overlay, name)
        used = {found for argument in one.get("args", []) for found in re.findall(r"\$\((\w+)\)", argument)}
        given_names = set(environment(overlay, one))
        assert used <= given_names
        assert given_names <= used | read | set(settings(overlay)), f"nobody reads all that {name} is given"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_image_is_one_that_the_dockerfile_makes_in_one_version(overlay: str) -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    tag = re.search(r"^LOCKSTEP_TAG=(.*)$", (DEPLOY / ".env").read_text(), re.MULTILINE)
    assert tag is not None
    for pod in pods(overlay):
        for one in containers(pod):
            name, _, version = one["image"].partition(":")
            assert name.removeprefix("lockstep-") in stages, one["image"]
            assert version == tag[1], one["image"]


PIPELINE = "with-pipeline"


def test_the_pipeline_takes_its_arguments_and_writes_into_its_volume() -> None:
    one = container(PIPELINE, "pipeline")
    told = pipeline._parser().parse_args(arguments(PIPELINE, one))
    assert told.brokers == settings(PIPELINE)["LOCKSTEP_BROKERS"]
    assert told.master.startswith("k8s://https://") and told.follow
    mounts = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
    assert str(told.output).startswith(f"{mounts['tables']}/")


def test_another_image_of_the_pipeline_restarts_nobody_else() -> None:
    assert settings(PIPELINE) == settings("production")


def test_executors_are_of_the_drivers_image_and_reach_its_ports() -> None:
    one = container(PIPELINE, "pipeline")
    words = environment(PIPELINE, one, "lockstep-pipeline-0")["PYSPARK_SUBMIT_ARGS"].split()
    told = dict(word.split("=", 1) for word in words if word.startswith("spark."))
    told |= spark_defaults()
    assert told["spark.kubernetes.container.image"] == one["image"]
    assert told["spark.kubernetes.namespace"] == "lockstep"
    assert words[-1] == "pyspark-shell"
    ports = {int(told["spark.driver.port"]), int(told["spark.blockManager.port"])}
    assert ports == {port["containerPort"] for port in one["ports"]}
    (policy,) = (
        each for each in of_kind(PIPELINE, "NetworkPolicy") if each["metadata"]["name"] == "lockstep-pipeline"
    )
    assert ports == {port["port"] for port in policy["spec"]["ingress"][0]["ports"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
    assert environment(PIPELINE, one)["SPARK_CONF_DIR"] == mounts["spark"]
    file = Path(told["spark.kubernetes.executor.podTemplateFile"])
    assert str(file.parent) == mounts["spark"] and (SPARK / file.name).exists()


def spark_defaults() -> dict[str, str]:
    lines = (SPARK / "spark-defaults.conf").read_text().splitlines()
    pairs = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return {name: value.strip() for name, _, value in pairs}
