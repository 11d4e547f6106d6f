"""Captures: snapshots under way of one state, which hear of what is about to change, so that they have it as it was.

Law: whoever changes contents, or entries that are there, says so before. Nobody keeps a capture but who reads it: when that one
lets go of it, it is gone from here, and costs nothing any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from lockstep.core.ids import QueuePosition

if TYPE_CHECKING:
    from lockstep.core.content_shelf import Shelf
    from lockstep.core.outcome_pages import Page
    from lockstep.core.queues import Queue


class Capture(Protocol):
    def finish(self) -> None:
        """All that is not read yet is to be kept as it is now: everything is about to change."""


class ContentsCapture(Capture, Protocol):
    def shelf_changes(self, number: int, shelf: Shelf) -> None: ...


class EntriesCapture(Capture, Protocol):
    def entries_change(self, queue: Queue, positions: Sequence[QueuePosition]) -> None: ...


class OutcomesCapture(Capture, Protocol):
    def page_changes(self, number: int, page: Page) -> None: ...


class Captures:
    """Of one state; shared by its parts, which ask `of_contents` and its like first: mostly there are none."""

    __slots__ = ("of_contents", "of_entries", "of_outcomes")

    def __init__(self) -> None:
        self.of_contents: list[weakref.ref[ContentsCapture]] = []
        self.of_entries: list[weakref.ref[EntriesCapture]] = []
        self.of_outcomes: list[weakref.ref[OutcomesCapture]] = []

    def add_to_contents(self, capture: ContentsCapture) -> None:
        self.of_contents.append(weakref.ref(capture, self.of_contents.remove))

    def add_to_entries(self, capture: EntriesCapture) -> None:
        self.of_entries.append(weakref.ref(capture, self.of_entries.remove))

    def add_to_outcomes(self, capture: OutcomesCapture) -> None:
        self.of_outcomes.append(weakref.ref(capture, self.of_outcomes.remove))

    def page_changes(self, number: int, page: Page) -> None:
        """Some outcomes of a page are about to be forgotten."""
        for reference in tuple(self.of_outcomes):
            if (capture := reference()) is not None:
                capture.page_changes(number, page)

    def shelf_changes(self, number: int, shelf: Shelf) -> None:
        """A shelf of contents is about to change: some come, some go, or others refer to them."""
        for reference in tuple(self.of_contents):
            if (capture := reference()) is not None:
                capture.shelf_changes(number, shelf)

    def entries_change(self, queue: Queue, positions: Sequence[QueuePosition]) -> None:
        """Entries, those of these positions that are there, are about to go, or get other counts."""
        for reference in tuple(self.of_entries):
            if (capture := reference()) is not None:
                capture.entries_change(queue, positions)

    def finish(self) -> None:
        """What a snapshot brings is about to be put between what is there."""
        captures: list[Capture | None] = [reference() for reference in self.of_contents]
        captures += [reference() for reference in self.of_entries]
        captures += [reference() for reference in self.of_outcomes]
        for capture in captures:
            if capture is not None:
                capture.finish()
