"""Core faults: at some inputs a set's core raises before, amid or behind what it does with them. All effects are lost, and that
replica begins anew from its disk (`Replica.end_by_fault`), while the other sets of its process go on.

Law: it raises in the place of a call of any function of ours, but for those that note facts of etcd and of the store, which the
replica keeps. Drawn from generators of their own: seeds without such faults stay what they are. A seed raises at the same calls,
whatever ran before it in this process.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import TYPE_CHECKING

from lockstep.core.effects import AnyEffect
from lockstep.core.ids import BrokerId, SetName
from lockstep.core.inputs import AnyInput
from services.broker.core.replica import Replica
from tests.simulation.loop import MS, SECOND

if TYPE_CHECKING:
    from tests.simulation.world import World

SHARE = 0.15
"""Of seeds with such faults."""
GAPS_US = (1 * SECOND, 3 * SECOND, 8 * SECOND)
"""One of them is the mean time between two."""
KINDS = (
    "AcceptDataLoss",
    "Acknowledge",
    "Appended",
    "ClientSaid",
    "Frames",
    "HandOver",
    "HandedOver",
    "Installed",
    "ItemsInstalled",
    "LeaseExtended",
    "LeaseKeySeen",
    "LeaseLost",
    "MapSeen",
    "MessagesRead",
    "PresencesSeen",
    "PrimaryStreamClosed",
    "SetOpened",
    "SnapshotChunk",
    "StateChunk",
    "StateLoaded",
    "StoreConnected",
    "StoreLost",
    "StoreRefused",
    "Subscribe",
    "SubscriptionAccepted",
    "SubscriptionRefused",
    "SwapAnswered",
    "Tick",
    "Truncated",
    "Woken",
)
"""Inputs, or what is said in them."""
ROLES = ("joining", "loading", "not serving yet", "opening", "parting", "taking over")
"""What a replica does at times only. Half of the faults wait for one that does it, or for an input of a kind, at any broker."""
AGAIN_SHARE = 0.4
"""Of faults behind which the same replica has another one, soon behind its rest."""
AMID_SHARE = 0.75
"""Of faults that are to come amid an input: where that calls too little, they come behind it."""
CALLS_MAX = (1, 5, 20, 100, 1000)
BEGINNINGS = frozenset(("_note_facts", "_handle_routine", "take"))
"""Of what a replica does with an input: before that it only looks at what it is."""
CACHED = frozenset(("_remembered", "_branch_ids"))
"""Functions whose answers are kept from run to run: what they call is not counted."""


class CoreFault(BaseException):
    """No bug of ours, and nobody in a core catches it."""


def draw_core_faults(seed: int) -> int:
    """Mean time in microseconds between two such faults; 0: the seed has none."""
    random = Random(f"core faults {seed}")
    return random.choice(GAPS_US) if random.random() < SHARE else 0


def kind_of(given: AnyInput) -> str:
    """Of an input, or of what is said in it."""
    return type(getattr(given, "answer", getattr(given, "message", given))).__name__


def role_of(replica: Replica) -> str:
    """What it is doing, for the branches that a run reaches."""
    if replica.primary is not None:
        return "serving" if replica.is_serving else "not serving yet"
    if replica._taking_over is not None:
        return "taking over"
    if replica._parting is not None:
        return "parting"
    return replica.backup.state.value if replica.backup is not None else "resting"


class CoreFaults:
    """Lives as long as its world; the world's faults start and end it, and its brokers ask it at each input."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = Random(f"core faults of {world.options.seed}")
        self._fuses: dict[tuple[BrokerId | None, SetName], tuple[str, int]] = {}
        """Over the next input of a kind, or in a role ("": any), behind so many others, the core raises; None: of any broker."""
        self._is_active = False
        self.counts = Counter[str]()

    def start(self) -> None:
        self._is_active = self._world.options.core_fault_gap_us > 0
        self._next()

    def heal(self) -> None:
        """No more of them."""
        self._is_active = False
        self._fuses.clear()

    def _next(self) -> None:
        if self._is_active:
            gap_us = int(self._random.expovariate(1.0 / self._world.options.core_fault_gap_us))
            self._world.loop.after(max(gap_us, 20 * MS), self._strike)

    def _strike(self) -> None:
        if not self._is_active:
            return
        random, world = self._random, self._world
        set_name = random.choice(world.set_names)
        if random.random() < 0.5:
            self._fuses[random.choice(world.broker_ids), set_name] = "", random.randrange(60)
        else:
            self._fuses[None, set_name] = random.choice(KINDS + ROLES), random.randrange(3)
        self._next()

    def is_due(self, replica: Replica, given: AnyInput) -> bool:
        """Whether the core raises over this input."""
        broker, set_name = replica.broker, replica.set_name
        for key in ((broker, set_name), (None, set_name)) if self._fuses else ():
            kind, others = self._fuses.get(key, (None, 0))
            if kind is None or kind not in ("", kind_of(given), role_of(replica)):
                continue
            if others:
                self._fuses[key] = kind, others - 1
                continue
            del self._fuses[key]
            if self._random.random() < AGAIN_SHARE:
                self._world.loop.after(self._random.randrange(2 * SECOND), self._again, broker, set_name)
            return True
        return False

    def _again(self, broker: BrokerId, set_name: SetName) -> None:
        if self._is_active:
            self._fuses[broker, set_name] = "", self._random.randrange(20)

    def raise_over(
        self, replica: Replica, given: AnyInput, handle: Callable[[], list[AnyEffect]]
    ) -> list[AnyEffect]:
        """Have `handle` raise, or do all of it and lose what it gives; always raises `CoreFault`."""
        random = self._random
        self._world.branches.reach(f"core fault: {role_of(replica)}")
        calls = random.randint(1, random.choice(CALLS_MAX)) if random.random() < AMID_SHARE else sys.maxsize
        raising, before = _Raising(calls), sys.gettrace()
        sys.settrace(raising.called)
        try:
            handle()
        finally:
            sys.settrace(before)
            self.counts[f"core fault {'amid' if raising.has_raised else 'behind'} {kind_of(given)}"] += 1
        raise CoreFault


class _Raising:
    """Counts calls of functions of ours, and raises in the place of one."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._has_begun = False
        self.has_raised = False

    def called(self, frame: FrameType, event: str, argument: object) -> None:
        """As `sys.settrace` wants it: the functions themselves are not traced."""
        path = frame.f_code.co_filename
        if self.has_raised or not ("/services/" in path or "/lockstep/core/" in path):
            return
        names = _names(frame)
        self._has_begun = self._has_begun or frame.f_code.co_name in BEGINNINGS
        if not self._has_begun or names & CACHED:
            return
        self._calls -= 1
        # What is raised in a generator that is being closed, nobody hears.
        is_generator = bool(frame.f_code.co_flags & inspect.CO_GENERATOR)
        if self._calls <= 0 and not is_generator and "_note_facts" not in names:
            self.has_raised = True
            raise CoreFault


def _names(frame: FrameType | None) -> set[str]:
    """Of the function that is called and of all that have called it."""
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names
