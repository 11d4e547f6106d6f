"""Documents: events, alerts and settings that they name are there, and the figures of limits are those of the settings."""

import re
from pathlib import Path

import pytest
import yaml

from lockstep.core.deaths import DEATHS_MAX
from lockstep.runtime.client_message_codec import HEADERS_MAX
from lockstep.runtime.field_limit import FIELDS_MAX
from lockstep.transport.calls_offered import CALLS_OFFERED
from lockstep.transport.inflating import INFLATED_BYTES_MAX
from services.backup.core.faults import REST_MS, REST_MS_MAX
from services.backup.core.settings import BackupSettings
from services.coordinator.core.settings import CoordinatorLimits
from services.primary.core.settings import PrimarySettings
from services.primary.core.settling import ANNOTATIONS_BYTES_MAX
from services.proxy.settings import ProxyLimits
from services.store.core.limits import StoreLimits

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONVENTIONS.md", "docs/operations.md")]
SOURCES = [path for folder in ("lockstep", "services") for path in sorted((ROOT / folder).rglob("*.py"))]
PRIMARY, PROXY = PrimarySettings(), ProxyLimits()
WORDS = {500: "half a second", 5_000: "five seconds", 60_000: "a minute"}
"""For milliseconds."""
UNASKED = f"in hand for more than {WORDS[CoordinatorLimits().unasked_ms]}"


def text_of(name: str) -> str:
    """With each run of white space as one blank: figures stand at ends of lines, too."""
    return " ".join((ROOT / name).read_text().split())


def mib(size: int) -> str:
    assert size % 2**20 == 0
    return f"{size >> 20} MiB"


def test_events_that_documents_name_are_said() -> None:
    """By a line of the log, or by a note of a core, which has blanks."""
    source = "".join(path.read_text() for path in SOURCES)
    for document in DOCUMENTS:
        for event in sorted(set(re.findall(r"event=([a-z_]+)", document.read_text()))):
            ways = (f"event={event}", f'"{event}"', f'"{event.replace("_", " ")}"')
            is_said = any(way in source for way in ways)
            assert is_said, f"{document.name}: {event}"


def test_alerts_that_documents_name_are_there() -> None:
    rules = yaml.safe_load((ROOT / "deploy/observability/alerts.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    for document in DOCUMENTS:
        unknown = set(re.findall(r"`(Lockstep[A-Z][A-Za-z]+)`", document.read_text())) - alerts
        assert not unknown, f"{document.name}: {unknown}"


README = [
    f"A connection is offered {CALLS_OFFERED} calls at once",
    f"(compressed ones up to {mib(INFLATED_BYTES_MAX)})",
    f"a request of more than {FIELDS_MAX:,} fields",
    f"A publish has {HEADERS_MAX:,} headers at most",
    f"for whoever gets it next, up to {ANNOTATIONS_BYTES_MAX >> 10} KiB of a message",
    f"open for {PROXY.transaction_seconds:g} seconds (`--transaction-seconds`)",
    f"none has more than {PROXY.wide_seconds_max:g} seconds from when it touches the second one",
    f"no credit or room for after {PROXY.hold_seconds:g} seconds (`--hold-seconds`)",
    f"says nothing at all after {PROXY.idle_seconds:g} seconds (`--idle-seconds`)",
    f"a worker holds {mib(PROXY.unanswered_bytes_max)} of its clients' messages",
    f"a worker holds {mib(PROXY.outputs_bytes_max)}, a connection {mib(PROXY.connection_output_bytes_max)} of it, "
    f"a session {mib(PROXY.output_bytes_max)} of that",
    f"of which a part has come a worker holds {mib(PROXY.partials_bytes_max)}, a connection "
    f"{mib(PROXY.partial_bytes_max)} of it",
    f"at most {PROXY.links_max:,} links, {PROXY.receivers_max} of them to receive on",
    f"**A message goes to {PRIMARY.message_queues_max:,} queues at most** (`message_queues_max`)",
    f"more than {PRIMARY.message_queues_max:,} queues (`message_queues_max`) goes to the {PRIMARY.message_queues_max:,} that",
    f"Keys and patterns have at most {PRIMARY.name_bytes_max} bytes",
    f"those of one message have at most {mib(PRIMARY.command_bytes_max)} together",
    f"the {DEATHS_MAX} that matter",
    UNASKED,
    f"{StoreLimits().owed_bytes_max >> 30} GiB (`--owed-bytes-max` of a store)",
    f"keeps up to {mib(BackupSettings().resident_body_bytes_max)} of message content per resource set in memory",
]
OPERATIONS = [
    f"one of {PRIMARY.subscriptions_max} in each set",
    f"ends a transaction of {PRIMARY.transaction_operations_max:,} operations",
    UNASKED,
    f"begins anew from its disk, {WORDS[REST_MS]} later, and up to {WORDS[REST_MS_MAX]} later",
]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [*(("README.md", one) for one in README), *(("docs/operations.md", one) for one in OPERATIONS)],
)
def test_figures_of_limits_are_those_of_the_settings(document: str, sentence: str) -> None:
    assert sentence in text_of(document)
