"""The compose files against the programs that they start: every argument is one of them, every port and name is said once."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.sdk import environment_variables

from lockstep.runtime.log_format import LOG_FORMAT
from lockstep.runtime.process import MALLOC_ENVIRONMENT
from lockstep.runtime.tracing import is_wanted
from services.broker import settings as broker
from services.coordinator import settings as coordinator
from services.pipeline import command as pipeline
from services.proxy import settings as proxy
from services.store import settings as store

DEPLOY = Path(__file__).parents[3] / "deploy"
FILES = ("compose.yaml", "compose.pipeline.yaml", "compose.observability.yaml")
PARSERS: Mapping[str, Callable[[list[str]], Any]] = {
    "store": store.parse_arguments,
    "broker": broker.parse_arguments,
    "coordinator": coordinator.parse_arguments,
    "proxy": proxy.parse_arguments,
    "pipeline": pipeline._parser().parse_args,
}


def read_environment() -> dict[str, str]:
    lines = (DEPLOY / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


ENVIRONMENT = read_environment()


def substituted(text: str) -> str:
    """As compose does it; a name that .env lacks raises KeyError."""
    return re.sub(r"\$\{(\w+)\}", lambda found: ENVIRONMENT[found[1]], text)


def services(*files: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        found |= yaml.safe_load(substituted((DEPLOY / file).read_text()))["services"]
    return found


ALL = services(*FILES)


def test_there_is_a_whole_cluster() -> None:
    kinds = [name.rstrip("-0123456789") for name in services("compose.yaml")]
    counts = {kind: kinds.count(kind) for kind in kinds}
    assert counts == {"etcd": 1, "store": 3, "broker": 3, "coordinator": 2, "proxy": 2, "sets": 1, "cli": 1}


@pytest.mark.parametrize("name", [name for name in ALL if name.rstrip("-0123456789") in PARSERS])
def test_each_program_takes_its_arguments(name: str) -> None:
    PARSERS[name.rstrip("-0123456789")](ALL[name]["command"])


def test_each_broker_has_the_store_whose_socket_it_shares() -> None:
    for number in "123":
        is_at, kept = f"socket-{number}:/run/lockstep", f"store-{number}:/var/lib/lockstep"
        assert ALL[f"broker-{number}"]["volumes"] == [is_at]
        assert ALL[f"store-{number}"]["volumes"] == [kept, is_at]
        listens = store.parse_arguments(ALL[f"store-{number}"]["command"]).listen
        given = broker.parse_arguments(ALL[f"broker-{number}"]["command"])
        assert (given.store, given.broker) == (listens, f"B{number}")
        assert given.advertise == f"broker-{number}:{ENVIRONMENT['LOCKSTEP_BROKER_PORT']}"


def test_a_health_check_asks_where_its_program_listens() -> None:
    for name, service in ALL.items():
        test = service.get("healthcheck", {}).get("test", [])
        if "lockstep.runtime.health_check" not in test:
            continue
        kind = name.rstrip("-0123456789")
        given = PARSERS[kind](service["command"])
        listens = given.health_listen if kind == "proxy" else given.listen
        assert test[-1] == listens.replace("0.0.0.0", "127.0.0.1")


def test_everything_that_goes_on_has_a_health_check_and_is_started_again() -> None:
    for name, service in ALL.items():
        if service["restart"] == "unless-stopped":
            assert service["healthcheck"]["test"], name
        else:
            assert name in {"sets", "cli"}


def test_what_is_waited_for_is_healthy_or_done() -> None:
    for name, service in ALL.items():
        for needed, condition in service.get("depends_on", {}).items():
            goes_on = ALL[needed]["restart"] == "unless-stopped"
            wanted = "service_healthy" if goes_on else "service_completed_successfully"
            assert condition == {"condition": wanted}, f"{name} needs {needed}"


def test_ports_are_published_on_the_loopback_only() -> None:
    published = [port for service in ALL.values() for port in service.get("ports", [])]
    assert len(published) == 4
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_nobody_has_rights_or_a_root_file_system_to_write() -> None:
    for name, service in ALL.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service and "user" not in service, name


def test_grafana_has_no_password_that_everybody_knows() -> None:
    given = ALL["grafana"]["environment"]
    assert given["GF_AUTH_DISABLE_LOGIN_FORM"] == "true" and given["GF_AUTH_BASIC_ENABLED"] == "false"


def test_logs_and_traces_are_as_the_environment_says() -> None:
    """Each name is one that a program reads, or its exporter of traces."""
    known = {LOG_FORMAT, "LOCKSTEP_LOG", *vars(environment_variables)}
    for name, service in services("compose.yaml").items():
        if name == "etcd":
            continue
        passed = {key for key, value in service["environment"].items() if value is None}
        switches = {key for key in passed if is_wanted({key: "otlp"})}
        assert LOG_FORMAT in passed and switches, name
        assert passed - switches <= known, name


def test_every_volume_is_named() -> None:
    named = {
        volume
        for file in FILES
        for volume in yaml.safe_load(substituted((DEPLOY / file).read_text())).get("volumes", {})
    }
    used = {mount.partition(":")[0] for service in ALL.values() for mount in service.get("volumes", [])}
    assert {name for name in used if not name.startswith("./")} == named


def test_prometheus_reads_every_program_that_has_figures() -> None:
    configuration = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    targets = {
        target
        for job in configuration["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    }
    assert targets == {"etcd:2379", *figures()}


def figures() -> Iterator[str]:
    for name, service in ALL.items():
        kind = name.rstrip("-0123456789")
        if "--metrics-port" in " ".join(service.get("command", [])):
            port = PARSERS[kind](service["command"]).metrics_port
            assert str(port) == ENVIRONMENT["LOCKSTEP_METRICS_PORT"]
            yield f"{name}:{port}"


def test_every_image_is_one_that_the_dockerfile_makes() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    for service in ALL.values():
        image = service["image"]
        if image == ENVIRONMENT["LOCKSTEP_GRAFANA_IMAGE"]:
            continue
        prefix, tag = f"{ENVIRONMENT['LOCKSTEP_IMAGE']}-", f":{ENVIRONMENT['LOCKSTEP_TAG']}"
        assert image.removeprefix(prefix).removesuffix(tag) in stages, image


def test_malloc_is_set_as_processes_want_it() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for name, value in MALLOC_ENVIRONMENT.items():
        assert f"{name}={value}" in text
