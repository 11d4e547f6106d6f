"""A broker process's end of its stream to etcd: calls with a time-out, and the watched keys.

Law: a call is sent once. No answer in time, or the end of the stream, is *in doubt*: it may be executed, even later. What a watch
brings is fed in etcd's order; after a cut everything is read again.
"""

from collections.abc import Callable

from tests.simulation.etcd import Call, CallAnswer, Changes, Entry, Etcd, Watch
from tests.simulation.loop import MS, Loop
from tests.simulation.network import Network, Side

IN_DOUBT = object()
"""Result of a call whose answer did not come."""
CALL_TIMEOUT_US = 2_000 * MS
RECONNECT_US = 100 * MS


class EtcdSession:
    """Lives as long as the process that owns it; reconnects by itself until `close`."""

    def __init__(
        self,
        loop: Loop,
        network: Network,
        host: str,
        on_view: Callable[[list[str] | None], None],
        is_watching: bool = True,
    ) -> None:
        """`on_view` is called with the keys that changed in `view`; None: it was read anew. Without `is_watching`: never."""
        self._loop = loop
        self._network = network
        self._host = host
        self._on_view = on_view
        self._is_watching = is_watching
        self.view: dict[str, Entry] = {}
        self.revision = 0
        self._calls: dict[int, Callable[[object], None]] = {}
        self._number = 0
        self._is_closed = False
        self._learned: dict[str, int] = {}
        self._side: Side | None = None
        self._connect()

    def call(self, operation: Callable[[Etcd], object], on_result: Callable[[object], None]) -> None:
        """Execute `operation` at etcd; `on_result` gets its result or `IN_DOUBT`, exactly once, later."""
        self._number += 1
        number = self._number
        self._calls[number] = on_result
        if self._side is None:
            self._loop.after(1 * MS, self._finish, number, IN_DOUBT)
            return
        self._side.send(Call(number, operation))
        self._loop.after(CALL_TIMEOUT_US, self._finish, number, IN_DOUBT)

    def tell(self, operation: Callable[[Etcd], object]) -> None:
        """Execute without an answer."""
        self.call(operation, _forget)

    def close(self) -> None:
        self._is_closed = True
        self._calls.clear()
        if self._side is not None:
            self._side.break_off()

    def _connect(self) -> None:
        if self._is_closed:
            return
        side = self._network.connect(self._host, "etcd")
        side.on_message = self._take
        side.on_close = self._lost
        self._side = side
        if self._is_watching:
            side.send(Watch())

    def _lost(self) -> None:
        self._side = None
        for number in list(self._calls):
            self._finish(number, IN_DOUBT)
        self._loop.after(RECONNECT_US, self._connect)

    def _finish(self, number: int, result: object) -> None:
        on_result = self._calls.pop(number, None)
        if on_result is not None and not self._is_closed:
            on_result(result)

    def _take(self, message: object) -> None:
        if isinstance(message, CallAnswer):
            self._finish(message.number, message.result)
            return
        assert isinstance(message, Changes)
        if message.is_whole:
            keys: list[str] | None = None
            entries = {key: entry for key, entry in message.changed if entry is not None}
            self.view = entries
            self._learned.clear()
        else:
            keys = [key for key, _ in message.changed if self._learned.get(key, 0) < message.revision]
            for key, entry in message.changed:
                if self._learned.get(key, 0) < message.revision:
                    self._set(key, entry)
        self.revision = message.revision
        self._on_view(keys)

    def learn(self, keys: dict[str, Entry | None], revision: int) -> None:
        """What a read of these keys showed at `revision`: as good as the watch, and perhaps newer."""
        for key, entry in keys.items():
            if revision >= self.revision:
                self._learned[key] = revision
                self._set(key, entry)

    def _set(self, key: str, entry: Entry | None) -> None:
        if entry is None:
            self.view.pop(key, None)
        else:
            self.view[key] = entry


def _forget(result: object) -> None:
    """The answer of a call that nobody waits for."""
