"""Transactions that were begun here and are not being ended yet: hints, for their time-out only (DESIGN T2).

Law: nothing depends on them. They are forgotten when the process ends and when there are too many; any coordinator can end a
transaction that it never heard of. A time-out rolls back over the log, because the client may be committing it elsewhere at
this moment: the log decides that race, and branches that were prepared are never told anything but its decision. Where more were
enlisted than its client names, it may be committed in one phase, without the log: then the log keeps no outcome of the time-out.
"""

from dataclasses import dataclass, field

from lockstep.core.branch_names import GenerationTag, GlobalId, ParticipantName
from lockstep.core.clock import Now
from services.coordinator.core.settings import CoordinatorLimits


@dataclass(slots=True)
class OpenTransaction:
    """What this coordinator was told of it."""

    global_id: GlobalId
    generation: GenerationTag
    opened_ms: int
    """CLOCK_BOOTTIME: when it was first heard of here."""
    due_ms: int
    participants: dict[int, ParticipantName] = field(default_factory=dict)

    @property
    def listed(self) -> tuple[ParticipantName, ...]:
        """By number; "" for those that were enlisted elsewhere."""
        count = max(self.participants, default=-1) + 1
        return tuple(self.participants.get(number, ParticipantName("")) for number in range(count))


class OpenTransactions:
    """Lives as long as the core."""

    def __init__(self, limits: CoordinatorLimits) -> None:
        self._limits = limits
        self._open: dict[GlobalId, OpenTransaction] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, global_id: GlobalId, generation: GenerationTag, open_ms: int, now: Now) -> None:
        """`open_ms` 0: the default."""
        if len(self._open) >= self._limits.open_max:
            del self._open[next(iter(self._open))]
        due_ms = now.boottime_ms + (open_ms or self._limits.open_ms)
        self._open[global_id] = OpenTransaction(global_id, generation, now.boottime_ms, due_ms)

    def enlist(
        self,
        global_id: GlobalId,
        generation: GenerationTag,
        number: int,
        participant: ParticipantName,
        now: Now,
    ) -> None:
        """Of one begun elsewhere too: time counts from when it was first heard of here."""
        if global_id not in self._open:
            self.begin(global_id, generation, 0, now)
        self._open[global_id].participants[number] = participant

    def forget(self, global_id: GlobalId) -> int | None:
        """The client ends it, here at least; answers since when it was known (CLOCK_BOOTTIME), None: it was not."""
        forgotten = self._open.pop(global_id, None)
        return forgotten.opened_ms if forgotten is not None else None

    def timed_out(self, now: Now) -> list[OpenTransaction]:
        """Those whose time is over, forgotten with this. Only those that have to be rolled back over the log.

        One with a single participant is only forgotten: it would be committed without the log, so the log could not decide that
        race. That branch ends by its own time-out, as every unprepared branch does.
        """
        late = [one for one in self._open.values() if one.due_ms <= now.boottime_ms]
        for one in late:
            del self._open[one.global_id]
        return [one for one in late if len(one.listed) >= 2]
