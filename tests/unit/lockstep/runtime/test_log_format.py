"""Lines of the log, for people and for programs."""

import json
import logging
import sys

import pytest

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
