"""A group of readers of committed events in every resource set: what it has not acknowledged is owed to it (DESIGN 5, 7).

It reads nothing: at the end of a run the checker reads for it all that the stores owe. It acknowledges now and then, or never.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from lockstep.core.ids import BrokerId, Epoch, LogIndex, SessionId, SessionKey, SetName
from lockstep.core.requests import AttachSession, ChangeSubscription, DetachSession, SubscriptionChange
from lockstep.core.server_messages import SubscriptionsAnswer
from tests.simulation.hellos import ClientHello
from tests.simulation.loop import MS, SECOND
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

GROUP = "readers"
_SESSION_TIMEOUT_MS = 1000
_PATIENCE_US = 2 * SECOND


def change_group(
    process: Process,
    set_name: SetName,
    broker: BrokerId,
    change: SubscriptionChange,
    floor: LogIndex | None,
    heard: Callable[[SubscriptionsAnswer], None],
) -> None:
    """One call of `process` to a broker: it answers if it leads, else nothing is heard."""
    world = process.world
    side = world.network.connect(process.host, f"broker:{broker}")

    def take(messages: tuple[object, ...]) -> None:
        for message in messages:
            if isinstance(message, SubscriptionsAnswer) and not message.code:
                world.branches.reach("group of readers known")
                heard(message)
                side.send((DetachSession(),))
                side.close()

    side.on_message = lambda messages: process.post(take, messages)
    side.send(ClientHello(set_name))
    session = SessionId(f"{process.name}-{set_name}-{world.loop.now_us}")
    attach = AttachSession(set_name, session, SessionKey(0), Epoch(0), _SESSION_TIMEOUT_MS, 0)
    side.send((attach, ChangeSubscription(1, GROUP, change, floor)))
    world.loop.after(_PATIENCE_US, side.close)


class Subscriber(Process):
    """Lives as long as its world; a call now and then in each set, to any broker."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "subscriber", "subscriber")
        self._random = Random(f"subscriber {world.options.seed}")
        self._is_acknowledging = self._random.random() < 0.6
        self._known: dict[SetName, LogIndex] = {}
        """Commit index that was heard of last."""
        for set_name in world.set_names:
            self._later(set_name)

    def _later(self, set_name: SetName) -> None:
        self.world.loop.after(self._random.randrange(200 * MS, 3 * SECOND), self.post, self._call, set_name)

    def _call(self, set_name: SetName) -> None:
        if not self.world.is_working:
            return
        self._later(set_name)
        known, change, floor = self._known.get(set_name), SubscriptionChange.OPEN, None
        if known is not None and self._is_acknowledging:
            change = SubscriptionChange.ADVANCE
            floor = LogIndex(known // 2 + self._random.randrange(known - known // 2 + 1))
        elif known is not None:
            change = SubscriptionChange.NONE
        broker = self._random.choice(self.world.broker_ids)

        def heard(answer: SubscriptionsAnswer) -> None:
            self._known[set_name] = answer.commit_index

        change_group(self, set_name, broker, change, floor, heard)
