"""How a line of the log looks: words `key=value` and then text for people, or one JSON object for programs.

Law: a record is the same in both; keys do not depend on the form. `set`, `epoch`, `index`, `transaction`, `broker` and `event`
mean the same wherever they stand; `epoch` and `index` are numbers, everything else is text.
"""

import json
import logging
import os
import re
import time

LOG_FORMAT = "LOCKSTEP_LOG_FORMAT"
"""Environment variable: `text` (the default) or `json`."""

_WORD = re.compile(r"([a-z][a-z_]*)=(\S*)(?:\s+|$)")
_OWN = {"time", "level", "logger", "text", "error"}
"""Keys that the formatter gives; a word of that name is text."""
_NUMBERS = {"epoch", "index"}


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
        return json.dumps(line, ensure_ascii=False)


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
    return logging.Formatter(
        "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )


def _value(key: str, value: str) -> str | int:
    return int(value) if key in _NUMBERS and value.isdecimal() else value
