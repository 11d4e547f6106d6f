"""The listener rig in a process of its own: what crashes the engine's C code crashes that, and its input is known.

parent -> child   length (4 bytes), an input as JSON          child -> parent   length, the answer as JSON
"""

import asyncio
import faulthandler
import json
import select
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from tests.amqp.listener_rig import Input, ListenerRig

HANG_SECONDS = 60.0
LOOK_EVERY = 500
"""Inputs, after which memory and engines are looked at."""
RSS_GROWTH_MAX = 96 * 1024 * 1024
"""Bytes, from the second look on: arenas and caches fill first."""


class ListenerDied(AssertionError):
    """The process ended or hung; the message has the input."""


class ListenerProcess:
    """Plays inputs; starts anew after a crash, so that a failing input can be played again and made smaller."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `__exit__`
        self.played = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._errors.close()

    def play(self, pieces: Input) -> int:
        """Plays one input; returns how many bytes were answered. Raises `AssertionError` with what it found."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.amqp.listener_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        text = json.dumps([(data.hex(), turns) for data, turns in pieces])
        answer: Any = None
        try:
            _write(self._process.stdin, text)
            answer = _read(self._process.stdout, HANG_SECONDS)
        except (BrokenPipeError, EOFError):
            status = self._stop()
            raise ListenerDied(
                f"exit status {status}\n{self._last_words()}\ninput: {text[:200_000]}"
            ) from None
        except TimeoutError:
            self._stop()
            raise ListenerDied(f"no end within {HANG_SECONDS:g} s; input: {text[:200_000]}") from None
        self.played += 1
        if answer["error"]:
            raise AssertionError(f"{answer['error']}\ninput: {text[:200_000]}")
        return int(answer["written"])

    def _stop(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
        return process.wait()

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-9000:]


def _write(stream: IO[bytes] | None, text: str) -> None:
    assert stream is not None
    data = text.encode()
    stream.write(struct.pack(">I", len(data)) + data)
    stream.flush()


def _read(stream: IO[bytes] | None, seconds: float | None = None) -> Any:
    assert stream is not None
    if seconds is not None and not select.select([stream], [], [], seconds)[0]:
        raise TimeoutError
    size = stream.read(4)
    if len(size) < 4:
        raise EOFError
    return json.loads(stream.read(int.from_bytes(size)))


# --- the child ---


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def _serve() -> None:
    rig = ListenerRig()
    played, first = 0, 0
    while True:
        try:
            pieces: Sequence[tuple[str, int]] = _read(sys.stdin.buffer)
        except EOFError:
            return
        error, written = "", 0
        try:
            written = await rig.play([(bytes.fromhex(data), turns) for data, turns in pieces])
        except AssertionError as found:
            error = str(found)
        played += 1
        if played % LOOK_EVERY == 0:
            engines, rss = rig.engines(), _rss()
            if engines:
                error = error or f"{engines} engines are left after {played} inputs"
            if played == LOOK_EVERY:
                first = rss
            elif rss - first > RSS_GROWTH_MAX:
                error = error or f"resident memory grew from {first} to {rss} bytes in {played} inputs"
        _write(sys.stdout.buffer, json.dumps({"error": error, "written": written}))


if __name__ == "__main__":
    faulthandler.enable()
    asyncio.run(_serve())
