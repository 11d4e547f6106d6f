"""Replicas with a weak spot: hooks for mutations, on what a replica hears and on what it makes when it is promoted."""

from typing import Any

from lockstep.core.clock import Now
from lockstep.core.effects import AnyEffect
from lockstep.core.inputs import AnyInput
from services.broker.core.replica import Replica


class HookedReplica(Replica):
    """A real replica; subclasses override the hooks."""

    def handle(self, given: AnyInput, now: Now) -> list[AnyEffect]:
        before = self.primary
        effects = super().handle(self.heard(given, now), now)
        if self.primary is not None and self.primary is not before:
            self.promoted(self.primary)
        self.handled()
        return effects

    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        """What the core is told instead of `given`."""
        return given

    def promoted(self, primary: Any) -> None:
        """A primary core was made."""

    def handled(self) -> None:
        """After every input."""
