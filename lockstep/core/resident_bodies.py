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
from lockstep.core.queues import Queue
from lockstep.core.records import Message
from lockstep.core.set_state import SetState

BODY_BYTES_MIN = 256
"""Smaller ones stay: what is kept in place of a body (sizes, checksum) takes about 130 bytes itself. A limit so small that
its heads are smaller (`HEAD_SHARE`) lets them go too.
"""
HEAD_SHARE = 64
"""This part of the limit stays resident at the head of each queue: what is delivered while the first reading is under way."""
READ_BACK_SHARE = 8
"""This part of the limit is for bodies that were read back: some batches ahead of the consumers of some deep queues."""
REST_SHARE = 16
"""After everything was looked at, this part of the limit has to come in before it is looked at again."""
TURN_POSITIONS = 4096
"""Positions looked at in one go: some milliseconds, and more than one input brings in of messages that can be dropped."""
_STEP = 256


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
        self._turn: deque[QueueId] = deque()
        """Queues to be looked at before the next rest."""
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

    def trim(self, durable_end: LogIndex) -> None:
        """Drop bodies while there are too many. `durable_end`: up to where the own store has the log."""
        contents = self._state.contents
        while self._read_back_bytes > self._bytes_max // READ_BACK_SHARE:
            message_id, size = self._read_back.popleft()
            self._read_back_bytes -= size
            contents.drop((message_id,))
        if contents.resident_bytes <= self._threshold or durable_end < self._behind:
            return
        if self._state.unfinished is not None:
            return  # Queues may have places of messages whose contents are not there yet.
        if not self._turn:
            self._begin_turn()
        left = TURN_POSITIONS
        while self._turn and contents.resident_bytes > self._bytes_max and left > 0:
            queue = self._state.queues.by_id.get(self._turn[0])
            if queue is not None:
                left = self._trim_queue(queue, durable_end, left)
            if left > 0 and contents.resident_bytes > self._bytes_max:
                self._turn.popleft()
        is_resting = not self._turn and contents.resident_bytes > self._bytes_max and not self._behind
        resting_at = contents.resident_bytes + self._bytes_max // REST_SHARE
        self._threshold = resting_at if is_resting else self._bytes_max

    def _begin_turn(self) -> None:
        queues = self._state.queues.by_id
        self._turn.extend(
            queue.id for queue in queues.values() if queue.is_durable and queue.bytes > self._head_bytes
        )
        self._behind = LogIndex(0)
        self._dropped_to = {queue: to for queue, to in self._dropped_to.items() if queue in queues}

    def _trim_queue(self, queue: Queue, durable_end: LogIndex, left: int) -> int:
        """Look at some positions behind the last one looked at; answers how many of `left` remain."""
        head, contents = queue.head(), self._state.contents
        if head is None:
            return left
        marker = self._dropped_to.get(queue.id, QueuePosition(0))
        if marker < head:
            marker = self._end_of_head(queue)
        first = self._first_by_priority(queue)
        while left > 0 and contents.resident_bytes > self._bytes_max:
            found = queue.positions(marker + 1, min(left, _STEP))
            if not found:
                break
            left -= len(found)
            ids = queue.message_ids(found)
            for position, message_id, content in zip(found, ids, contents.of(ids), strict=True):
                if type(content) is Message and size_of(content) >= self._body_bytes_min:
                    index = index_of(message_id)
                    if index > durable_end:
                        self._behind = min(self._behind or index, index)
                    if index > durable_end or contents.resident_bytes <= self._bytes_max:
                        self._dropped_to[queue.id] = marker
                        return left
                    if position not in first and not contents.references(message_id)[1]:
                        contents.drop((message_id,))
                marker = position
        self._dropped_to[queue.id] = marker
        return left

    def _first_by_priority(self, queue: Queue) -> Collection[QueuePosition]:
        """Those that are delivered before what stands at the head: as much as a head has, and no more than a few."""
        if queue.priorities is None:
            return ()
        found = queue.priorities.above_default(_STEP)
        sizes = accumulate(map(size_of, self._state.contents.of(queue.message_ids(found))))
        return {position for position, size in zip(found, sizes, strict=True) if size <= self._head_bytes}

    def _end_of_head(self, queue: Queue) -> QueuePosition:
        """The last position that stays resident at the head of a queue, which is not empty."""
        size = 0
        for position in queue.positions(0, TURN_POSITIONS):
            size += queue.size_of((position,))
            if size >= self._head_bytes:
                break
        return position
