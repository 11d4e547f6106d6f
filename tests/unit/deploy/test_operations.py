"""docs/operations.md against what there is: its commands, the objects that they name, the files that it shows."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.unit.deploy.command_lines import parsed
from tests.unit.deploy.kubernetes import (
    DEPLOY,
    KUBERNETES,
    WORKLOADS,
    containers,
    environment,
    of_kind,
    pod_of,
    pods,
    render,
    selects,
)
from tests.unit.deploy.test_kubernetes_manifests import VERSION

PAGE = (DEPLOY.parent / "docs" / "operations.md").read_text()
OVERLAY = "production"
VERBS = {"apply", "delete", "drain", "exec", "patch", "rollout", "scale", "set", "wait"}


def blocks(language: str) -> list[str]:
    """Contents of the fenced blocks of a language, without the indentation of a list."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    return ["\n".join(line.removeprefix(indent) for line in text.splitlines()) for indent, text in found]


LINES = [line for block in blocks("sh") for line in block.splitlines()]


def of_lockstep() -> Iterator[list[str]]:
    """Words behind each `lockstep`, in blocks and in the text."""
    for line in LINES:
        _, separator, inside = line.partition(" -- lockstep ")
        if separator:
            yield shlex.split(inside)


def names() -> set[str]:
    """kind/name of what the overlay makes, and pods and volumes that the controllers make of it."""
    found = set()
    for workload in of_kind(OVERLAY, *WORKLOADS):
        name = workload["metadata"]["name"]
        found.add(f"{workload['kind'].lower()}/{name}")
        for template in workload["spec"].get("volumeClaimTemplates", []):
            for number in range(workload["spec"]["replicas"]):
                found |= {f"pod/{name}-{number}", f"pvc/{template['metadata']['name']}-{name}-{number}"}
    return found


def test_the_page_has_commands() -> None:
    assert len(LINES) > 30 and len(list(of_lockstep())) > 12


@pytest.mark.parametrize("words", list(of_lockstep()), ids=" ".join)
def test_each_command_is_one_of_lockstep(words: list[str]) -> None:
    parsed(words)


def test_a_command_that_there_is_not_would_be_found() -> None:
    with pytest.raises(LookupError):
        parsed(["cluster", "repair"])
    with pytest.raises(Exception, match="bogus"):
        parsed(["status", "--bogus"])


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("kubectl ")])
def test_each_kubectl_names_what_there_is(line: str) -> None:
    words = shlex.split(line.partition(" -- ")[0])[1:]
    if words[0] == "-n":
        assert words[1] == "lockstep"
        words = words[2:]
    verb, *rest = words
    assert verb in VERBS
    known = names()
    for kind, name in re.findall(r"\b(statefulset|deployment|pod|pvc)/(\S+)", line):
        assert f"{kind}/{name}" in known
    if verb == "exec":
        assert f"pod/{rest[0]}" in known
        (pod,) = (
            one
            for one in pods(OVERLAY)
            if any(rest[0].startswith(f"lockstep-{each['name']}-") for each in containers(one))
        )
        if "-c" in rest:
            assert rest[rest.index("-c") + 1] in {one["name"] for one in containers(pod)}
        else:
            assert len(containers(pod)) == 1
    if verb in {"delete", "patch"} and rest[0] != "node":
        kind, objects = rest[0], [word for word in rest[1:] if word.startswith(("lockstep-", "data-"))]
        assert objects or "-l" in rest
        assert {f"{kind}/{name}" for name in objects} <= known
    if "-l" in rest:
        key, _, value = rest[rest.index("-l") + 1].partition("=")
        assert any(selects({"matchLabels": {key: value}}, pod["metadata"]["labels"]) for pod in pods(OVERLAY))
    if "-k" in rest:
        assert f"# {rest[rest.index('-k') + 1]}/kustomization.yaml" in PAGE
    if "-f" in rest:
        assert f"# {rest[rest.index('-f') + 1]}\n" in PAGE
    if verb == "set" and rest[0] == "env":
        name = rest[1].partition("/")[2]
        (workload,) = (one for one in of_kind(OVERLAY, *WORKLOADS) if one["metadata"]["name"] == name)
        variables = {key for one in containers(pod_of(workload)) for key in environment(OVERLAY, one)}
        assert rest[2].partition("=")[0] in variables


