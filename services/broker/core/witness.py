"""A broker as a witness: it puts stamps into etcd for disks to remember, and answers for its own disk (DESIGN R1).

Law: it becomes a witness when all of its sets' disks were compared, anew under each lease, and calls the roll then: whoever has
answered since has lived since. A witness that it has known to live so, and whose key is gone, has died before its eyes, and knew
nothing of etcd that it does not know itself: it need not be waited for. Any other one has to come back.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.core.ids import BrokerId, Incarnation
from lockstep.core.roll_call import CALLER_CHARACTERS
from lockstep.core.stamps import Stamps, StampWriter

STAMPED_EVERY_MS = 5_000
"""What etcd did since the last stamp before everybody died is known to no disk; but backups of etcd are older than that."""
BEGINNINGS_AT_ONCE = 10
"""Under one lease: each begins in one, unless others write at the same moment."""
AGAIN_AFTER_MS = 1_000
"""Between two beginnings, from then on."""


@dataclass(frozen=True, slots=True)
class EtcdSeen:
    """What this process knows of etcd."""

    stamps: Stamps
    stamps_revision: int
    """mod_revision of their key; 0: it is absent."""
    revision: int
    """etcd's own."""
    present: Mapping[BrokerId, str]
    """The witnesses' keys: their tokens."""


@dataclass(frozen=True, slots=True)
class StampsWritten:
    """What is to be put in the place of the stamps that were seen, and nowhere else."""

    stamps: Stamps
    token: str = ""
    """Of this broker's own witness key, which is put with them under its lease; "": it stands."""


class WitnessKeeper:
    """Lives as long as the broker process; asked whenever etcd has changed, and from time to time."""

    def __init__(self, broker: BrokerId, process: Incarnation) -> None:
        self._broker = broker
        self._name = process[:CALLER_CHARACTERS]
        self._writer = StampWriter(self._name)
        self._met: set[str] = set()
        """Tokens of witnesses that have lived while this one was one, under its present token."""
        self._met_as = ""
        self._due_ms = 0
        self._begun_as = ""
        self._beginnings = 0
        self._again_ms = 0

    def stamped(self, now_ms: int) -> None:
        """Somebody has put a stamp there."""
        self._due_ms = now_ms + STAMPED_EVERY_MS

    def in_doubt(self) -> None:
        """The answer of etcd was lost: what was written last may stand there, or not."""
        self._writer.in_doubt()

    def look(self, seen: EtcdSeen, lease_id: int, now_ms: int) -> StampsWritten | None:
        """What to write now, provided that all disks were compared; None: nothing. `lease_id`: the process's, 0: none."""
        if lease_id == 0:
            return None
        stamps, token = seen.stamps, f"{self._name}/{lease_id:x}"
        own = stamps.witness(self._broker)
        if own is None or own.token != token:
            if not self._may_begin(token, now_ms):
                return None
            called = stamps.called().answered(self._broker, token)
            return StampsWritten(self._stamped(called, seen), token)
        if self._met_as != token:
            self._met, self._met_as = set(), token
        self._met |= {one.token for one in stamps.witnesses if one.has_answered}
        dead = frozenset(
            one.token
            for one in stamps.witnesses
            if one.token in self._met and one.token != token and seen.present.get(one.broker) != one.token
        )
        is_due = now_ms >= self._due_ms and seen.revision > seen.stamps_revision
        is_key_lost = seen.present.get(self._broker) != token
        if own.has_answered and not dead and not is_due and not is_key_lost:
            return None
        wanted = stamps.without(dead).answered(self._broker, token)
        if is_due:
            wanted = self._stamped(wanted, seen)
        return StampsWritten(wanted, token if is_key_lost else "")

    def _may_begin(self, token: str, now_ms: int) -> bool:
        """Where another process has its name, the two are not to drive each other out as fast as they can."""
        if self._begun_as != token:
            self._begun_as, self._beginnings = token, 0
        if self._beginnings >= BEGINNINGS_AT_ONCE and now_ms < self._again_ms:
            return False
        self._beginnings += 1
        self._again_ms = now_ms + AGAIN_AFTER_MS
        return True

    def _stamped(self, stamps: Stamps, seen: EtcdSeen) -> Stamps:
        return stamps.stamped(self._writer.next(seen.stamps, seen.revision))
