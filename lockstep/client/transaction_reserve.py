"""Transactions begun beforehand: who commits one after the other finds the next one's name here, and needs no round for it.

Law: a transaction is taken once, while its epoch lasts and before it is old: an outcome is kept for a time that counts from its
begin. What nobody takes is rolled back. The commit before them begins them, or they are begun with the end of the work in a
branch: neither costs a round (DESIGN 4, T1).

    begun --take--> somebody's          begun --old, failover, the session's end--> rolled back
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from lockstep.client.session_events import Done
from lockstep.client.unheard import unheard
from lockstep.core import commands as c
from lockstep.core.ids import TransactionKey

RESERVE_MAX = 16
"""Transactions begun beforehand, at most."""
WINDOW_SECONDS = 0.25
"""As many are begun beforehand as were taken in so long."""
AGE_SECONDS_MAX = 2.0
"""After so long one is rolled back."""


class CommandPort(Protocol):
    """What the reserve needs of the session in its set."""

    loop: asyncio.AbstractEventLoop
    transactions: dict[TransactionKey, Callable[[], None]]

    def submit(self, command: c.AnyCommand) -> "asyncio.Future[Done]": ...
    def is_open(self, key: TransactionKey) -> bool: ...


class TransactionReserve:
    """Lives as long as the session in its set; used from one event loop."""

    def __init__(self, session: CommandPort) -> None:
        self._session = session
        self._loop = session.loop
        self._begun: deque[tuple[TransactionKey, float]] = deque()
        """With the time at which each was begun, the oldest first."""
        self._beginning = 0
        self._takes: deque[float] = deque(maxlen=RESERVE_MAX)
        """When transactions were asked for."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._begun)

    def take(self) -> TransactionKey | None:
        """An open transaction without a time-out; None where there is none, and the caller begins one."""
        now = self._loop.time()
        self._takes.append(now)
        while self._begun:
            key, begun_at = self._begun.popleft()
            self._session.transactions.pop(key, None)
            if not self._session.is_open(key):
                continue  # Its epoch has ended, and nobody has been told so yet.
            if now - begun_at < AGE_SECONDS_MAX:
                return key
            self._roll_back(key)
        return None

    def begins(self) -> int:
        """How many are likely to be taken soon, and lack: they are to be begun with what is submitted now. `begun` follows."""
        now = self._loop.time()
        takes = self._takes
        while takes and takes[0] < now - WINDOW_SECONDS:
            takes.popleft()
        lacking = len(takes) - len(self._begun) - self._beginning
        if len(takes) < 2 or 2 * lacking < len(takes):
            return 0
        self._beginning += lacking
        return lacking

    def begun(self, begins: int, keys: Sequence[TransactionKey]) -> None:
        """Of so many that were to be begun these were, or none."""
        self._beginning -= begins
        if self._is_closed:
            return
        for key in keys:
            if self._session.is_open(key):
                self._begun.append((key, self._loop.time()))
                self._session.transactions[key] = partial(self._forget, key)
        if self._begun and self._timer is None:
            self._timer = self._loop.call_later(AGE_SECONDS_MAX, self._grow_old)

    def _forget(self, key: TransactionKey) -> None:
        """Its epoch, or its session, has ended."""
        self._begun = deque(entry for entry in self._begun if entry[0] != key)

    def _grow_old(self) -> None:
        loop = self._loop
        while self._begun and self._begun[0][1] <= loop.time() - AGE_SECONDS_MAX:
            key, _ = self._begun.popleft()
            self._session.transactions.pop(key, None)
            self._roll_back(key)
        self._timer = None
        if self._begun:
            self._timer = loop.call_at(self._begun[0][1] + AGE_SECONDS_MAX, self._grow_old)

    def _roll_back(self, key: TransactionKey) -> None:
        unheard(self._session.submit(c.RollbackCommand(0, key)))

    def close(self) -> None:
        """The session ends, and with it what is begun."""
        self._is_closed = True
        self._begun.clear()
        if self._timer is not None:
            self._timer.cancel()
