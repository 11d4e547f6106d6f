"""Model of etcd: one linearizable key-value store with revisions, leases, transactions and watches (DESIGN R1, R5, R6).

Law: an operation is executed at one moment, whole, or not at all; every change raises the revision by one. A lease never ends
before its time to live has passed since its last renewal came here; it may end late. Watchers get the changes in order, each
at most once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from tests.simulation.loop import MS, Loop
from tests.simulation.network import Network, Side


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value; `lease` 0: none."""

    value: bytes
    mod_revision: int
    lease: int


@dataclass(slots=True)
class Lease:
    ttl_us: int
    ends_us: int
    keys: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Call:
    """A request on a broker's stream to etcd: `operation` is executed when it arrives."""

    number: int
    operation: Callable[["Etcd"], object]


@dataclass(frozen=True, slots=True)
class CallAnswer:
    number: int
    result: object


@dataclass(frozen=True, slots=True)
class Watch:
    """From now on this stream gets `Changes`; first comes everything as it is, as one `Changes` with `is_whole`."""


@dataclass(frozen=True, slots=True)
class Changes:
    """One transaction's changes: key -> entry, or None when it was deleted."""

    revision: int
    changed: tuple[tuple[str, Entry | None], ...]
    is_whole: bool = False


@dataclass(slots=True)
class EtcdOptions:
    """What goes wrong; times in microseconds."""

    answer_lost: float = 0.0
    """Share of calls whose answer is lost after they were executed (their stream ends)."""
    answer_slow: float = 0.0
    """Share of calls that are answered late."""
    executed_late: float = 0.0
    """Share of calls that are executed late, behind others that came after them (history 4)."""
    slow_us: int = 3_000 * MS
    expiry_late_us: int = 500 * MS
    watch_lag_us: int = 0
    """Watchers hear of a change up to so much later."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What a restore brings back. Leases come back with their full time to live."""

    entries: dict[str, Entry]
    leases: dict[int, int]
    revision: int


