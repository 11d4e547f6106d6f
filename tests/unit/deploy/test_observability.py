"""The dashboard and the alert rules against the register of names: nothing is shown or alarmed on that no service tells."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.runtime.metric_names import NAMES, Kind
from tests.programs import find_program
from tests.unit.deploy.promql import Asked, Mismatch, labels_grouped_by, labels_of_result, metrics_in

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "observability/dashboards/lockstep.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "observability/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
RULE_TESTS = Path(__file__).with_name("alert_histories.yaml")
OF_SCRAPING = {"job", "instance"}
"""Labels that Prometheus adds."""
OTHERS = {"up", "process_resident_memory_bytes"}
"""Metrics of Prometheus itself, and of its client library."""
NETWORK = "lockstep_cluster"
"""What Docker calls the network of the compose files."""


def targets() -> Iterator[tuple[str, str, str]]:
    """(panel, expression, legend)."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


EXPRESSIONS = [
    *(pytest.param(expression, legend, id=f"panel {title}") for title, expression, legend in targets()),
    *(pytest.param(rule["expr"], " ".join(rule["annotations"].values()), id=rule["alert"]) for rule in RULES),
    pytest.param(DASHBOARD["annotations"]["list"][0]["expr"], "{{set}}", id="failovers"),
]


def labels_of(asked: Asked) -> set[str]:
    """What the metric has; fails for one that is not registered."""
    if asked.metric in OTHERS:
        return OF_SCRAPING
    found = NAMES.get(asked.metric)
    if found is not None:
        assert found.kind is not Kind.HISTOGRAM, f"{asked.metric} is a histogram: its _bucket, _sum or _count"
        return {*found.labels, *OF_SCRAPING}
    name, _, suffix = asked.metric.rpartition("_")
    assert name in NAMES, f"{asked.metric} is not registered"
    assert NAMES[name].kind is Kind.HISTOGRAM, f"{name} is no histogram"
    assert suffix in {"bucket", "sum", "count"}
    return {*NAMES[name].labels, *OF_SCRAPING, *({"le"} if suffix == "bucket" else ())}


@pytest.mark.parametrize(("expression", "text"), EXPRESSIONS)
def test_expressions_name_what_is_registered_with_the_labels_that_it_has(expression: str, text: str) -> None:
    found = list(metrics_in(expression))
    assert found, expression
    for asked in found:
        assert asked.labels <= labels_of(asked), f"{asked.metric} has no {asked.labels - labels_of(asked)}"
    everything = set.union(*(labels_of(asked) for asked in found))
    assert labels_grouped_by(expression) <= everything
    shown = set(re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", text)) | set(
        re.findall(r"\$labels\.(\w+)", text)
    )
    grouped = labels_grouped_by(expression)
    assert shown <= (grouped or everything), f"{shown} of {expression}"


@pytest.mark.parametrize(("expression", "text"), EXPRESSIONS)
def test_counters_are_read_by_their_growth(expression: str, text: str) -> None:
    for asked in metrics_in(expression):
        if asked.metric.endswith(("_total", "_bucket", "_count", "_sum")):
            read = rf"(?:rate|increase)\({re.escape(asked.metric)}(?:{{[^}}]*}})?\["
            assert re.search(read, expression), f"{asked.metric} in {expression}"


def labels_of_metric(name: str) -> set[str]:
    return labels_of(Asked(name, frozenset()))


@pytest.mark.parametrize(("expression", "text"), EXPRESSIONS)
def test_what_is_compared_has_the_same_labels(expression: str, text: str) -> None:
    found = labels_of_result(expression, labels_of_metric)
    assert found is not None, f"{expression} is a number"
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= found, f"{text} of {sorted(found)}"


@pytest.mark.parametrize(
    "expression",
    [
        "count by (set) (lockstep_epoch) > lockstep_in_sync_size",
        "lockstep_in_sync_size and sum by (set) (lockstep_epoch)",
        "lockstep_in_sync_size and on (queue) lockstep_epoch",
        "lockstep_epoch unless lockstep_lost_sets",
        "sum(lockstep_epoch) / sum by (set) (lockstep_epoch)",
    ],
)
def test_what_never_matches_is_found(expression: str) -> None:
    with pytest.raises(Mismatch):
        labels_of_result(expression, labels_of_metric)


