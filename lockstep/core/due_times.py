"""Due times: which of many are due, found without a look at the others.

Law: each key has at most one due time, the last that it was given. Those come first that have been due for longest, and by key
where that is the same: nobody waits behind others that come again and again.
"""

from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, Self, TypeVar


class _Sortable(Protocol):
    def __lt__(self, other: Self, /) -> bool: ...
    def __hash__(self) -> int: ...


Key = TypeVar("Key", bound=_Sortable)

_SLACK = 1024
"""Entries that do not count any more, and that nobody has to clear away yet."""


class DueTimes(Generic[Key]):
    """Lives as long as its owner, on whatever clock that has."""

    def __init__(self) -> None:
        self._due_ms: dict[Key, int] = {}
        self._heap: list[tuple[int, Key]] = []
        """Has earlier due times and those of keys that were dropped, too."""

    def set(self, key: Key, due_ms: int) -> None:
        """It is due then, and not when it was before."""
        self._due_ms[key] = due_ms
        heappush(self._heap, (due_ms, key))
        if len(self._heap) > 2 * len(self._due_ms) + _SLACK:
            self._heap = [(due_ms, key) for key, due_ms in self._due_ms.items()]
            heapify(self._heap)

    def drop(self, key: Key) -> None:
        """It is not due any more; nothing if it was not."""
        self._due_ms.pop(key, None)

    def take(self, now_ms: int, limit: int) -> list[Key]:
        """Up to `limit` that are due, which with this have no due time."""
        taken: list[Key] = []
        while self._heap and self._heap[0][0] <= now_ms and len(taken) < limit:
            due_ms, key = heappop(self._heap)
            if self._due_ms.get(key) == due_ms:
                del self._due_ms[key]
                taken.append(key)
        return taken
