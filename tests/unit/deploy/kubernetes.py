"""The Kubernetes manifests as kustomize renders them, and what tests ask of them."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import find_program

DEPLOY = Path(__file__).parents[3] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = tuple(sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml")))
WORKLOADS = ("StatefulSet", "Deployment")

Manifest = dict[str, Any]


def _kustomize() -> list[str]:
    """kustomize of its own, or kubectl's: the same renderer (components came with kubectl 1.21)."""
    if (kustomize := find_program("kustomize")) is not None:
        return [kustomize, "build"]
    if (kubectl := find_program("kubectl")) is not None:
        return [kubectl, "kustomize"]
    # Some modules render as they are imported.
    reason = "neither kustomize nor kubectl is here (scripts/setup.sh builds kustomize)"
    pytest.skip(reason, allow_module_level=True)


@cache
def rendered(overlay: str) -> tuple[Manifest, ...]:
    """All objects of an overlay."""
    return render(KUBERNETES / "overlays" / overlay)


def render(directory: Path) -> tuple[Manifest, ...]:
    """All objects of a kustomization."""
    result = subprocess.run([*_kustomize(), str(directory)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return tuple(yaml.safe_load_all(result.stdout))


def of_kind(overlay: str, *kinds: str) -> list[Manifest]:
    return [manifest for manifest in rendered(overlay) if manifest["kind"] in kinds]


def named(overlay: str, kind: str, name: str) -> Manifest:
    (found,) = (one for one in of_kind(overlay, kind) if one["metadata"]["name"] == name)
    return found


def pod_of(workload: Manifest) -> Manifest:
    pod: Manifest = workload["spec"]["template"]
    return pod


def containers(pod: Manifest) -> list[Manifest]:
    """Sidecars among them."""
    spec = pod["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def container(overlay: str, name: str) -> Manifest:
    """The one of this name, wherever it is."""
    (found,) = (one for pod in pods(overlay) for one in containers(pod) if one["name"] == name)
    return found


def pods(overlay: str) -> list[Manifest]:
    """Templates of all pods."""
    return [pod_of(workload) for workload in of_kind(overlay, *WORKLOADS)]


def settings(overlay: str) -> dict[str, str]:
    """What the ConfigMap says that all programs read."""
    (found,) = (
        one["metadata"]["name"]
        for one in of_kind(overlay, "ConfigMap")
        if re.fullmatch(r"lockstep-[0-9a-z]{10}", one["metadata"]["name"])
    )
    return data_of(overlay, found)


def data_of(overlay: str, config_map: str) -> dict[str, str]:
    data: dict[str, str] = named(overlay, "ConfigMap", config_map)["data"]
    return data


def environment(overlay: str, one: Manifest, pod_name: str = "lockstep-broker-1") -> dict[str, str]:
    """What a container finds in its environment, in the namespace `lockstep`."""
    fields = {
        "metadata.name": pod_name,
        "metadata.namespace": "lockstep",
        "status.podIP": "10.0.0.7",
    }
    found: dict[str, str] = {}
    for source in one.get("envFrom", []):
        found |= data_of(overlay, source["configMapRef"]["name"])
    for entry in one.get("env", []):
        if "value" in entry:
            found[entry["name"]] = substituted(entry["value"], found)
        elif "fieldRef" in entry["valueFrom"]:
            found[entry["name"]] = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            found[entry["name"]] = settings(overlay)[entry["valueFrom"]["configMapKeyRef"]["key"]]
    return found


def substituted(text: str, names: dict[str, str]) -> str:
    """As the kubelet does it; a name that is not there raises KeyError (the kubelet would leave it as it stands)."""
    return re.sub(r"\$\((\w+)\)", lambda found: names[found[1]], text)


def arguments(overlay: str, one: Manifest) -> list[str]:
    """Of a container's program."""
    names = environment(overlay, one)
    return [substituted(argument, names) for argument in one["args"]]


def selects(selector: Manifest | None, labels: dict[str, str]) -> bool:
    """Whether a label selector, as policies and workloads have it, matches; {} matches everything, None nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for one in selector.get("matchExpressions", []):
        assert one["operator"] == "In", one
        if labels.get(one["key"]) not in one["values"]:
            return False
    return True


def probes(one: Manifest) -> Iterator[tuple[str, Manifest]]:
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        if kind in one:
            yield kind, one[kind]
