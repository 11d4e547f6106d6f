"""Lines of the log, for people and for programs."""

import json
import logging
import re
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.core.effects import Note
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.inputs import Tick
from lockstep.runtime.driver import Driver
from lockstep.runtime.log_format import JsonFormatter, make_formatter, split_words

EAST = SetName("east")


def record(message: str, *arguments: object) -> logging.LogRecord:
    found = logging.LogRecord("lockstep.driver", logging.WARNING, __file__, 1, message, arguments, None)
    found.created, found.msecs = 1_700_000_000.25, 250.0
    return found


def as_json(found: logging.LogRecord) -> dict[str, object]:
    line = JsonFormatter().format(found)
    assert "\n" not in line
    read: dict[str, object] = json.loads(line)
    return read


def test_leading_words_become_keys_and_the_rest_is_text() -> None:
    line = as_json(
        record("set=%s epoch=%d index=%d event=refused transaction=%s no room", EAST, 3, 17, "east/9.3")
    )
    assert line == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "WARNING",
        "logger": "lockstep.driver",
        "set": "east",
        "epoch": 3,
        "index": 17,
        "event": "refused",
        "transaction": "east/9.3",
        "text": "no room",
    }


def test_a_word_in_the_text_is_no_key() -> None:
    assert split_words("event=x why not=this") == ({"event": "x"}, "why not=this")


def test_nobody_can_say_who_logged_or_say_a_thing_twice() -> None:
    assert split_words("event=x level=DEBUG") == ({"event": "x"}, "level=DEBUG")
    assert split_words("event=x event=y") == ({"event": "x"}, "event=y")


def test_a_traceback_is_one_value() -> None:
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        found = record("event=failed")
        found.exc_info = sys.exc_info()
    assert "RuntimeError: broken" in str(as_json(found)["error"])


def test_there_are_two_forms() -> None:
    assert isinstance(make_formatter("json"), JsonFormatter)
    assert make_formatter("text").format(record("event=x")).endswith("WARNING lockstep.driver event=x")
    with pytest.raises(ValueError, match="text or json, not 'xml'"):
        make_formatter("xml")


class Noting:
    """A core that has something to say."""

    place = Epoch(4), LogIndex(9)

    def handle(self, given: object, now: object, more_follow: bool = False) -> list[Note]:
        return [Note(EAST, "backup lost", "B3")]


async def test_what_a_core_notes_is_logged_with_its_place_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "lockstep.driver")
    driver = Driver()
    driver.host(EAST, Noting())  # type: ignore[arg-type]
    driver.feed(Tick(EAST))
    driver.drain()
    assert caplog.messages == ["set=east epoch=4 index=9 event=backup_lost B3"]


FORGED = "evil\n2026-01-01T00:00:00.000 CRITICAL lockstep.cluster set=main event=data_loss_accepted"
OBEYED = [
    chr(code)
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x2028, 0x202E, 0x2066, 0xFEFF, 0xD800)
]


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("character", OBEYED, ids=ascii)
@pytest.mark.parametrize("message", ["event=subscribed broker=%s", "%s", "event=refused why: %s"])
def test_nothing_that_a_peer_says_ends_a_line_or_moves_a_terminal(
    form: str, character: str, message: str
) -> None:
    line = make_formatter(form).format(record(message, f"a{character}b"))
    assert len(line.splitlines()) == 1 and character not in line
    assert line.encode().decode() == line and "a" in line and "b" in line


def test_what_a_program_reads_of_a_line_is_what_was_said() -> None:
    assert as_json(record("%s", "a\n\x9b\u2028b"))["text"] == "a\n\x9b\u2028b"


def test_a_line_cannot_be_forged() -> None:
    line = make_formatter("text").format(record("event=subscribed %s by log", FORGED))
    assert line.splitlines() == [line] and r"evil\x0a2026" in line


def test_neither_can_it_by_an_error_and_its_traceback() -> None:
    try:
        raise RuntimeError(FORGED)
    except RuntimeError:
        found = record("failed")
        found.exc_info = sys.exc_info()
    found.stack_info = f"Stack\n{FORGED}"
    first, *others = make_formatter("text").format(found).splitlines()
    assert first.endswith("lockstep.driver failed") and others
    assert all(line.startswith("  | ") for line in others)


def test_characters_of_all_languages_stay() -> None:
    text = "größe 漢字 עברית \N{GRINNING FACE}"
    assert make_formatter("text").format(record("%s", text)).endswith(text)


def test_every_process_writes_its_log_by_one_of_these_forms() -> None:
    """Another formatter, or a handler without one, would write what peers say as it is."""
    root = Path(lockstep.__file__).parents[1]
    makers = re.compile(r"logging\.(Formatter|[A-Za-z.]*Handler|basicConfig)\(|\.setFormatter\(")
    found = {
        str(path.relative_to(root))
        for folder in ("lockstep", "services")
        for path in (root / folder).rglob("*.py")
        if makers.search(path.read_text())
    }
    assert found == {"lockstep/runtime/process.py"}
    assert "setFormatter(make_formatter())" in (root / "lockstep/runtime/process.py").read_text()
