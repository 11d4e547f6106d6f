"""Blocks: stretches of a log with what they committed, as plans count them and readers get them.

Law: a block begins where the one before it ends and ends between records. It has about `BLOCK_EVENTS` events, or more where one
frame has more. A plan may cut it behind any of its frames that committed something: sets differ in how fast they fill a block,
and a cut is made by one time.
"""

from collections.abc import Generator, Iterator
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
    marks: list[Mark] = field(default_factory=list)
    """Behind each of its frames that committed something, and at its end."""
    joint_commits: list[JointCommit] = field(default_factory=list)


class BlockCutter:
    """From frames in a row to blocks; lives for one reading."""

    def __init__(self, builder: EventBuilder, until: LogIndex) -> None:
        self.builder = builder
        self._until = until
        self._after = builder.position
        self._transactions: list[CommittedTransaction] = []
        self._events = 0
        self._frames = 0
        self._marks: list[Mark] = []
        self._joint_commits: list[JointCommit] = []
        self._last: DecodedFrame | None = None

    def feed_in_steps(self, frame: DecodedFrame) -> Generator[None, None, Block | None]:
        """Take the next frame, which lacks nothing earlier; returns a block that is full."""
        committed = yield from self.builder.feed_in_steps(frame, self._until)
        self._transactions += committed
        events = sum(transaction.events for transaction in committed)
        self._events += events
        self._frames += 1
        self._last = frame
        self._joint_commits += _joint_commits(committed)
        if events:
            self._marks.append(Mark(self._end(frame), frame.header.time_ms, events))
        is_full = self._events >= BLOCK_EVENTS or self._frames >= BLOCK_FRAMES
        return self._cut() if is_full else None

    def rest(self) -> Block | None:
        """What is left when there are no more frames."""
        return self._cut() if self._last is not None and self.builder.position > self._after else None

    def _cut(self) -> Block:
        assert self._last is not None, "a block has a frame"
        end, time_ms = self._end(self._last), self._last.header.time_ms
        if not self._marks or self._marks[-1].offset != end:
            self._marks.append(Mark(end, time_ms, 0))
        block = Block(
            self._after, end, time_ms, self._transactions, self._events, self._marks, self._joint_commits
        )
        self._after, self._transactions, self._events, self._frames = end.index, [], 0, 0
        self._marks, self._joint_commits = [], []
        return block

    def _end(self, frame: DecodedFrame) -> Offset:
        """Where the builder is. A cut inside a frame: all of its records are of its epoch."""
        return Offset(self.builder.position, frame.header.epoch, frame.header.reign)


def _joint_commits(transactions: list[CommittedTransaction]) -> Iterator[JointCommit]:
    """Of one frame."""
    events = 0
    for done in transactions:
        if done.is_joint:
            found = joint_commit(
                *(done.xid, done.index, done.epoch, done.time_ms, done.resource_sets, events),
                is_empty=not done.effects,
            )
            if found is not None:
                yield found
        events += done.events
