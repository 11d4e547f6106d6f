"""Claims ahead: names that are asked for while their declarations still wait behind another command of their stream.

Law: a name that was claimed ahead is in use until its command took it, or its stream is gone; so it is not given back between. A
burst of declarations then waits for the cluster's directory once for many of them, and not once for each.
"""

from dataclasses import dataclass

from lockstep.core.commands import Command, DeclareExchangeCommand, DeclareQueueCommand
from lockstep.core.errors import Rejected
from lockstep.core.inputs import NameClaimed
from lockstep.core.requests import Heard
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.context import Context
from services.primary.core.name_claims import Claim, NameClaims
from services.primary.core.wiring_commands import needs_claim


@dataclass(slots=True)
class Ahead:
    """A claim that was asked for ahead."""

    request: int
    claim: Claim
    given: NameClaimed | None = None
    """etcd's answer, once it is there."""


_Turn = tuple[int, str, str]
"""Number of the command, and the kind and name that it declares."""


class ClaimsAhead:
    """Lives as long as the epoch; driven by `Clients`."""

    def __init__(self, context: Context, streams: ClientStreams, names: NameClaims) -> None:
        self._context = context
        self._names = names
        self._by_stream: dict[int, dict[_Turn, Ahead]] = {}
        self._by_request: dict[int, Ahead] = {}
        """Those without an answer."""
        streams.when_removed = self._removed

    def ask(self, stream: ClientStream, message: Heard) -> None:
        """A message waits behind another one: where it declares what is not there yet, its name is asked for now."""
        if not isinstance(message, DeclareQueueCommand | DeclareExchangeCommand):
            return
        ahead = self._by_stream.setdefault(stream.number, {})
        if len(ahead) >= self._context.settings.claims_ahead_max:
            return
        try:
            wanted = needs_claim(self._context, message)
        except Rejected:
            return
        if wanted is not None and (message.number, *wanted) not in ahead:
            claim = Claim(stream.number, message, *wanted)
            self._names.hold(claim)
            one = Ahead(self._names.claim(claim), claim)
            ahead[message.number, *wanted] = self._by_request[one.request] = one

    def answered(self, given: NameClaimed) -> bool:
        """etcd answered a claim; whether it is one whose command has not come to its turn yet."""
        one = self._by_request.pop(given.request, None)
        if one is None:
            return False
        one.given = given
        return True

    def take(self, stream: ClientStream, claim: Claim) -> Ahead | None:
        """The claim of a command whose turn it is, if it was asked for ahead; whoever takes it asks for its name no more."""
        ahead = self._by_stream.get(stream.number)
        one = ahead.pop((claim.command.number, claim.kind, claim.name), None) if ahead else None
        if one is not None:
            self._let_go(one)
        return one

    def went_on(self, stream: ClientStream) -> None:
        """The stream is about to take its next message: what commands before it did not take, nobody will. Somebody else has
        declared it, or the command was refused."""
        ahead = self._by_stream.get(stream.number)
        if not ahead:
            return
        waiting = stream.backlog[0] if stream.backlog else None
        if waiting is None or isinstance(waiting, Command):
            for turn in [turn for turn in ahead if waiting is None or turn[0] < waiting.number]:
                self._give_up(ahead.pop(turn))

    def _removed(self, stream: ClientStream) -> None:
        for one in self._by_stream.pop(stream.number, {}).values():
            self._give_up(one)

    def _give_up(self, one: Ahead) -> None:
        self._let_go(one)
        self._names.release_unused(one.claim.kind, one.claim.name)

    def _let_go(self, one: Ahead) -> None:
        self._by_request.pop(one.request, None)
        self._names.let_go(one.claim)
