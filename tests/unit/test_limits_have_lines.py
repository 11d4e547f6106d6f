"""Every limit that refuses something has its line in the log (CONVENTIONS, Failure): the code is searched for those without.

Law: a place that compares something with a limit (a name that ends in `_max`) and refuses it then raises `LimitReached`, tells a
`LimitLog`, or stands in `QUIET` with its reason. So does every limit of the settings. What is no more there stands in no table.
"""

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from services.backup.core.settings import BackupSettings
from services.broker.caller_limits import CallerLimits
from services.coordinator.core.settings import CoordinatorLimits
from services.coordinator.settings import CoordinatorSettings
from services.postgres_participant.settings import ParticipantSettings
from services.primary.core.settings import PrimarySettings
from services.proxy.settings import ProxyLimits
from services.store.core.limits import StoreLimits
from services.store.settings import StoreSettings

ROOT = Path(__file__).parents[2]
NOT_SERVING = ("lockstep/cli", "lockstep/client", "lockstep/wire", "services/pipeline")
"""Programs of users: they tell the one who runs them."""

REFUSING = "refus", "reject", "turn_away", "push_back", "abort", "close", "reset_stream", "end_link"
"""In the name of what is called where something is refused."""
NOTING = {"LimitReached", "TooCostly", "refused", "note_refusal", "_note_refusal"}
"""Who calls one of these has a line in the log."""
WRONG_ARGUMENTS = {
    "INVALID_ARGUMENT",
    "ValueError",
    "ArgumentTypeError",
    "MalformedFrame",
    "bad_selector",
    "invalid",
    "malformed",
}
"""Named where something is no such thing at all, however much room there is: its sender is told."""

ITSELF = "it has a line of its own"
CALLER = "whoever called has it logged"
PUSHED_BACK = "its sender says it again, and waits meanwhile"
QUEUE = "a queue's own limit, set by who declared it; its senders are told"
PROTOCOL = "a peer that breaks the protocol: its connection, or link, ends with the reason"
AGE = "it is too late, not too much"
OURS = "no refusal: work is cut"

QUIET = {
    "lockstep/runtime/store_client.py WAITING_BYTES_MAX": ITSELF,
    "lockstep/transport/http2.py FIELDS_BYTES_MAX": CALLER,
    "lockstep/transport/http2.py TABLE_CHANGES_MAX": CALLER,
    "lockstep/transport/inflating.py bytes_max": CALLER,
    "services/coordinator/core/closing.py age_ms_max": AGE,
    "services/primary/core/backups.py catching_up_bytes_max": ITSELF,
    "services/primary/core/clients.py uncommitted_bytes_max": PUSHED_BACK,
    "services/primary/core/primary.py uncommitted_bytes_max": OURS,
    "services/primary/core/publishing.py bytes_max": QUEUE,
    "services/primary/core/publishing.py length_max": QUEUE,
    "services/proxy/coordinator_link.py _MESSAGE_BYTES_MAX": PROTOCOL,
    "services/proxy/security/sasl_layer.py CHALLENGES_MAX": PROTOCOL,
}
"""File and limit -> why a refusal there has no line of this kind."""


