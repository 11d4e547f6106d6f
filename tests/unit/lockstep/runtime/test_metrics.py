"""What /metrics says, against the register of names."""

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from lockstep.core.histogram import Histogram
from lockstep.runtime.metric_names import NAMES, Kind
from lockstep.runtime.metrics import Sample, Sampling

SERVICES = Path(__file__).parents[4] / "services"
OF_LOOPS = Path(__file__).parents[4] / "lockstep" / "runtime" / "loop_watch.py"
"""What each service shows of its event loop."""


async def shown(*samples: Sample) -> list[str]:
    """Lines of values."""
    registry = CollectorRegistry(auto_describe=False)
    loop = asyncio.get_running_loop()
    registry.register(Sampling(loop, [lambda: samples]))
    text = await loop.run_in_executor(None, generate_latest, registry)
    return [line for line in text.decode().splitlines() if not line.startswith("#")]


def told_by(service: str) -> Iterator[str]:
    """Names that the service's own code makes samples of, or its watch over the loop."""
    for path in (*(SERVICES / service).rglob("*.py"), OF_LOOPS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Sample":
                name = node.args[0]
                assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: names are written out"
                yield str(name.value)


@pytest.mark.parametrize("service", sorted({service for one in NAMES.values() for service in one.services}))
def test_each_service_makes_samples_of_what_is_registered_for_it_and_of_nothing_else(service: str) -> None:
    assert set(told_by(service)) == {one.name for one in NAMES.values() if service in one.services}


def test_names_say_what_they_are() -> None:
    for one in NAMES.values():
        assert re.fullmatch(r"lockstep(_[a-z]+)+", one.name)
        assert one.name.endswith("_total") == (one.kind is Kind.COUNTER)
        assert one.kind is not Kind.HISTOGRAM or one.name.endswith("_seconds")
        assert one.help.endswith(".")
        assert one.services


async def test_a_histogram_is_shown_with_ranges_that_include_those_below() -> None:
    histogram = Histogram((0.5, 1.0))
    for value in (0.25, 0.75, 0.75, 4.0):
        histogram.observe(value)
    assert await shown(Sample("lockstep_commit_seconds", histogram, {"set": "east"})) == [
        'lockstep_commit_seconds_bucket{le="0.5",set="east"} 1.0',
        'lockstep_commit_seconds_bucket{le="1.0",set="east"} 3.0',
        'lockstep_commit_seconds_bucket{le="+Inf",set="east"} 4.0',
        'lockstep_commit_seconds_count{set="east"} 4.0',
        'lockstep_commit_seconds_sum{set="east"} 5.75',
    ]


@pytest.mark.parametrize(
    "sample",
    [
        Sample("lockstep_epoch", 1.0),
        Sample("lockstep_epoch", 1.0, {"group": "east"}),
        Sample("lockstep_commit_seconds", 1.0, {"set": "east"}),
    ],
    ids=["a label lacks", "another label", "another kind"],
)
async def test_what_is_not_as_registered_is_not_shown(sample: Sample) -> None:
    with pytest.raises(AssertionError):
        await shown(sample)


async def test_a_name_that_is_not_registered_is_not_shown() -> None:
    with pytest.raises(KeyError):
        await shown(Sample("lockstep_other", 1.0))
