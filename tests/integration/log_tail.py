"""What a process writes into its log while a test or a benchmark looks on."""

import re
from datetime import datetime
from pathlib import Path

_EVENT = re.compile(r"^(\S+) \S+ \S+ (?:\S+=\S+ )*?event=(.*)$")


class LogTail:
    """What a process writes into its log from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin = path.stat().st_size

    def events(self) -> list[tuple[float, str]]:
        """(Unix time, event with its details) of each line that has one, so far."""
        with self._path.open("rb") as log:
            log.seek(self._begin)
            lines = log.read().decode(errors="replace").splitlines()
        found = [match for line in lines if (match := _EVENT.match(line))]
        return [(datetime.fromisoformat(match[1]).timestamp(), match[2]) for match in found]
