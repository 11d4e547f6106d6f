"""Driver: feeds the cores of a process and performs their effects in order.

Law: an input is handled to its end before the next one, and its effects are performed in order, very many of them in turns,
before any stream is written to: performing only puts into outboxes and queues. All inputs that wait are fed in one go, and a
core is told that more follow, so that what came together is written together, to many streams in turns; timers feed `Tick`,
and `Woken` where a core asked for it. An exception in a core ends its set's part of the process, where the core knows how
(`Faultable`); in one that does not, or without memory left, it ends the process at once, as `Halt` does.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NoReturn, Protocol, TypeVar, runtime_checkable

from lockstep.core.clock import Now
from lockstep.core.effects import AnyEffect, Halt, Note, TakeApart, WakeAt
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.inputs import AnyInput, Tick, Woken
from lockstep.core.pieces import PIECE_COST, do_piece
from lockstep.runtime.clock import read_now
from lockstep.runtime.limit_log import LimitLog
from lockstep.runtime.loop_watch import LONG_SECONDS, LongStep, is_written_down, write_down
from lockstep.runtime.process import halt

TICK_SECONDS = 0.05
"""`Tick` comes every 50 to 100 ms."""
LATE_SECONDS = 0.1
"""A tick that comes so late waits for one more turn."""
SLICE_SECONDS = 0.02
"""After so long the drain lets the writers run before it goes on: answers must not wait for a flood of commands."""
WRITES_MAX = 200
"""Streams that are written to before others have their turn: some milliseconds. A publish may go to thousands."""
EFFECTS_MAX = 2000
"""Of one input that are performed before others have their turn: some milliseconds. A reign that ends has two for each client."""
TAKE_APART_PAUSE_SECONDS = 0.002
"""Between two pieces of what is let go of, which take about as long: nobody waits for it."""
TRACE_CHARACTERS_MAX = 400

_log = logging.getLogger("lockstep.driver")
_Effect = TypeVar("_Effect", bound=AnyEffect)


class Core(Protocol):
    """What the driver hosts: a replica of one resource set, or a part of one."""

    def handle(self, given: AnyInput, now: Now, /, more_follow: bool = False) -> list[AnyEffect]:
        """`more_follow`: another input comes right behind this one, so that what both cause may be written together."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A core that can say where it stands, for the log."""

    @property
    def place(self) -> tuple[Epoch, LogIndex]:
        """Its epoch, and the last index of its log."""


@runtime_checkable
class HoldingBack(Protocol):
    """A core that is amid something at times that nothing may come between."""

    @property
    def holds_back(self) -> bool:
        """What is fed now it keeps until that is done."""
        ...


@runtime_checkable
class Faultable(Protocol):
    """A core that can begin anew when it has raised: what it had in memory is believed no more."""

    def end_by_fault(self, error: Exception, now: Now) -> list[AnyEffect]:
        """It has raised this, and what it did of that input counts for nothing. Returns effects to perform in order."""
        ...


