"""Name claims: the names of this set's queues and exchanges in the cluster's directory, where each is unique (DESIGN 2).

Law: a name is this set's in the directory before its declaration is appended, and until its deletion is committed. It is given
back only when nothing in the state has it and nobody is claiming it: the directory hears claims and releases in their order,
from the process that leads the set only.

A primary that dies between a claim and its declaration, or between a deletion and its release, leaves the directory with a name
that the state does not have; an etcd that was set back lacks names that it has. So whoever leads compares them now and then.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.core.clock import Now
from lockstep.core.commands import AnyCommand
from lockstep.core.effects import ClaimName, LookUpNames, Note, ReleaseName
from lockstep.core.ids import Incarnation
from lockstep.core.inputs import NameClaimed, NamesSeen, Verdict
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


Name = tuple[str, str]
"""(kind, name)."""

_COMPARED = 500
"""Names in one step of a comparison."""
_PUT_RIGHT = 5
"""What it costs to have one claimed, or given back."""


class NameClaims:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, context: Context, gate: CommitGate, own: Incarnation) -> None:
        self._context = context
        self._gate = gate
        self._own = own
        self._under_way: dict[int, Claim] = {}
        self._wanted: Counter[Name] = Counter()
        """How many commands want a name: their claims are under way, or were answered and have not been used yet."""
        self._repairs: dict[int, Name] = {}
        """Claims under way of names that the state has and the directory lacks."""
        self._last = context.epoch << 32
        """What was asked in an earlier reign of this process is answered to nobody."""
        self._looked_ms: int | None = None
        self._unused: dict[Name, None] = {}
        self._missing: dict[Name, None] = {}
        """What the last comparison found."""

    def claim(self, claim: Claim) -> int:
        """Ask for a name; answers the number of the request."""
        request = self._ask(claim.kind, claim.name)
        self._under_way[request] = claim
        self.hold(claim)
        return request

    def hold(self, claim: Claim) -> None:
        """A command wants the name: it is not given back until as often `let_go` was called."""
        self._wanted[claim.kind, claim.name] += 1

    def let_go(self, claim: Claim) -> None:
        """The command has the name, or wants it no more; what nobody uses then is for the caller to release."""
        name = claim.kind, claim.name
        self._wanted[name] -= 1
        if not self._wanted[name]:
            del self._wanted[name]

    def _ask(self, kind: str, name: str) -> int:
        self._last += 1
        set_name = self._context.state.set_name
        self._context.effects.append(ClaimName(set_name, self._last, kind, name, self._own))
        return self._last

    def answered(self, given: NameClaimed) -> Claim | None:
        """The claim that was answered; None if no command waits for it."""
        repaired = self._repairs.pop(given.request, None)
        if repaired is not None and given.verdict is Verdict.FAILED:
            details = f"{repaired[0]} {repaired[1]!r} is here, and the directory has it in {given.owner!r}"
            self._context.effects.append(Note(self._context.state.set_name, "name in two sets", details))
        claim = self._under_way.pop(given.request, None)
        if claim is not None:
            self.let_go(claim)
        return claim

    def release_unused(self, kind: str, name: str) -> None:
        """Give a name back when all that was appended is committed, if it is not in use then."""
        if self._is_in_use((kind, name)):
            return

        def release() -> None:
            if not self._is_in_use((kind, name)):
                set_name = self._context.state.set_name
                self._context.effects.append(ReleaseName(set_name, kind, name, self._own))

        self._gate.wait(self._context.writer.log.end, release)

    def release_in_steps(self, names: Sequence[Name]) -> Iterator[int]:
        """The same of many names, in steps that say what they cost (`Pieces`)."""
        for kind, name in names:
            self.release_unused(kind, name)
            yield _PUT_RIGHT

    def _is_in_use(self, name: Name) -> bool:
        return self._is_declared(name) or name in self._wanted

    def _is_declared(self, name: Name) -> bool:
        state = self._context.state
        return (state.queues if name[0] == "queue" else state.exchanges).get(name[1]) is not None

    # --- comparison with the directory ---

    def tick(self, now: Now) -> None:
        """Look at the directory as soon as the epoch serves, and now and then."""
        is_due = self._looked_ms is None or (
            now.boottime_ms - self._looked_ms >= self._context.settings.names_check_ms
        )
        if is_due:
            self._looked_ms = now.boottime_ms
            self._context.effects.append(LookUpNames(self._context.state.set_name))

    def seen(self, given: NamesSeen) -> None:
        """Put right what this look and the last one found: a single one may have met something on its way."""
        self._context.pieces.begin_in_turn(self._compare(given.names))
        self._context.pieces.go_on()

    def _compare(self, names: Sequence[Name]) -> Iterator[int]:
        """In steps that say what they cost: there may be very many. What changes meanwhile is met by one look at most."""
        state, names_max = self._context.state, self._context.settings.names_batch_max
        listed: set[Name] = set()
        unused: dict[Name, None] = {}
        missing: dict[Name, None] = {}
        for begin in range(0, len(names), _COMPARED):
            part = names[begin : begin + _COMPARED]
            listed.update(part)
            unused.update(dict.fromkeys([name for name in part if not self._is_in_use(name)]))
            yield len(part)
        for kind, by_name in (("exchange", state.exchanges.by_name), ("queue", state.queues.by_name)):
            declared = list(by_name)
            for begin in range(0, len(declared), _COMPARED):
                part = [(kind, name) for name in declared[begin : begin + _COMPARED]]
                missing.update(dict.fromkeys([name for name in part if name not in listed]))
                yield len(part)
        both = [name for name in unused if name in self._unused]
        yield len(unused) // 10
        for kind, name in both[:names_max]:
            self.release_unused(kind, name)
            yield _PUT_RIGHT
        both = [name for name in missing if name in self._missing]
        yield len(missing) // 10
        for kind, name in both[:names_max]:
            if self._is_declared((kind, name)):
                self._repairs[self._ask(kind, name)] = kind, name
            yield _PUT_RIGHT
        self._unused, self._missing = unused, missing
