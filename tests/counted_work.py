"""Work that is counted, not timed: calls of functions and opcodes are as many on a slow machine as on a fast one.

Law: what counts is what a block does in its own thread, and nothing of the counting. Nothing is collected until the block ends:
that would count, and CPython before 3.11.3 may die where it collects amid generators that are profiled (gh-101975). Who profiled
or traced before goes on behind it.
"""

import gc
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class CountedWork(ABC):
    """Of a `with` block, by a watcher of the interpreter. Lives as long as somebody reads it."""

    def __init__(self, read: Callable[[], Any], watch: Callable[[Any], None]) -> None:
        """`read` returns the watcher of now, and `watch` puts one in its place."""
        self.total = 0
        self._read, self._watch = read, watch

    def __enter__(self) -> Self:
        self._before, self._collects = self._read(), gc.isenabled()
        gc.disable()
        self._watch(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        self._watch(self._before)
        if self._collects:
            gc.enable()

    @abstractmethod
    def _count(self, frame: FrameType, event: str, _: object) -> Any:
        """The watcher."""


class CountedCalls(CountedWork):
    """Of functions, in Python and in C."""

    def __init__(self) -> None:
        super().__init__(sys.getprofile, sys.setprofile)
        self.by_name: Counter[str] = Counter()
        """In Python, by their qualified names."""

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call") and not _is_ours(frame):
            self.total += 1
            if event == "call":
                self.by_name[frame.f_code.co_qualname] += 1


class CountedOpcodes(CountedWork):
    """Of functions that the block calls."""

    def __init__(self, files: tuple[str, ...] = ("",)) -> None:
        """`files`: how the paths end of those whose functions count."""
        super().__init__(sys.gettrace, sys.settrace)
        self._files = files

    def _count(self, frame: FrameType, event: str, _: object) -> Any:
        if _is_ours(frame) or not frame.f_code.co_filename.endswith(self._files):
            return None
        frame.f_trace_opcodes = True
        self.total += event == "opcode"
        return self._count


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename == __file__
