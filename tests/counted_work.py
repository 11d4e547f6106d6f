"""Work that is counted, not timed: calls of functions and opcodes are as many on a slow machine as on a fast one.

Law: what counts is what a block does in its own thread, and nothing of the counting. Nothing is collected until the block ends:
that would count, and an interpreter has died where it collected amid generators that were profiled. Who profiled or traced
before goes on behind it.
"""

import gc
import sys
from collections import Counter
from types import FrameType
from typing import Any, Self


class CountedCalls:
    """Of functions within a `with` block. Lives as long as somebody reads it."""

    def __init__(self) -> None:
        self.total = 0
        """In Python and in C."""
        self.by_name: Counter[str] = Counter()
        """In Python, by their qualified names."""

    def __enter__(self) -> Self:
        self._before, self._collects = sys.getprofile(), gc.isenabled()
        gc.disable()
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        if self._collects:
            gc.enable()

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call") and not _is_ours(frame):
            self.total += 1
            if event == "call":
                self.by_name[frame.f_code.co_qualname] += 1


class CountedOpcodes:
    """Of functions that are called within a `with` block. Lives as long as somebody reads it."""

    def __init__(self, files: tuple[str, ...] = ("",)) -> None:
        """`files`: how the paths end of those whose functions count."""
        self.total = 0
        self._files = files

    def __enter__(self) -> Self:
        self._before, self._collects = sys.gettrace(), gc.isenabled()
        gc.disable()
        sys.settrace(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        if self._collects:
            gc.enable()

    def _count(self, frame: FrameType, event: str, _: object) -> Any:
        if _is_ours(frame) or not frame.f_code.co_filename.endswith(self._files):
            return None
        frame.f_trace_opcodes = True
        self.total += event == "opcode"
        return self._count


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename == __file__
