"""Name claims: the names of this set's queues and exchanges in the cluster's directory, where each is unique (DESIGN 2).

Law: a name is this set's in the directory before its declaration is appended, and until its deletion is committed. It is given
back only when nothing in the state has it and nobody is claiming it: the directory hears claims and releases in their order.
"""

from dataclasses import dataclass

from lockstep.core.commands import AnyCommand
from lockstep.core.effects import ClaimName, ReleaseName
from lockstep.core.ids import Incarnation
from services.primary.core.context import Context
from services.primary.core.gate import CommitGate


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim under way, for a command that waits for it."""

    stream: int
    command: AnyCommand
    kind: str
    """queue or exchange."""
    name: str


class NameClaims:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, context: Context, gate: CommitGate, own: Incarnation) -> None:
        self._context = context
        self._gate = gate
        self._own = own
        self._under_way: dict[int, Claim] = {}
        self._last = 0

    def claim(self, claim: Claim) -> int:
        """Ask for a name; answers the number of the request."""
        self._last += 1
        self._under_way[self._last] = claim
        self._context.effects.append(
            ClaimName(self._context.state.set_name, self._last, claim.kind, claim.name)
        )
        return self._last

    def answered(self, request: int) -> Claim | None:
        """The claim that was answered; None if this epoch made no such claim."""
        return self._under_way.pop(request, None)

    def release_unused(self, kind: str, name: str) -> None:
        """Give a name back when all that was appended is committed, if it is not in use then."""
        if self._is_in_use(kind, name):
            return

        def release() -> None:
            if not self._is_in_use(kind, name):
                set_name = self._context.state.set_name
                self._context.effects.append(ReleaseName(set_name, kind, name, self._own))

        self._gate.wait(self._context.writer.log.end, release)

    def _is_in_use(self, kind: str, name: str) -> bool:
        state = self._context.state
        declared = state.queues.get(name) if kind == "queue" else state.exchanges.get(name)
        return declared is not None or any(
            (claim.kind, claim.name) == (kind, name) for claim in self._under_way.values()
        )
