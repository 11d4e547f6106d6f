"""How a line of the log looks: words `key=value` and then text for people, or one JSON object for programs.

Law: a record is the same in both; keys do not depend on the form. `set`, `epoch`, `index`, `transaction`, `broker` and `event`
mean the same wherever they stand; `epoch` and `index` are numbers, everything else is text. What is logged is one line, whatever
peers and clients have put into it: nothing that a terminal obeys leaves this process, and only a traceback goes on behind its
line, each of its own with a bar in front.
"""

import json
import logging
import os
import re
import time
from typing import Any

LOG_FORMAT = "LOCKSTEP_LOG_FORMAT"
"""Environment variable: `text` (the default) or `json`."""

_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Control characters, line separators, what turns the direction of writing, and halves of characters, which no stream takes."""
_TRACEBACK_LINE = "  | "
_WORD = re.compile(r"([a-z][a-z_]*)=(\S*)(?:\s+|$)")
_OWN = {"time", "level", "logger", "text", "error"}
"""Keys that the formatter gives; a word of that name is text."""
_NUMBERS = {"epoch", "index"}


def printable(text: str) -> str:
    """The text with everything escaped that is no character to be seen: it is one line, and does nothing to a terminal."""
    return _OBEYED.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class TextFormatter(logging.Formatter):
    """One line: time, level, logger and the message; a traceback in lines of its own behind it."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
        )

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging calls it so
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging calls it so
        return _barred(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging calls it so
        return _barred(stack_info)


def _barred(text: str) -> str:
    return "\n".join(_TRACEBACK_LINE + printable(line) for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `logger`, the message's leading words, `text`, and `error`: a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        words, text = split_words(record.getMessage())
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
        }
        line |= {key: _value(key, value) for key, value in words.items()}
        if text:
            line["text"] = text
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        # What JSON itself leaves as it is has a form in it that is as short.
        return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, ensure_ascii=False))


def split_words(message: str) -> tuple[dict[str, str], str]:
    """The words `key=value` at the beginning of a message, each key once, and the text behind them."""
    words: dict[str, str] = {}
    place = 0
    while found := _WORD.match(message, place):
        key, value = found.groups()
        if key in words or key in _OWN:
            break
        words[key] = value
        place = found.end()
    return words, message[place:]


def make_formatter(name: str | None = None) -> logging.Formatter:
    """For `name`, by default what the environment says. Raises ValueError for another name."""
    chosen = name if name is not None else os.environ.get(LOG_FORMAT, "text")
    if chosen == "json":
        return JsonFormatter()
    if chosen != "text":
        raise ValueError(f"{LOG_FORMAT} is text or json, not {chosen!r}")
    return TextFormatter()


def _value(key: str, value: str) -> str | int:
    return int(value) if key in _NUMBERS and value.isdecimal() else value
