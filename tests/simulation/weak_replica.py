"""A replica with weak spots: where mutations put in what a replica hears, says, and has its state and its primary made of."""

from lockstep.core.clock import Now
from lockstep.core.effects import AnyEffect
from lockstep.core.inputs import AnyInput
from lockstep.core.set_state import SetState
from services.broker.core.replica import Replica
from services.primary.core.primary import PrimaryCore


class WeakReplica(Replica):
    """A real replica, but for what a subclass overrides here. An object gets another class when it comes to be."""

    def handle(self, given: AnyInput, now: Now, more_follow: bool = False) -> list[AnyEffect]:
        before = self.primary
        effects = super().handle(self.heard(given, now), now, more_follow)
        if self.primary is not None and self.primary is not before:
            self.promoted(self.primary)
        for state in self.states():
            self.weaken_state(state)
        return [self.said(effect) for effect in effects]

    def states(self) -> list[SetState]:
        """The states that this replica has in memory."""
        found = []
        if self.primary is not None:
            found.append(self.primary.context.state)
        if self.backup is not None and self.backup.copy is not None:
            found.append(self.backup.copy.state)
        return found

    # --- for mutations ------------------------------------------------------------------------------------------------

    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        """What the core is told instead of `given`."""
        return given

    def said(self, effect: AnyEffect) -> AnyEffect:
        """What is done instead of `effect`."""
        return effect

    def promoted(self, primary: PrimaryCore) -> None:
        """A primary core was made; its epoch record is appended."""

    def weaken_state(self, state: SetState) -> None:
        """After every input, for every state in memory."""
