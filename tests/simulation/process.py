"""A process of the simulated world: it handles one thing after the other, can be stopped (SIGSTOP), and dies without a word.

Law: while it is stopped everything waits for it, as in its sockets; when it is dead nothing reaches it any more.

States: running -> paused -> running; any -> dead.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World


class Process:
    """Lives from its start to its death; a restart is a new object."""

    def __init__(self, world: "World", name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.is_alive = True
        self.is_paused = False
        self._inbox: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._is_running = False

    def post(self, handler: Callable[..., None], *arguments: object) -> None:
        """Have `handler` called when the process gets to it: now, or when it runs again."""
        if not self.is_alive:
            return
        self._inbox.append((handler, arguments))
        if not self._is_running:
            self.run()

    def run(self) -> None:
        """Handle what has come, until nothing is left, or the process is stopped or dead."""
        if self._is_running:
            return
        self._is_running = True
        try:
            while self.is_alive and not self.is_paused:
                if not self.finish_begun():
                    continue
                if not self._inbox:
                    break
                handler, arguments = self._inbox.popleft()
                handler(*arguments)
        finally:
            self._is_running = False

    def finish_begun(self) -> bool:
        """Do what an earlier input has begun; False when that was interrupted."""
        return True

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        """Go on. What waited is taken in the order of each source, but the sources come in any order, as sockets do."""
        if self.is_alive and self.is_paused:
            self.is_paused = False
            self._interleave()
            self.run()

    def _interleave(self) -> None:
        sources: dict[object, deque[tuple[Callable[..., None], tuple[object, ...]]]] = {}
        for waiting in self._inbox:
            sources.setdefault(self.source_of(*waiting), deque()).append(waiting)
        self._inbox.clear()
        queues = list(sources.values())
        while queues:
            queue = self.world.random.choice(queues)
            self._inbox.append(queue.popleft())
            if not queue:
                queues.remove(queue)

    def source_of(self, handler: Callable[..., None], arguments: tuple[object, ...]) -> object:
        """What an inbox entry must stay in order with: the entries of equal sources."""
        return None

    def die(self) -> None:
        """Lose memory and streams."""
        self.is_alive = False
        self._inbox.clear()
