"""What holds for all tests: hypothesis profiles, marks by folder, one Spark session, no silent skips in CI, no long steps,
garbage collected between tests.

With CI=true a skipped test or module fails, unless tests/skips.txt lists it with its reason.
"""

import os
import shutil
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from lockstep.runtime.forking import collect_nothing_in_forks
from tests.garbage import Garbage
from tests.long_steps import LongSteps, read_known

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = Path(__file__).parent
IS_CI = os.environ.get("CI", "").lower() in {"1", "true"}

collect_nothing_in_forks()

# No test is timed: how long examples take to make says what else the machine does.
_UNTIMED = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("default", _UNTIMED, derandomize=IS_CI, print_blob=True)
hypothesis.settings.register_profile("fuzz", _UNTIMED, max_examples=20_000, print_blob=True)
hypothesis.settings.load_profile("default")


def read_allowed_skips(text: str) -> dict[str, str]:
    """The listed node ids with their reasons; a line without a reason raises ValueError."""
    allowed = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        node_id, separator, reason = (part.strip() for part in line.partition(" -- "))
        if not (node_id and separator and reason):
            raise ValueError(f"tests/skips.txt: expected 'node id -- reason', found {line!r}")
        allowed[node_id] = reason
    return allowed


def is_allowed_skip(node_id: str, allowed: dict[str, str]) -> bool:
    """Whether the list names this node, its class or its module ('@group' at its end is xdist's)."""
    parts = node_id.split("[")[0].split("@")[0].split("::")
    return any("::".join(parts[: count + 1]) in allowed for count in range(len(parts)))


ALLOWED_SKIPS = read_allowed_skips((TESTS / "skips.txt").read_text())


def _fail_unlisted_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not (IS_CI and report.outcome == "skipped") or hasattr(report, "wasxfail"):
        return
    if is_allowed_skip(report.nodeid, ALLOWED_SKIPS):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"skipped in CI, and tests/skips.txt does not list {report.nodeid}: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_unlisted_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_unlisted_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Marks by folder. What starts processes shares one xdist group: two clusters on two cores disturb each other.

    A wrapper, because xdist reads the marks in this very hook, as early as a hook can.
    """
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        is_on_processes = item.path.name.endswith("_on_processes.py") or item.path.parent.name == "amqp"
        if folder in {"integration", "chaos"} or (folder == "conformance" and is_on_processes):
            item.add_marker(pytest.mark.xdist_group("processes"))
        if folder in {"integration", "chaos"}:
            item.add_marker(getattr(pytest.mark, folder))
    yield


@pytest.fixture(scope="session")
def _garbage() -> Generator[Garbage]:
    garbage = Garbage()
    garbage.begin()
    yield garbage
    garbage.end()


@pytest.fixture(autouse=True)
def _collected_behind_a_test(_garbage: Garbage) -> Generator[None]:
    """No full collection within one, where it would seem to be a step of what is tested."""
    yield
    _garbage.collect()


@pytest.fixture(scope="session")
def _long_steps(tmp_path_factory: pytest.TempPathFactory) -> LongSteps:
    """What the event loops of this run did for too long, those of processes that it starts, too."""
    known = read_known((TESTS / "known_long_steps.txt").read_text())
    return LongSteps(tmp_path_factory.mktemp("long_steps"), known)


@pytest.fixture(autouse=True)
def _no_long_step(request: pytest.FixtureRequest, _long_steps: LongSteps) -> Generator[None]:
    """Fails a test in which a loop did one thing for too long."""
    yield
    _long_steps.end(request.node.nodeid)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Generator[SparkSession]":
    """The only one of a run of tests: its JVM starts for whoever asks first, and ends with the tests."""
    if shutil.which("java") is None:
        pytest.skip(
            "Spark needs Java 17 or newer, and there is none (Debian's package openjdk-17-jre-headless)"
        )
    from services.pipeline.session import make_session

    scratch = tmp_path_factory.mktemp("spark")
    settings = {
        # Few rows: the time goes into compiling and scheduling.
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session = make_session("local[2]", "tests", settings)
        yield session
        session.stop()
