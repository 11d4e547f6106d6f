"""A writer of histories whose few records are about many messages: more than a block of a snapshot holds."""

from random import Random

from lockstep.core.block_cutting import BLOCK_BYTES_MAX
from lockstep.core.ids import QueuePosition
from lockstep.core.queues import Queue
from lockstep.core.records import Annotate, Commit, DeleteQueue, DequeueReason, Message, Move, Requeue
from tests.unit.lockstep.core.history import Log, message


class Crowd:
    """Writes a random history into a log, by the rules of `history.Writer`. Everything is durable but beginnings."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.log = Log()
        self.log.begin_epoch()
        self._names = 0
        self._declare()

    def step(self) -> None:
        deeds = (
            [self._publish] * 4
            + [self._dequeue_head] * 4
            + [self._dequeue_some] * 3
            + [self._requeue, self._annotate, self._move, self._move, self._begin, self._end, self._end]
            + [self._work] * 3
        )
        if self.random.random() < 0.05:
            self._delete()
        else:
            self.random.choice(deeds)()
        if self.random.random() < 0.6:
            self.log.flush()

    def _declare(self) -> None:
        self._names += 1
        self.log.queue(f"q{self._names}")

    def _queues(self) -> list[Queue]:
        while len(self.log.state.queues.by_id) < 2:
            self._declare()
        return list(self.log.state.queues.by_id.values())

    def _messages(self) -> tuple[Message, ...]:
        queues = self._queues()
        count = self.random.choice((1, 1, 3, 60, 130, 300))
        body = bytes(BLOCK_BYTES_MAX // 20 if self.random.random() < 0.1 and count < 100 else 3)
        places = [tuple(self.random.sample(queues, self.random.randint(1, 2))) for _ in range(3)]
        if self.random.random() < 0.7:
            places = places[:1]
        return tuple(message(self.random.choice(places), body) for _ in range(count))

    def _taken(self, queue: Queue, is_head: bool = False) -> tuple[QueuePosition, ...]:
        free = [position for position in queue.positions() if position not in queue.locks]
        if is_head:
            return tuple(free[: self.random.choice((1, 5, 100, 250))])
        share = self.random.choice((0.01, 0.1, 0.9))
        return tuple(position for position in free if self.random.random() < share)

    def _publish(self) -> None:
        self.log.publish(*self._messages())

    def _dequeue_head(self) -> None:
        queue = self.random.choice(self._queues())
        self.log.dequeue(queue, *self._taken(queue, is_head=True))

    def _dequeue_some(self) -> None:
        queue = self.random.choice(self._queues())
        self.log.dequeue(queue, *self._taken(queue))

    def _requeue(self) -> None:
        queue = self.random.choice(self._queues())
        self.log.append(Requeue(None, queue.id, self._taken(queue)))

    def _move(self) -> None:
        queues = self._queues()
        queue = self.random.choice(queues)
        targets = tuple(target.id for target in self.random.sample(queues, self.random.randint(0, 2)))
        expires_ms = tuple(self.random.choice((0, 99)) for _ in targets) if self.random.random() < 0.5 else ()
        move = Move(None, 0, queue.id, self._taken(queue), targets, DequeueReason.REJECTED, expires_ms, 7)
        self.log.append(move)

    def _annotate(self) -> None:
        queue = self.random.choice(self._queues())
        pairs = self.random.choice((b"\xa3\x01a\x41", b"\xa3\x01b\x41"))
        self.log.append(Annotate(None, queue.id, self._taken(queue), pairs))

    def _delete(self) -> None:
        self.log.append(DeleteQueue(None, self.random.choice(self._queues()).id))

    def _begin(self) -> None:
        self._names += 1
        self.log.begin(f"xid-{self._names}".encode())
        self._work()

    def _work(self) -> None:
        open_ones = self.log.state.transactions.open()
        if open_ones:
            key = self.random.choice(open_ones).key
            if self.random.random() < 0.5:
                self.log.publish(*self._messages(), transaction=key)
            else:
                queue = self.random.choice(self._queues())
                positions = self._taken(queue, is_head=self.random.random() < 0.5)
                self.log.dequeue(queue, *positions, transaction=key)

    def _end(self) -> None:
        live = sorted(self.log.state.transactions.live.items())
        if not live:
            return
        key, buffer = self.random.choice(live)
        if self.random.random() < 0.3:
            self.log.rollback(key)
        elif buffer.is_prepared:
            self.log.append(Commit(None, key))
        elif not buffer.is_rollback_only:
            self.log.prepare(key, buffer.xid)
