"""Stamps: how disks recognise the etcd that they have seen, also when it has gone on since it was restored (DESIGN R1).

Law: one key of etcd has the stamps, each a number that one writer never gives twice, and the last of every writer stays there.
Disks remember the newest that they saw. An etcd that lacks what a disk remembers was set back; whatever was written there since,
by whomever, changes nothing of that, as it would of a revision. A stamp covers everything that etcd had before it. A writer's
later number says that its earlier ones were there: behind one of which it does not know that, a process is another writer.

Beside them stand the witnesses: brokers whose disks remember stamps, and were compared. Whoever is to conclude something from
what etcd lacks calls the roll first: it marks all witnesses as silent, with a stamp of its own. Who lives answers, in the same
key; who has died, and no other has seen it die, answers when its disk was compared again. So while nobody is silent, and the
caller's stamp is there, every disk that was known to remember stamps has found none missing.
"""

import json
from dataclasses import dataclass, replace
from typing import NamedTuple

from lockstep.core.ids import BrokerId

WRITERS_MAX = 64
"""Of which a stamp stays. A disk that has slept through more writers can compare revisions only."""


class Stamp(NamedTuple):
    """What a writer has put there."""

    writer: str
    number: int
    revision: int
    """Of etcd, as its writer knew it: the stamp itself lies above."""

    def encode(self) -> str:
        """As a disk keeps it."""
        return f"{self.writer}/{self.number}/{self.revision}"

    @staticmethod
    def decode(text: str) -> "Stamp | None":
        """None: there is none, or none that this version knows."""
        writer, _, numbers = text.partition("/")
        number, _, revision = numbers.partition("/")
        if not (number.isdecimal() and revision.isdecimal()):
            return None
        try:
            return Stamp(writer, int(number), int(revision))
        except ValueError:
            return None  # Of thousands of digits.


class Witness(NamedTuple):
    """A broker whose disk was compared."""

    broker: BrokerId
    token: str
    """Names this comparison of its, and the lease under which its key stands."""
    has_answered: bool = True
    """Since the roll was called last."""


@dataclass(frozen=True, slots=True)
class Stamps:
    """The value of the key; an absent one is empty."""

    stamps: tuple[Stamp, ...] = ()
    """The last of each writer, the newest last."""
    forgotten: int = 0
    """Of the newest stamp whose writer is not among them any more, its `revision`."""
    witnesses: tuple[Witness, ...] = ()

    @property
    def newest(self) -> Stamp | None:
        return self.stamps[-1] if self.stamps else None

    @property
    def silent(self) -> tuple[BrokerId, ...]:
        """Witnesses that have not answered."""
        return tuple(one.broker for one in self.witnesses if not one.has_answered)

    def lacks(self, stamp: Stamp | None) -> bool:
        """Whether it is missing here; False also where that cannot be told."""
        if stamp is None:
            return False
        found = next((one.number for one in self.stamps if one.writer == stamp.writer), None)
        return stamp.revision > self.forgotten if found is None else found < stamp.number

    def has(self, stamp: Stamp) -> bool:
        """Whether it is certain that it was put here."""
        return any(one.writer == stamp.writer and one.number >= stamp.number for one in self.stamps)

    def witness(self, broker: BrokerId) -> Witness | None:
        return next((one for one in self.witnesses if one.broker == broker), None)

    def stamped(self, stamp: Stamp) -> "Stamps":
        """With this one as the newest."""
        others = tuple(one for one in self.stamps if one.writer != stamp.writer)
        kept = others[-(WRITERS_MAX - 1) :]
        dropped = [one.revision for one in others[: len(others) - len(kept)]]
        return replace(self, stamps=(*kept, stamp), forgotten=max(self.forgotten, *dropped, 0))

    def called(self) -> "Stamps":
        """All witnesses are asked."""
        asked = tuple(one._replace(has_answered=False) for one in self.witnesses)
        return replace(self, witnesses=asked)

    def answered(self, broker: BrokerId, token: str) -> "Stamps":
        """With the answer of this witness, which may be a new one."""
        others = tuple(one for one in self.witnesses if one.broker != broker)
        return replace(self, witnesses=tuple(sorted((*others, Witness(broker, token)))))

    def without(self, tokens: frozenset[str]) -> "Stamps":
        """Without the witnesses of these tokens."""
        return replace(self, witnesses=tuple(one for one in self.witnesses if one.token not in tokens))

    def encode(self) -> bytes:
        fields = {"stamps": self.stamps, "forgotten": self.forgotten, "witnesses": self.witnesses}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def decode(value: bytes) -> "Stamps":
        """Raises `ValueError` for what are none; b"": the key is absent."""
        if not value:
            return Stamps()
        try:
            fields = json.loads(value)
            return Stamps(
                tuple(Stamp(str(one[0]), int(one[1]), int(one[2])) for one in fields["stamps"]),
                int(fields["forgotten"]),
                tuple(
                    Witness(BrokerId(str(one[0])), str(one[1]), bool(one[2])) for one in fields["witnesses"]
                ),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"not stamps: {error}") from error


NO_STAMPS = Stamps()


class StampWriter:
    """Gives the stamps of one process; lives as long as that."""

    def __init__(self, name: str) -> None:
        """`name` tells the process from all others."""
        self._name = self._writer = name
        self._writers = 0
        self._number = 0
        self._last: Stamp | None = None
        self._doubted: Stamp | None = None

    def next(self, stamps: Stamps, revision: int) -> Stamp:
        """One that was never given, to be put beside these stamps, at etcd's `revision`."""
        if self._doubted is not None and self._doubted not in stamps.stamps:
            self._writers += 1
            self._writer, self._number = f"{self._name}+{self._writers}", 0
        self._doubted = None
        self._number += 1
        self._last = Stamp(self._writer, self._number, revision)
        return self._last

    def in_doubt(self) -> None:
        """The answer for the last one was lost: others may have seen it in an etcd that is set back meanwhile."""
        self._doubted = self._last
