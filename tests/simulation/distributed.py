"""What a client knows of a distributed transaction that it has begun; the checker reads it."""

from dataclasses import dataclass, field

from lockstep.core.branch_names import GenerationTag, GlobalId, ParticipantName, branch_xid
from lockstep.core.ids import SetName
from lockstep.core.xid import Xid
from services.coordinator.core.messages import State


@dataclass(slots=True)
class DistributedTransaction:
    """One, from its begin on. A branch's number is its place in `sets`."""

    client: str
    global_id: GlobalId
    generation: GenerationTag
    sets: tuple[SetName, ...]
    begun_us: int
    told: list[State] = field(default_factory=list)
    """Every final answer, in order."""
    hazards: list[str] = field(default_factory=list)
    """Participants that did not end as decided, as the client was told."""
    is_closed: bool = False
    is_abandoned: bool = False
    """Its client does not want to know."""
    is_forgotten: bool = False
    """It came too late: nobody begins to end it any more, and its branches have ended by themselves."""

    @property
    def participants(self) -> tuple[ParticipantName, ...]:
        return tuple(ParticipantName(f"set:{set_name}") for set_name in self.sets)

    def xid(self, number: int) -> Xid:
        return branch_xid(self.global_id, number, self.generation)
