"""Blocks: stretches of a log with what they committed, as plans count them and readers get them.

Law: a block begins where the one before it ends and ends between records. It has about
`BLOCK_EVENTS` events, or more where one frame has more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep.core.ids import LogIndex, TimeMs
from services.broker.core.events.builder import DecodedFrame, EventBuilder
from services.broker.core.events.planning import JointCommit, Mark, Offset, joint_commit
from services.broker.core.events.transactions import CommittedTransaction

BLOCK_EVENTS = 1_000
BLOCK_FRAMES = 256
"""A block ends after so many frames, even if they committed little."""


@dataclass(slots=True)
class Block:
    """One stretch."""

    after: LogIndex
    end: Offset
    time_ms: TimeMs
    """Of its last frame."""
    transactions: list[CommittedTransaction]
    events: int = 0
    joint_commits: list[JointCommit] = field(default_factory=list)

    @property
    def mark(self) -> Mark:
        return Mark(self.end, self.time_ms, self.events)


class BlockCutter:
    """From frames in a row to blocks; lives for one reading."""

    def __init__(self, builder: EventBuilder, until: LogIndex) -> None:
        self.builder = builder
        self._until = until
        self._after = builder.position
        self._transactions: list[CommittedTransaction] = []
        self._events = 0
        self._frames = 0
        self._last: DecodedFrame | None = None

    def feed(self, frame: DecodedFrame) -> Block | None:
        """Take the next frame, which lacks nothing earlier; answers a block that is full."""
        committed = self.builder.feed(frame, self._until)
        self._transactions += committed
        self._events += sum(transaction.events for transaction in committed)
        self._frames += 1
        self._last = frame
        is_full = self._events >= BLOCK_EVENTS or self._frames >= BLOCK_FRAMES
        return self._cut() if is_full else None

    def rest(self) -> Block | None:
        """What is left when there are no more frames."""
        return self._cut() if self._last is not None and self.builder.position > self._after else None

    def _cut(self) -> Block:
        assert self._last is not None, "a block has a frame"
        header = self._last.header
        # A cut inside a frame: all of its records are of its epoch.
        end = Offset(self.builder.position, header.epoch)
        block = Block(self._after, end, header.time_ms, self._transactions, self._events)
        block.joint_commits += _joint_commits(self._transactions)
        self._after, self._transactions, self._events, self._frames = end.index, [], 0, 0
        return block


def _joint_commits(transactions: list[CommittedTransaction]) -> Iterator[JointCommit]:
    events = 0
    for done in transactions:
        if done.is_joint:
            found = joint_commit(done.xid, done.index, done.epoch, done.time_ms, done.resource_sets, events)
            if found is not None:
                yield found
        events += done.events