class Driver:
    """Lives as long as its process, on one event loop. Edges register with `on` what they perform; they call `feed`."""

    def __init__(
        self,
        read_now: Callable[[], Now] = read_now,
        halt: Callable[[str, BaseException | None], NoReturn] = halt,
    ) -> None:
        self._read_now = read_now
        self._halt = halt
        self._cores: dict[SetName, Core] = {}
        self._waiting: deque[AnyInput] = deque()
        self._performers: dict[type, Callable[[Any], None]] = {}
        self._writes: dict[object, Callable[[], None]] = {}
        """What is to be written when all effects are performed, one for each outbox."""
        self._unperformed: deque[AnyEffect] = deque()
        """Of the last input that was handled, where it has very many: nothing else is handled or written before."""
        self._is_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """On which it is fed; known from then on."""
        self._is_draining = False
        self._last_stream = 0
        self._handled = 0
        """Inputs that were taken out of those that wait."""
        self._awaited: deque[tuple[int, asyncio.Future[None]]] = deque()
        """How many are to be handled for whom."""
        self._is_watched = is_written_down()
        self._is_traced = _log.isEnabledFor(logging.DEBUG)
        """LOCKSTEP_LOG=DEBUG: every input and effect, for those who look for a bug."""
        self._left_behind: deque[Iterator[int]] = deque()
        """Works of `TakeApart`."""
        self._refusals = LimitLog(_log)
        self.inputs_total = 0
        self.drains_total = 0
        self.busy_seconds = 0.0
        self.tick_lag_seconds = 0.0
        """How late the last tick was: how long other work held the event loop."""
        self.on(Halt, lambda effect: self._halt(f"set {effect.set_name}: {effect.reason}", None))
        self.on(Note, self._log_note)
        self.on(WakeAt, self._wake_at)
        self.on(TakeApart, self._take_apart)

    def on(self, kind: type[_Effect], perform: Callable[[_Effect], None]) -> None:
        """`perform` takes all effects of this type; it must not block, nor feed what it could not have heard."""
        self._performers[kind] = perform

    def host(self, set_name: SetName, core: Core) -> None:
        assert set_name not in self._cores, f"set {set_name} has a core already"
        self._cores[set_name] = core

    def core(self, set_name: SetName) -> Core | None:
        return self._cores.get(set_name)

    @property
    def set_names(self) -> list[SetName]:
        """The sets that have a core here, sorted."""
        return sorted(self._cores)

    def holds_back(self, set_name: SetName) -> bool:
        """Whether what is fed to that set's core is kept by it for later: more than little waits better elsewhere."""
        core = self._cores.get(set_name)
        return core.holds_back if isinstance(core, HoldingBack) else False

    def new_stream(self) -> int:
        """A stream number that this process never gave out before."""
        self._last_stream += 1
        return self._last_stream

    def feed(self, given: AnyInput) -> None:
        """Queues an input; it is handled in this turn of the event loop or the next one. Unknown sets have nobody to hear it."""
        self._waiting.append(given)
        if not self._is_scheduled:
            self._schedule()

    async def handled(self) -> None:
        """Returns when all inputs that wait now have been handled: who has much to say goes on when others had their turn."""
        if self._waiting:
            future = asyncio.get_running_loop().create_future()
            self._awaited.append((self._handled + len(self._waiting), future))
            await future

    def _schedule(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._is_scheduled = True
        self._loop.call_soon(self.drain)

    def write_later(self, outbox: object, write: Callable[[], None]) -> None:
        """For whoever performs an effect: `write` is called once, when all effects of this turn are performed."""
        self._writes[outbox] = write

    def drain(self, seconds_max: float = SLICE_SECONDS) -> None:
        """Handles what waits now, at once: as much as `seconds_max` allow and one more, and the rest in the turns that follow.
        So it is with very many effects, and the streams that are to be written to. `math.inf`: everything."""
        assert not self._is_draining, "performing an effect does not drain"
        self._is_draining = True
        self._is_scheduled = False
        start = now = time.monotonic()
        used = time.thread_time() if self._is_watched else 0.0
        waiting, handled = self._waiting, 0
        count = len(waiting)
        in_turns = seconds_max < math.inf
        if self._unperformed:
            self._perform(in_turns)
        while handled < count and not self._unperformed:
            handled += 1
            given = waiting.popleft()
            is_last = handled == count or now - start > seconds_max
            is_pause = is_last or handled % 16 == 0
            self._handle(given, not is_pause and waiting[0].set_name == given.set_name, in_turns)
            if is_last:
                break
            now = time.monotonic()
        if not self._unperformed:
            self._write(WRITES_MAX if in_turns else len(self._writes))
        if self._is_watched and handled:
            self._measure(given, time.thread_time() - used, start)
        self._is_draining = False
        self._handled += handled
        while self._awaited and not self._unperformed and self._awaited[0][0] <= self._handled:
            _, future = self._awaited.popleft()
            if not future.done():
                future.set_result(None)
        self.drains_total += 1
        self.busy_seconds += time.monotonic() - start
        if (self._waiting or self._writes or self._unperformed) and not self._is_scheduled:
            self._schedule()

    def _measure(self, last: AnyInput, used: float, began: float) -> None:
        """For tests and benchmarks: a drain that was too long for one step is written down, with what was handled last."""
        if used > LONG_SECONDS:
            kind = type(getattr(last, "answer", getattr(last, "message", last))).__name__
            core = type(self._cores.get(last.set_name)).__name__
            write_down(LongStep("driver", round(used, 3), ((f"{core}.handle ({kind} last)",),), began))

    async def run_ticks(self) -> None:
        """Feeds `Tick` to all cores, for ever; a task of the process."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.tick_lag_seconds = max(0.0, loop.time() - due)
            if self.tick_lag_seconds > LATE_SECONDS:
                # This process was held up, perhaps stopped: what others said meanwhile lies in its sockets, and must be read
                # before time tells the cores that nothing was said.
                await asyncio.sleep(TICK_SECONDS)
            for set_name in self.set_names:
                self.feed(Tick(set_name))

    def _write(self, writes_max: int) -> None:
        """What effects said, to so many streams at most: those that waited for longest."""
        if self._writes:
            writes = self._writes
            if len(writes) <= writes_max:
                self._writes = {}
            else:
                waiting = iter(writes.items())
                writes = dict(islice(waiting, writes_max))
                self._writes = dict(waiting)
            try:
                for write in writes.values():
                    write()
            except Exception as error:
                self._halt("what was to be said could not be written", error)

    def _handle(self, given: AnyInput, more_follow: bool, in_turns: bool) -> None:
        core = self._cores.get(given.set_name)
        if core is None:
            return
        self.inputs_total += 1
        try:
            effects = core.handle(given, self._read_now(), more_follow)
        except Exception as error:
            effects = self._end_by_fault(core, given, error)
        try:
            if self._is_traced and not (isinstance(given, Tick) and not effects):
                _trace(given, effects)
            if len(effects) > EFFECTS_MAX:
                self._unperformed.extend(effects)
            else:
                for effect in effects:
                    self._performers[type(effect)](effect)
        except Exception as error:
            self._halt(f"set {given.set_name}: {type(given).__name__} could not be handled", error)
        if self._unperformed:
            self._perform(in_turns)

    def _end_by_fault(self, core: Core, given: AnyInput, error: Exception) -> list[AnyEffect]:
        """What the set's core wants done when it has raised; the others go on."""
        what = f"{type(given).__name__} could not be handled"
        if not isinstance(core, Faultable) or isinstance(error, MemoryError):
            self._halt(f"set {given.set_name}: {what}", error)
        try:
            epoch, index = core.place if isinstance(core, Placed) else (0, 0)
            text = "set=%s epoch=%d index=%d event=set_fault %s, and what the set has in memory here is dropped: %r"
            _log.critical(text, given.set_name, epoch, index, what, error, exc_info=error)
            return core.end_by_fault(error, self._read_now())
        except Exception as another:
            self._halt(f"set {given.set_name}: {what}, nor could its core begin anew", another)

    def _perform(self, in_turns: bool) -> None:
        """Of many effects some, or all."""
        unperformed = self._unperformed
        for _ in range(min(len(unperformed), EFFECTS_MAX) if in_turns else len(unperformed)):
            effect = unperformed.popleft()
            try:
                self._performers[type(effect)](effect)
            except Exception as error:
                text = f"set {effect.set_name}: {type(effect).__name__} could not be performed"
                self._halt(text, error)

    def _wake_at(self, effect: WakeAt) -> None:
        delay_ms = max(effect.boottime_ms - self._read_now().boottime_ms, 0)
        asyncio.get_running_loop().call_later(delay_ms / 1000, self.feed, Woken(effect.set_name))

    def _take_apart(self, effect: TakeApart) -> None:
        self._left_behind.append(effect.work)
        if len(self._left_behind) == 1:
            asyncio.get_running_loop().call_later(TAKE_APART_PAUSE_SECONDS, self._take_apart_on)

    def _take_apart_on(self) -> None:
        """A piece of what is left behind, one after the other. What a fault left may be half done: that goes all at once."""
        try:
            do_piece(self._left_behind, PIECE_COST)
        except Exception as error:
            _log.warning("event=not_taken_apart %r", error, exc_info=error)
        if self._left_behind:
            asyncio.get_running_loop().call_later(TAKE_APART_PAUSE_SECONDS, self._take_apart_on)

    def _log_note(self, effect: Note) -> None:
        if effect.limit:
            self._refusals.refused(effect.limit, f"set={effect.set_name} {effect.details}")
            return
        level = logging.WARNING if effect.is_warning else logging.INFO
        core = self._cores.get(effect.set_name)
        epoch, index = core.place if isinstance(core, Placed) else (0, 0)
        event = effect.event.replace(" ", "_")
        _log.log(
            level,
            "set=%s epoch=%d index=%d event=%s %s",
            effect.set_name,
            epoch,
            index,
            event,
            effect.details,
        )


def _trace(given: AnyInput, effects: list[AnyEffect]) -> None:
    _log.debug("input %s", repr(given)[:TRACE_CHARACTERS_MAX])
    for effect in effects:
        _log.debug("    effect %s", repr(effect)[:TRACE_CHARACTERS_MAX])
