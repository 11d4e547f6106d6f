"""What a stranger can cause once for each connection, call or frame has a line a minute at most: the code is searched for others.

Law: whoever serves strangers logs by a `LimitLog`. A line that is logged at once stands in `AT_ONCE`, with why no stranger can
fill the log with it. What is no more there stands in no table.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVING = (
    "lockstep/runtime/rpc.py",
    "lockstep/transport",
    "services/coordinator",
    "services/primary",
    "services/proxy",
    "services/store",
)
LEVELS = {"info", "warning", "error", "exception", "critical", "log"}

AT_ONCE: dict[str, str] = {
    "a process begins and ends, and loses its etcd": """
        services/coordinator/presence.py event=etcd_unreachable
        services/coordinator/presence.py event=lease_left
        services/coordinator/presence.py event=presence_lost
        services/coordinator/presence.py event=registered
        services/coordinator/server.py event=ready
        services/coordinator/server.py event=stopped
        services/coordinator/server.py event=stopping
        services/proxy/server.py event=ready
        services/proxy/server.py event=stopped
        services/proxy/server.py event=stopping
        services/proxy/server.py event=worker_exited
        services/store/server.py event=ready
        services/store/server.py event=stopped
    """,
    "an operator has changed a file": """
        services/proxy/security/tls_files.py event=certificates_not_read
        services/proxy/security/tls_files.py event=certificates_read
        services/proxy/security/users_file.py users
    """,
    "an operator has to do something about each": """
        services/coordinator/driver.py transaction=%s
        services/coordinator/log_changes.py event=entry_not_understood
    """,
    "of sets, disks and brokers": """
        services/primary/server.py event=backup_too_slow
        services/store/server.py set=%s
    """,
    "once while it lasts": "services/primary/long_requests.py ?",
}
"""Why -> file and event, or the first word of its line."""


def lines_of(module: ast.Module) -> Iterator[str]:
    """The event, or the first word, of each line that is logged at once."""
    for found in ast.walk(module):
        if not (isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute)):
            continue
        of = found.func.value
        if found.func.attr in LEVELS and isinstance(of, ast.Name) and of.id.lstrip("_") in ("log", "logging"):
            words = [
                word
                for argument in ast.walk(ast.Module([ast.Expr(one) for one in found.args], []))
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                for word in argument.value.split()
            ]
            events = [word for word in words if word.startswith("event=") and "%" not in word]
            yield (events or words or ["?"])[0]


def test_what_a_stranger_can_cause_again_and_again_fills_no_log() -> None:
    found = set()
    for top in SERVING:
        place = ROOT / top
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            found |= {f"{path.relative_to(ROOT)} {line}" for line in lines_of(ast.parse(path.read_text()))}
    known = {line.strip() for lines in AT_ONCE.values() for line in lines.split("\n") if line.strip()}
    assert found == known


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('_log.warning("peer=%s event=login_failed", peer)', ["event=login_failed"]),
        ('_log.exception("a call failed")', ["a"]),
        ('_log.log(level, "set=%s event=%s", name, event)', ["set=%s"]),
        ('text = "event=x"; _log.info(text)', ["?"]),
        ('refusals.seldom("login_failed", peer)', []),
        ('_log.debug("event=no_answer")', []),
    ],
)
def test_lines_that_are_logged_at_once_are_found(code: str, found: list[str]) -> None:
    assert list(lines_of(ast.parse(code))) == found