def test_other_commands_are_scripts_of_the_repository() -> None:
    others = [shlex.split(line)[0] for line in LINES if not line.startswith("kubectl ")]
    assert set(others) == {"deploy/build-images.sh", "deploy/kubernetes/replace-etcd-member.sh"}
    assert all((DEPLOY.parent / program).stat().st_mode & 0o100 for program in others)


def test_brokers_are_never_given_ten_minutes_before_they_are_deleted() -> None:
    """The kubelet waits for a `preStop` as long as the first deletion said; a later one does not shorten it."""
    assert not [line for line in LINES if "statefulset/lockstep-broker --replicas=0" in line]
    stops = [number for number, line in enumerate(LINES) if "component=broker --grace-period=20" in line]
    assert len(stops) == 2
    for number in stops:
        assert LINES[number - 1].endswith("delete statefulset lockstep-broker --cascade=orphan")


def test_what_the_pods_of_a_host_ask_for_fits_the_smallest_host() -> None:
    (found,) = re.findall(
        r"smallest host has (\d+) processors and (\d+) GiB: what its pods ask for \(([\d.]+) processors and (\d+) GiB",
        PAGE,
    )
    processors, memory, asked_processors, asked_memory = map(float, found)
    most = {"broker": 1, "etcd": 1, "proxy": 2, "coordinator": 2}
    """Pods of a kind on one host: while it stands in for another, and proxies are replaced by one more."""
    asked = {"cpu": 0.0, "memory": 0.0}
    for pod in pods(OVERLAY):
        for one in containers(pod):
            for kind, quantity in one["resources"]["requests"].items():
                asked[kind] += most[pod["metadata"]["labels"]["app.kubernetes.io/component"]] * amount(
                    quantity
                )
    assert (round(asked["cpu"], 3), asked["memory"]) == (asked_processors, asked_memory)
    assert asked["cpu"] <= 0.8 * processors and asked["memory"] <= 0.7 * memory, "the rest is Kubernetes'"


def amount(quantity: str) -> float:
    """Processors, or GiB."""
    units = {"Gi": 1.0, "Mi": 1 / 1024, "m": 0.001, "": 1.0}
    number, unit = re.fullmatch(r"([\d.]+)(Gi|Mi|m|)", quantity).groups()  # type: ignore[union-attr]
    return float(number) * units[unit]


def test_the_overlay_that_it_shows_is_one(tmp_path: Path) -> None:
    (text,) = (block for block in blocks("yaml") if "kustomization.yaml" in block.splitlines()[0])
    copy = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    mine = copy / Path(text.splitlines()[0].removeprefix("# ")).relative_to("deploy/kubernetes")
    mine.parent.mkdir()
    mine.write_text(text)
    images = []
    for manifest in render(mine.parent):
        kubernetes_validate.validate(manifest, VERSION, strict=True)
        if manifest["kind"] in WORKLOADS:
            images += [one["image"] for one in containers(pod_of(manifest))]
    assert len(images) == 5
    assert all(image.startswith("images.example/lockstep-") and image.endswith(":0.1.0") for image in images)


def test_the_volume_that_it_restores_is_one_of_the_cluster() -> None:
    (claim,) = (
        block for block in map(yaml.safe_load, blocks("yaml")) if block["kind"] == "PersistentVolumeClaim"
    )
    kubernetes_validate.validate(claim, VERSION, strict=True)
    assert f"pvc/{claim['metadata']['name']}" in names()
    (snapshot,) = (
        block for block in map(yaml.safe_load, blocks("yaml")) if block["kind"] == "VolumeSnapshot"
    )
    assert f"pvc/{snapshot['spec']['source']['persistentVolumeClaimName']}" in names()
    assert claim["spec"]["dataSource"]["name"] == snapshot["metadata"]["name"]


def test_ports_and_addresses_are_those_of_the_services() -> None:
    services = {one["metadata"]["name"]: one["spec"]["ports"] for one in of_kind(OVERLAY, "Service")}
    found = re.findall(r"`([a-z-]+)\.lockstep\.svc:(\d+)`", PAGE)
    assert len(found) == 2
    for name, port in found:
        assert int(port) in {one["port"] for one in services[name]}


def test_links_lead_somewhere() -> None:
    titles = {
        re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        if target.startswith("#"):
            assert target[1:] in titles
        else:
            assert (DEPLOY.parent / "docs" / target).exists(), target
