"""Where to look for the primary: the brokers that may serve a set, tried in rounds, with a pause between rounds.

Law: within a round no address is tried twice; a random order spreads the clients, and a hint (an address that a broker named
as the primary) is followed first.
"""

from collections.abc import Callable, Collection, Iterable

Choose = Callable[[int], int]
"""A random number in 0..n-1 for n; given from outside, so that a simulation repeats."""


class Candidates:
    """Lives as long as the session core, which drives it."""

    def __init__(
        self, addresses: Iterable[str], choose: Choose, backoff_ms: int, backoff_max_ms: int
    ) -> None:
        self._first = tuple(dict.fromkeys(addresses))
        if not self._first:
            raise ValueError("no address of a broker")
        self._known: tuple[str, ...] = ()
        self._choose = choose
        self._backoff_ms = backoff_ms
        self._backoff_max_ms = backoff_max_ms
        self._rounds = 0
        self._tried: set[str] = set()
        self._hint: str | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those learnt last, then those given at the start."""
        return tuple(dict.fromkeys((*self._known, *self._first)))

    def learn(self, addresses: tuple[str, ...], is_hint: bool) -> None:
        """A new list (empty: nothing new). `is_hint`: its first is believed to be the primary."""
        if addresses:
            self._known = addresses
            if is_hint:
                self._hint = addresses[0]

    def next(self, awaited: Collection[str]) -> str | None:
        """The address to try now, none of `awaited`; None when the round is over: pause, then `begin_round`."""
        hint, self._hint = self._hint, None
        left = [
            address for address in self.addresses if address not in self._tried and address not in awaited
        ]
        if not left:
            return None
        address = hint if hint in left else left[self._choose(len(left))]
        self._tried.add(address)
        return address

    def begin_round(self) -> None:
        """All may be tried again."""
        self._tried.clear()

    def pause_ms(self) -> int:
        """How long to wait before the next round: doubling, with the upper half random."""
        pause = min(self._backoff_ms << min(self._rounds, 20), self._backoff_max_ms)
        self._rounds += 1
        return pause - self._choose(pause // 2 + 1)

    def succeed(self) -> None:
        """A primary serves: the next search starts afresh."""
        self._rounds = 0
        self._tried.clear()
        self._hint = None