def test_which_labels_count_may_be_said() -> None:
    for expression in (
        "lockstep_in_sync_size and on (set) (count by (set) (lockstep_epoch) > 2)",
        "lockstep_in_sync_size > on (set) count by (set) (lockstep_epoch)",
        "lockstep_epoch and ignoring (set) lockstep_lost_sets",
    ):
        assert labels_of_result(expression, labels_of_metric) is not None


def test_alerts_fire_when_they_should_and_stay_silent_otherwise() -> None:
    promtool = find_program("promtool")
    if promtool is None:
        pytest.skip("there is no promtool (scripts/setup.sh fetches one): the rules were not run")
    ran = subprocess.run(
        (promtool, "test", "rules", str(RULE_TESTS)), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_parentheses_are_closed() -> None:
    for _, expression, _ in targets():
        assert [expression.count(one) for one in "([{"] == [expression.count(one) for one in ")]}"]


def test_panels_lie_beside_each_other_and_have_names_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + line)
            for column in range(place["w"])
            for line in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_everything_is_read_from_the_data_source_that_is_provisioned() -> None:
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    (uid,) = (one["uid"] for one in source["datasources"])
    assert set(re.findall(r'"uid": "(\w+)"', json.dumps(DASHBOARD))) == {uid, DASHBOARD["uid"]}


def test_what_explains_a_failure_is_on_the_dashboard() -> None:
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", asked.metric)
        for _, expression, _ in targets()
        for asked in metrics_in(expression)
    }
    for name in (
        *("tx_open", "tx_prepared", "tx_in_doubt_oldest_seconds", "tx_total", "commit_seconds"),
        *("epoch", "in_sync_size", "in_sync_reachable", "commit_waiting_seconds"),
        *("fenced_requests_total", "failover_seconds", "session_resumes_total"),
        *("replication_lag_entries", "journal_fsync_seconds", "event_lag_entries"),
        *("queue_messages", "messages_enqueued_total", "messages_dequeued_total"),
    ):
        assert f"lockstep_{name}" in shown, name


def test_alerts_say_what_it_is_and_how_bad() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert re.fullmatch(r"Lockstep[A-Z]\w+", rule["alert"])
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description"}


def test_jobs_are_asked_for_by_the_names_that_they_have() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    jobs = {job["job_name"] for job in prometheus["scrape_configs"]}
    for _, expression, _ in targets():
        for asked in re.findall(r'job=~"([^"]*)"', expression):
            assert set(asked.split("|")) <= jobs, expression
    (down,) = (rule["expr"] for rule in RULES if rule["alert"] == "LockstepProcessDown")
    (asked,) = re.findall(r'^up{job=~"([^"]*)"} == 0$', down)
    assert set(asked.split("|")) == jobs, "of all processes, and of nobody else's"


def test_prometheus_and_grafana_find_them_where_compose_puts_them() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    compose = yaml.safe_load((DEPLOY / "compose.observability.yaml").read_text())["services"]
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/lockstep.yaml").read_text())
    (rules,), (source,) = prometheus["rule_files"], provider["providers"]
    assert f"./observability/alerts.yaml:{rules}:ro" in compose["prometheus"]["volumes"]
    assert f"./observability/dashboards:{source['options']['path']}:ro" in compose["grafana"]["volumes"]


def test_documents_name_what_is_registered() -> None:
    root = DEPLOY.parent
    documents = [root / "README.md", root / "ARCHITECTURE.md", *sorted((root / "docs").rglob("*.md"))]
    for document in documents:
        named = set(re.findall(r"`(lockstep_[a-z_]+)(?:{[^`]*)?`", document.read_text()))
        unknown = named - NAMES.keys() - {NETWORK}
        assert not unknown, f"{document.name}: {unknown}"
