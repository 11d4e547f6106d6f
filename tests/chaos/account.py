"""The account of every attempt: what each transaction's client heard of it against what the queues show.

Law: each attempt writes its own number, its mark, behind what it publishes. So at the end the queues say of every single attempt
whether it committed, as a whole, and that has to be what its client heard.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lockstep.client.transaction import Transaction

MARK = b">"
Shown = tuple[bytes, Sequence[bytes]]
"""A message of an output: its number, and the marks of the attempts that brought it there."""


@dataclass(slots=True)
class Attempt:
    """One transaction, as its client knows it."""

    bodies: frozenset[bytes]
    is_move: bool
    transaction: Transaction | None
    """None: an AMQP client's, who cannot ask for its outcome."""
    is_committed: bool | None = None
    """None: nobody could tell."""


class Account:
    """Lives as long as its workload."""

    def __init__(self, name: str = "") -> None:
        """`name`: of the workload, so that no other one's messages have the same bodies."""
        self._name = name.encode()
        self.attempts: dict[bytes, Attempt] = {}
        self._numbers = itertools.count(1)

    def next_mark(self) -> bytes:
        """For an attempt that begins."""
        return b"%s%d" % (self._name, next(self._numbers))

    def compare(self, outputs: Iterable[Iterable[Shown]]) -> Iterator[tuple[Attempt, bool]]:
        """Every attempt, and whether it is there: in all outputs, whole, unless its client heard that it is not.

        Raises `AssertionError` for one that is torn or of which its client heard otherwise, and for marks of nobody.
        """
        seen: list[dict[bytes, set[bytes]]] = []
        for output in outputs:
            by_mark: dict[bytes, set[bytes]] = defaultdict(set)
            for number, marks in output:
                for mark in marks:
                    by_mark[mark].add(number)
            seen.append(by_mark)
        unknown = {mark for by_mark in seen for mark in by_mark} - self.attempts.keys()
        assert not unknown, f"marks of nobody: {sorted(unknown)[:10]}"
        for mark, attempt in self.attempts.items():
            there = [by_mark.get(mark, set()) for by_mark in seen]
            wanted = {body.partition(MARK)[0] for body in attempt.bodies}
            is_there = any(there)
            assert not is_there or all(found == wanted for found in there), f"torn: {attempt} shows {there}"
            if attempt.is_committed is not None:
                assert is_there == attempt.is_committed, (
                    f"its client heard otherwise: {attempt} shows {there}"
                )
            yield attempt, is_there