@cache
def sources() -> dict[str, ast.Module]:
    """Of everything that serves somebody and has to do with limits, by path."""
    found = {}
    for top in ("lockstep", "services"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            text = path.read_text()
            if not name.startswith(NOT_SERVING) and ("_max" in text or "_MAX" in text):
                found[name] = ast.parse(text)
    return found


def names_in(node: ast.AST) -> Iterator[str]:
    """Variables, attributes, and what is called."""
    for found in ast.walk(node):
        if isinstance(found, ast.Name):
            yield found.id
        elif isinstance(found, ast.Attribute):
            yield found.attr


def refusals(module: ast.Module) -> Iterator[tuple[str, bool]]:
    """(limit, whether it has a line) of each place that refuses something by a limit."""
    functions = {
        found.name: found
        for found in ast.walk(module)
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for found in ast.walk(module):
        if not isinstance(found, ast.If):
            continue
        limits = [name for name in names_in(found.test) if name.lower().endswith("_max")]
        if not limits:
            continue
        body = ast.Module(found.body, [])
        names = set(names_in(body))
        is_refusal = any(isinstance(one, ast.Raise) and one.exc is not None for one in ast.walk(body)) or any(
            part in name for name in names for part in REFUSING
        )
        if not is_refusal or names & WRONG_ARGUMENTS:
            continue
        for name in [name for name in names if name in functions]:
            names |= set(names_in(functions[name]))
        for limit in limits:
            yield limit, bool(names & NOTING)


def test_whoever_refuses_by_a_limit_has_it_logged() -> None:
    found = {
        f"{path} {limit}"
        for path, module in sources().items()
        for limit, has_line in refusals(module)
        if not has_line
    }
    assert found == set(QUIET)


REFUSE = """
def checked(self, size):
    if size > self.room_max:
        {refusal}

def told(text):
    {helper}
"""


@pytest.mark.parametrize(
    ("refusal", "helper", "is_found"),
    [
        ("raise Rejected(ErrorCode.UNAVAILABLE, 'full')", "pass", True),
        ("self.streams.turn_away('full')", "pass", True),
        ("raise LimitReached('room_max', ErrorCode.UNAVAILABLE, 'full')", "pass", False),
        ("raise told('full')", "return Rejected(ErrorCode.UNAVAILABLE, text)", True),
        ("raise told('full')", "return LimitReached('room_max', ErrorCode.UNAVAILABLE, text)", False),
        ("self.log.refused('room_max', 'full'); self.close()", "pass", False),
        ("raise ValueError('long')", "pass", False),
        ("size = self.room_max", "pass", False),
    ],
)
def test_a_refusal_without_a_line_is_found(refusal: str, helper: str, is_found: bool) -> None:
    module = ast.parse(REFUSE.format(refusal=refusal, helper=helper))
    assert [limit for limit, has_line in refusals(module) if not has_line] == ["room_max"] * is_found


SETTINGS = (
    BackupSettings,
    CallerLimits,
    CoordinatorLimits,
    CoordinatorSettings,
    ParticipantSettings,
    PrimarySettings,
    ProxyLimits,
    StoreLimits,
    StoreSettings,
)
OTHER_WORDS = {
    (CallerLimits, "unanswered_max"): "caller_unanswered_max",
    (CallerLimits, "sessions_max"): "caller_sessions_max",
    (CallerLimits, "transactions_max"): "caller_transactions_max",
    (PrimarySettings, "early_messages_max"): "early_messages",
    (PrimarySettings, "early_bytes_max"): "early_messages",
    (ProxyLimits, "connections_max"): "connections",
    (ProxyLimits, "arrivals_max"): "arrivals",
}
"""What the log calls them."""
REFUSE_NOTHING: dict[str, dict[type, str]] = {
    "work is done in pieces of this size, or so much at a time": {
        CallerLimits: "acquired_bytes_max",
        CoordinatorLimits: "in_doubt_warnings_max recovered_max",
        CoordinatorSettings: "calls_max",
        ParticipantSettings: "connections_max orphans_max",
        PrimarySettings: "browse_bytes_max browse_messages_max claims_ahead_max decisions_asked_max deliveries_max"
        " delivery_batch_max delivery_bytes_max delivery_turn_max described_bindings_max expiry_batch_max"
        " frames_in_flight_max given_back_max"
        " in_doubt_warnings_max names_batch_max outcome_sweep_max reading_bytes_max reading_messages_max readings_in_flight_max"
        " recover_branches_max session_ends_max time_outs_max",
        ProxyLimits: "attaching_max delivery_bytes_max delivery_credit_max",
        StoreLimits: "batch_items_max contents_max group_bytes_max group_frames_max",
    },
    "whoever has it waits, is not read, or is sent nothing for a while": {
        PrimarySettings: "gathering_ms_max uncommitted_bytes_max",
        ProxyLimits: "deliveries_bytes_max output_bytes_max unanswered_bytes_max waiting_bytes_max",
        StoreLimits: "chunks_unsent_max",
        StoreSettings: "waiting_bytes_max",
    },
    "what is above it is taken for it": {
        CallerLimits: "session_timeout_ms_max",
        PrimarySettings: "consumer_credit_max session_timeout_ms_max",
        ProxyLimits: "branch_seconds_max wide_seconds_max",
    },
    "the oldest goes, and may be asked for elsewhere": {
        BackupSettings: "resident_body_bytes_max retained_bytes_max",
        CoordinatorLimits: "open_max",
        PrimarySettings: "outcomes_kept_max outcomes_max retained_bytes_max",
        StoreLimits: "owed_bytes_max unflushed_items_max unflushed_quiet_items_max",
    },
    "a time after which something of our own is tried again or given up": {
        BackupSettings: "subscribe_patience_ms_max",
        CoordinatorLimits: "hold_ms_max recovery_rest_ms_max retry_ms_max",
        StoreLimits: "silent_ticks_max",
    },
    "nothing is so, however much room there is: who says it is told": {
        CallerLimits: "acquired_max transaction_timeout_ms_max wait_ms_max",
        CoordinatorLimits: "name_bytes_max open_ms_max",
        PrimarySettings: "branch_timeout_ms_max name_bytes_max",
        ProxyLimits: "channels_max frame_bytes_max",
    },
    "a newcomer that is too slow has a line of its own": {PrimarySettings: "catching_up_bytes_max"},
}
"""Why those that refuse nothing by how much there is have no line of this kind."""


def said() -> set[str]:
    """All words that may be those by which refusals are logged."""
    return {
        found.value
        for module in sources().values()
        for found in ast.walk(module)
        if isinstance(found, ast.Constant) and isinstance(found.value, str) and found.value.isidentifier()
    }


def test_every_limit_of_the_settings_has_a_line_or_refuses_nothing() -> None:
    quiet = {
        (kind, name)
        for kinds in REFUSE_NOTHING.values()
        for kind, names in kinds.items()
        for name in names.split()
    }
    words = said()
    for kind in SETTINGS:
        for name in [field.name for field in fields(kind) if field.name.endswith("_max")]:
            has_word = OTHER_WORDS.get((kind, name), name) in words
            is_quiet = (kind, name) in quiet
            quiet.discard((kind, name))
            assert has_word or is_quiet, f"{kind.__name__}.{name} refuses something in silence"
    assert not quiet, "not there any more"