class Etcd:
    """The only etcd of a world; it keeps everything through a restart."""

    HOST = "etcd"

    def __init__(self, loop: Loop, random: Random, network: Network, options: EtcdOptions) -> None:
        self.loop = loop
        self.random = random
        self.network = network
        self.options = options
        self.revision = 1
        self.entries: dict[str, Entry] = {}
        self.leases: dict[int, Lease] = {}
        self.is_up = True
        self.observers: list[Callable[[str, Entry | None], None]] = []
        """Told of every change at the moment it happens (checkers; nobody in the simulated world)."""
        self.detain: Callable[[Call], bool] | None = None
        """A scenario's trigger: a call for which it answers True stays on its way, until `deliver_detained`."""
        self.detained: list[Call] = []
        self.detain_answer: Callable[[Call], bool] | None = None
        """The same for the answer of a call, which is executed: it is kept in `detained_answers`, for the script to call."""
        self.detained_answers: list[Callable[[], None]] = []
        self._streams: list[Side] = []
        self._watchers: list[Side] = []
        self._changed: dict[str, Entry | None] = {}
        network.listen("etcd", self.HOST, self._accept)

    # --- operations -----------------------------------------------------------------------------------------------

    def execute(self, operation: Callable[["Etcd"], Any]) -> Any:
        """Run an operation at once and tell the watchers what it changed; all its changes share one revision."""
        result = operation(self)
        if self._changed:
            changes = Changes(self.revision, tuple(self._changed.items()))
            self._changed = {}
            for key, entry in changes.changed:
                for observe in self.observers:
                    observe(key, entry)
            lag = self.options.watch_lag_us
            for watcher in self._watchers:
                if lag:
                    # A stream keeps its order whatever the lag, because the lag only delays this sending and all behind it.
                    self.loop.after(lag, watcher.send, changes)
                else:
                    watcher.send(changes)
        return result

    def get(self, key: str) -> Entry | None:
        return self.entries.get(key)

    def mod_revision(self, key: str) -> int:
        """0: the key is absent."""
        entry = self.entries.get(key)
        return entry.mod_revision if entry else 0

    def prefix(self, prefix: str) -> list[tuple[str, Entry]]:
        return sorted((key, entry) for key, entry in self.entries.items() if key.startswith(prefix))

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Returns the new mod_revision. `lease` must exist (0: none)."""
        self._change()
        if lease:
            held = self.leases[lease]
            if key not in held.keys:
                held.keys.append(key)
        entry = Entry(value, self.revision, lease)
        self.entries[key] = self._changed[key] = entry
        return self.revision

    def delete(self, key: str) -> None:
        if key in self.entries:
            self._change()
            del self.entries[key]
            self._changed[key] = None

    def _change(self) -> None:
        if not self._changed:
            self.revision += 1

    # --- leases ---------------------------------------------------------------------------------------------------

    def grant(self, lease: int, ttl_us: int) -> None:
        self.leases[lease] = Lease(ttl_us, self.loop.now_us + ttl_us)
        self._arm(lease)

    def renew(self, lease: int) -> bool:
        """False: there is no such lease."""
        held = self.leases.get(lease)
        if held is None:
            return False
        held.ends_us = self.loop.now_us + held.ttl_us
        return True

    def revoke(self, lease: int) -> None:
        held = self.leases.pop(lease, None)
        for key in held.keys if held else ():
            entry = self.entries.get(key)
            if entry is not None and entry.lease == lease:
                self.delete(key)

    def _arm(self, lease: int) -> None:
        held = self.leases[lease]
        late = int(self.random.random() * self.options.expiry_late_us)
        self.loop.after(held.ends_us - self.loop.now_us + late, self._expire, lease, held)

    def _expire(self, lease: int, held: Lease) -> None:
        if self.leases.get(lease) is not held:
            return
        if held.ends_us > self.loop.now_us:
            self._arm(lease)
        elif not self.is_up:
            self.loop.after(100 * MS, self._expire, lease, held)
        else:
            self.execute(lambda etcd: etcd.revoke(lease))

    # --- failures -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing is answered until `start`; all streams end."""
        self.is_up = False
        self.network.listen("etcd", self.HOST, None)
        streams, self._streams, self._watchers = self._streams, [], []
        for side in streams:
            side.break_off()

    def start(self) -> None:
        """Everything is as it was; leases get their full time to live again, as after an election of etcd's own."""
        self.is_up = True
        self.network.listen("etcd", self.HOST, self._accept)
        for held in self.leases.values():
            held.ends_us = self.loop.now_us + held.ttl_us

    def backup(self) -> Backup:
        leases = {lease: held.ttl_us for lease, held in self.leases.items()}
        return Backup(dict(self.entries), leases, self.revision)

    def restore(self, backup: Backup) -> None:
        """Go back to an older state, with its revision (history 13)."""
        if self.is_up:
            self.stop()
        self.entries, self.revision = dict(backup.entries), backup.revision
        self.leases = {}
        for lease, ttl_us in backup.leases.items():
            self.grant(lease, ttl_us)
            self.leases[lease].keys = [key for key, entry in self.entries.items() if entry.lease == lease]
        self.start()

    def deliver_detained(self) -> None:
        """What stayed on its way arrives after all; nobody waits for the answers any more."""
        detained, self.detained = self.detained, []
        for call in detained:
            self.execute(call.operation)

    # --- streams --------------------------------------------------------------------------------------------------

    def _accept(self, side: Side) -> None:
        self._streams = [stream for stream in self._streams if not stream.is_closed]
        self._watchers = [stream for stream in self._watchers if not stream.is_closed]
        self._streams.append(side)
        side.on_message = lambda message: self._take(side, message)

    def _take(self, side: Side, message: object) -> None:
        if side.is_closed:
            return
        if isinstance(message, Watch):
            side.send(Changes(self.revision, tuple(sorted(self.entries.items())), is_whole=True))
            self._watchers.append(side)
            return
        assert isinstance(message, Call)
        if self.detain is not None and self.detain(message):
            self.detained.append(message)
            return
        options = self.options
        if options.executed_late and self.random.random() < options.executed_late:
            self.loop.after(int(self.random.random() * options.slow_us), self._execute_late, side, message)
        else:
            self._answer(side, message)

    def _execute_late(self, side: Side, call: Call) -> None:
        if self.is_up:
            self._answer(side, call)

    def _answer(self, side: Side, call: Call) -> None:
        answer, options = CallAnswer(call.number, self.execute(call.operation)), self.options
        if self.detain_answer is not None and self.detain_answer(call):
            self.detained_answers.append(partial(side.send, answer))
        elif options.answer_lost and self.random.random() < options.answer_lost:
            self.network.reset(side)
        elif options.answer_slow and self.random.random() < options.answer_slow:
            self.loop.after(int(self.random.random() * options.slow_us), side.send, answer)
        else:
            side.send(answer)
