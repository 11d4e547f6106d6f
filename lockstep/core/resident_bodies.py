"""Resident bodies: how much of the messages' content stays in memory, and which bodies are away (DESIGN 5).

Law: a body is away only while durable references alone hold its message, and only if the own store has the record that carried
it. The store keeps a content exactly as long as a durable reference does: what a transient one holds could not be read back.
So no record gives a transient reference to a message that has a durable one, whose body may be away on any replica: a primary
publishes to durable and to transient queues by a record for each, and dead letters go to transient queues as copies.

Bodies go behind the head of each deep queue, the nearest first: `_dropped_to` only moves towards the tail, so a body is dropped
once, and read back once when its turn comes. What was read back and not taken goes in the order of its coming. What is delivered
first by its priority, wherever it stands, is passed over: as much as a head has, of each level at most.
"""

from collections import deque
from collections.abc import Collection
from itertools import accumulate

from lockstep.core.content import size_of
from lockstep.core.ids import LogIndex, MessageId, QueueId, QueuePosition, index_of
from lockstep.core.pieces import PIECE_COST
from lockstep.core.queues import Queue
from lockstep.core.records import Message
from lockstep.core.set_state import SetState

BODY_BYTES_MIN = 256
"""Smaller ones stay: what is kept in place of a body (sizes, checksum) takes about 130 bytes itself. A limit so small that
its heads are smaller (`HEAD_SHARE`) lets them go too.
"""
HEAD_SHARE = 64
"""This part of the limit stays resident at the head of each queue, and a message at least: what is delivered while the first
reading is under way.
"""
READ_BACK_SHARE = 8
"""This part of the limit is for bodies that were read back: some batches ahead of the consumers of some deep queues."""
REST_SHARE = 16
"""After everything was looked at, this part of the limit has to come in before it is looked at again: on top of the least that
there was since.
"""
TURN_COST = PIECE_COST
"""Of what is done in one go, as of any piece: inputs that bring in more than goes in theirs leave it to turns of its own."""
QUEUES_IN_ONE = 2000
"""Queues of which the long ones are found in one go: some tenths of a millisecond."""
_QUEUES_SHIFT = 3
"""So many of these cost as much as a unit of `Pieces`: 2 to this."""
_STEP = 32
"""Positions that are asked for together: mostly as many bodies go with one input as came with it, and those are few."""
_FIRST_MAX = 256
"""Of what is delivered first by its priority, looked at in a queue."""
_DROP_COST = 5
"""Of letting one body go, in units of `Pieces`. To look at a message costs one, and to unpack one, too."""
_BYTES_SHIFT = 12
"""So many bytes of a body that goes cost as much as one unit: 2 to this. Its checksum is made, and its pages go back."""


class ResidentBodies:
    """Lives as long as the state that it trims; whoever drives the state calls `trim` after every input."""

    def __init__(self, state: SetState, bytes_max: int) -> None:
        self._state = state
        self._bytes_max = bytes_max
        self._head_bytes = bytes_max // HEAD_SHARE
        self._body_bytes_min = min(BODY_BYTES_MIN, self._head_bytes)
        self._threshold = bytes_max
        """Nothing is looked at below."""
        self._behind = LogIndex(0)
        """Nothing is looked at before the own store has this: what can go is waiting for it."""
        self._unseen: list[QueueId] = []
        """Queues that were not asked yet whether they are long and have their turn before the next rest; the last first."""
        self._left = 0
        """No more bytes than these are left of what was here when the first of them was asked: what came later may be where
        nobody looks any more.
        """
        self._turn: deque[QueueId] = deque()
        """Those that are long."""
        self._head_left = 0
        """Bytes at the head of the first of these that stay resident, behind what was looked at."""
        self._dropped_to: dict[QueueId, QueuePosition] = {}
        """Everything between a queue's head and here was looked at."""
        self._read_back: deque[tuple[MessageId, int]] = deque()
        self._read_back_bytes = 0

    def bring_back(self, found: dict[MessageId, Message]) -> None:
        """Bodies that were read from the store; of messages that are gone meanwhile nothing is kept."""
        for message_id, message in found.items():
            self._state.set_content(message_id, message)
            size = size_of(message)
            self._read_back.append((message_id, size))
            self._read_back_bytes += size

    def trim(self, durable_end: LogIndex) -> bool:
        """Drop bodies while there are too many, a piece of that; answers whether more of it could be done now, for which another
        turn is to be asked. `durable_end`: up to where the own store has the log.
        """
        contents = self._state.contents
        cost = self._drop_read_back() if self._read_back_bytes > self._bytes_max // READ_BACK_SHARE else 0
        if contents.resident_bytes <= self._threshold or durable_end < self._behind:
            if self._threshold > self._bytes_max:
                self._rest()
            return cost >= TURN_COST
        if self._state.unfinished is not None:
            return False  # Queues may have places of messages whose contents are not there yet.
        if not (self._turn or self._unseen):
            self._begin_turn()
        while (self._turn or self._unseen) and contents.resident_bytes > self._bytes_max:
            if cost >= TURN_COST:
                return True
            if self._turn:
                cost += self._trim_first(durable_end, TURN_COST - cost)
            else:
                cost += self._find_long()
        is_over = not (self._turn or self._unseen) and contents.resident_bytes > self._bytes_max
        if not is_over or self._behind:
            self._threshold = self._bytes_max
            return False
        self._rest()
        return contents.resident_bytes > self._threshold

    def _rest(self) -> None:
        """Nothing more can go of what was looked at."""
        self._left = min(self._left, self._state.contents.resident_bytes)
        self._threshold = max(self._bytes_max, self._left + self._bytes_max // REST_SHARE)

    def _drop_read_back(self) -> int:
        """What was read back and not taken, the oldest first, while there is too much of it; answers what that cost."""
        cost = 0
        while self._read_back_bytes > self._bytes_max // READ_BACK_SHARE and cost < TURN_COST:
            message_id, size = self._read_back.popleft()
            self._read_back_bytes -= size
            self._state.contents.drop((message_id,))
            cost += _DROP_COST + (size >> _BYTES_SHIFT)
        return cost

    def _begin_turn(self) -> None:
        queues = self._state.queues.by_id
        self._unseen.extend(reversed(queues))
        self._behind, self._threshold = LogIndex(0), self._bytes_max
        self._left = self._state.contents.resident_bytes
        self._dropped_to = {queue: to for queue, to in self._dropped_to.items() if queue in queues}

    def _find_long(self) -> int:
        """Some of those that nobody has asked of; answers what that cost."""
        some = self._unseen[: -QUEUES_IN_ONE - 1 : -1]
        del self._unseen[-len(some) :]
        queues = filter(None, map(self._state.queues.by_id.get, some))
        self._turn.extend(queue.id for queue in queues if queue.is_durable and queue.bytes > self._head_bytes)
        return len(some) >> _QUEUES_SHIFT

    def _trim_first(self, durable_end: LogIndex, cost_max: int) -> int:
        """Look at some positions of the first queue whose turn it is, behind the last one looked at: until that has cost so much,
        or enough is gone. Its turn is over when nothing more of it can go. Answers what it cost.
        """
        queue, contents = self._state.queues.by_id.get(self._turn[0]), self._state.contents
        head = queue.head() if queue is not None else None
        if queue is None or head is None:
            self._end_turn()
            return 1
        marker = self._dropped_to.get(queue.id, QueuePosition(0))
        if marker < head:
            marker, self._head_left = QueuePosition(head - 1), max(self._head_bytes, 1)
        first, cost = self._first_by_priority(queue)
        while found := queue.positions(marker + 1, _STEP):
            for position, message_id in zip(found, queue.message_ids(found), strict=True):
                cost += 1
                size = contents.size_of(message_id)
                if self._head_left > 0:
                    self._head_left -= size
                elif size >= self._body_bytes_min:
                    index = index_of(message_id)
                    if index > durable_end:
                        self._behind = min(self._behind or index, index)
                        self._dropped_to[queue.id] = marker
                        self._end_turn()
                        return cost
                    if position not in first and not contents.references(message_id)[1]:
                        cost += contents.unpacked_for(message_id)
                        if contents.get(message_id) is not None:
                            contents.drop((message_id,))
                            self._left -= size
                            cost += _DROP_COST + (size >> _BYTES_SHIFT)
                marker = position
                if cost >= cost_max or contents.resident_bytes <= self._bytes_max:
                    self._dropped_to[queue.id] = marker
                    return cost
        self._dropped_to[queue.id] = marker
        self._end_turn()
        return cost

    def _end_turn(self) -> None:
        self._turn.popleft()
        self._head_left = 0

    def _first_by_priority(self, queue: Queue) -> tuple[Collection[QueuePosition], int]:
        """Those that are delivered before what stands at the head: as much as a head has, and no more than a few. And what it
        cost to find them.
        """
        if queue.priorities is None:
            return (), 1
        found = queue.priorities.above_default(_FIRST_MAX)
        sizes = accumulate(map(size_of, self._state.contents.of(queue.message_ids(found))))
        first = {position for position, size in zip(found, sizes, strict=True) if size <= self._head_bytes}
        return first, 1 + len(found)
