"""Queues that end by themselves: auto-delete queues, and exclusive ones.

Law: an exclusive queue ends with its session, and behind the end of prepared branches that touch it: what they do commits whole.
An auto-delete queue ends with its last consumer. One whose consumer lost its stream, or its primary, waits until that session has
ended, or has come back without it; one whose consumer left behind commands that were pushed back waits until these are done, and
for nothing that was said behind its end. One that a prepared branch touches waits for the end of that, one with dead letters on
their way out for them, and until it is known whether the last reign left any; one that never had a consumer waits for the first.
After a restart nobody knows whose a durable one was, and it waits as long as any session is waited for.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from lockstep.core.ids import QueueId, SessionKey
from lockstep.core.queues import Queue
from lockstep.core.records import Consume, DeleteQueue, UseQueue
from services.primary.core.context import Context
from services.primary.core.queue_dispatch import Consumer

LOOK_MS = 1000
"""How often what was kept is looked at: much less often than ticks come."""
_DELETE_COST = 20
"""Of deleting a queue."""


def note_consumer(context: Context, session: SessionKey, queue: Queue) -> None:
    """A session opens a consumer that takes messages: whoever leads next is to know of the first that it has of a queue."""
    if not queue.definition.is_auto_delete:
        return
    if not queue.definition.is_used:
        context.writer.append(UseQueue(None, queue.id), queue.is_durable)
    if queue.id not in context.state.sessions.by_key[session].consumed:
        context.writer.append(Consume(None, session, queue.id), False)


class AutoDeletion:
    """Lives as long as the epoch; driven by the attachments."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._awaited: dict[SessionKey, dict[QueueId, None]] = {}
        """Queues of which a session had consumers that ended with its stream, or an epoch, and not on purpose."""
        self._early: dict[SessionKey, dict[QueueId, int]] = {}
        """Queues of which a session had consumers that left behind commands which were pushed back, with the number of the last
        of those, ascending: it is done before they end.
        """
        self._waits: Counter[QueueId] = Counter()
        """How often each queue is in one of these two."""
        self._back_since_ms: dict[SessionKey, int] = {}
        """When those of these sessions that have a stream came back, in that order."""
        self._unclaimed: dict[QueueId, None] = {}
        """Queues that had consumers before this epoch, of which no session is known."""
        self._unclaimed_until_ms = 0
        """0: counted from the first look on, when the epoch serves."""
        self._kept: dict[QueueId, None] = {}
        """Queues that must not end yet (`_must_stay`): without consumers, or exclusive and without their session."""
        self._is_ending = False
        """They are gone through now, and so are the early ones."""
        self._looked_ms = context.now.boottime_ms
        self._earlier_to = QueueId(0)
        """Queues up to this one were there when the epoch began."""
        self._is_all_found = False
        """Their dead letters that were on their way out then are so again."""

    def begin(self) -> Iterator[int]:
        """The epoch begins: what sessions consumed in earlier ones, they may consume again. In steps that say what they cost;
        nothing changes meanwhile.
        """
        state = self._context.state
        for key, session in state.sessions.by_key.items():
            for queue_id in session.consumed:
                self._await(key, queue_id)
            yield 1 + len(session.consumed)
        by_id = state.queues.by_id
        for queue_id in sorted(by_id):
            queue, self._earlier_to = by_id[queue_id], queue_id
            yield 1
            if not (queue.definition.is_auto_delete or queue.definition.exclusive_session):
                continue  # Nearly always.
            if self._has_lost_owner(queue):
                self._kept[queue_id] = None
            elif queue.definition.is_auto_delete and queue.definition.is_used and not self._waits[queue_id]:
                self._unclaimed[queue_id] = None

    def consumers_lost(self, session: SessionKey, consumers: Iterable[Consumer]) -> None:
        """These consumers of a session ended with its stream, or because it is to end: it may come back before it has."""
        self._back_since_ms.pop(session, None)
        for consumer in consumers:
            # Another session's end may have taken the queue, with nobody told yet.
            queue = self._context.state.queues.by_id.get(consumer.queue)
            if queue is not None and queue.definition.is_auto_delete and not consumer.is_browser:
                self._await(session, queue.id)

    def _await(self, session: SessionKey, queue_id: QueueId) -> None:
        queues = self._awaited.setdefault(session, {})
        if queue_id not in queues:
            queues[queue_id] = None
            self._waits[queue_id] += 1

    def came_back(self, session: SessionKey) -> None:
        """A session has a stream again: it opens its consumers now, or has none any more."""
        if session in self._awaited:
            self._back_since_ms[session] = self._context.now.boottime_ms

    def session_ended(self, session: SessionKey) -> Iterator[int]:
        """A session is about to be closed: its consumers are over, in steps that say what they cost. Its exclusive queues have
        ended.
        """
        yield from self._await_no_more(session)
        yield from self._release(self._early.pop(session, ()))

    def exclusive_end(self, session: SessionKey) -> Iterator[QueueId]:
        """The exclusive queues of a session that is about to be closed end, one after the other."""
        context = self._context
        for queue_id in context.dispatch.exclusive_queues(session):
            queue = context.state.queues.by_id.get(queue_id)
            if queue is not None and self._must_stay(queue_id):
                self._kept[queue_id] = None
            elif queue is not None:
                context.writer.append(DeleteQueue(None, queue_id), queue.is_durable)
            yield queue_id

    def _await_no_more(self, session: SessionKey) -> Iterator[int]:
        self._back_since_ms.pop(session, None)
        yield from self._release(self._awaited.pop(session, ()))

    def _release(self, queues: Iterable[QueueId]) -> Iterator[int]:
        """These wait for one thing less."""
        for queue_id in queues:
            self._wait_no_more(queue_id)
            self._delete_unused(queue_id)
            yield _DELETE_COST

    def _wait_no_more(self, queue_id: QueueId) -> None:
        self._waits[queue_id] -= 1
        if not self._waits[queue_id]:
            del self._waits[queue_id]

    def consumer_left(self, consumer: Consumer, pushed_back_to: int) -> None:
        """A consumer left on purpose. A browser is none. `pushed_back_to`: the highest number of a command that was said before
        and was pushed back, or dropped behind such a one; it may have come again. 0: none was.
        """
        if consumer.is_browser:
            return
        if pushed_back_to:
            self._note_early(consumer.session, consumer.queue, pushed_back_to)
        awaited = self._awaited.get(consumer.session, {})
        if consumer.queue in awaited:
            del awaited[consumer.queue]
            self._wait_no_more(consumer.queue)
        self._delete_unused(consumer.queue)

    def _note_early(self, session: SessionKey, queue_id: QueueId, number: int) -> None:
        """The queue does not end before the session's command of this number is done, if it is not yet."""
        state = self._context.state
        queue, known = state.queues.by_id.get(queue_id), state.sessions.get(session)
        if queue is None or not queue.definition.is_auto_delete:
            return
        if known is None or known.next_number > number:
            return
        early = self._early.setdefault(session, {})
        if early.pop(queue_id, None) is None:
            self._waits[queue_id] += 1
        early[queue_id] = number

    def look(self, *, is_all_found: bool) -> None:
        """Look again, now and then, at what was kept; at once at what was kept for dead letters that have gone: nobody else may
        have its name before. `is_all_found`: what the last reign has left was looked through, and settled.
        """
        letters = self._context.letters
        if letters.through:
            through, letters.through = letters.through, []
            if self._kept:
                self._begin(self._end_kept(through))
        now_ms, settings = self._context.now.boottime_ms, self._context.settings
        was_all_found, self._is_all_found = self._is_all_found, is_all_found
        if now_ms - self._looked_ms < LOOK_MS and was_all_found == is_all_found:
            return
        self._looked_ms = now_ms
        if self._unclaimed:
            self._unclaimed_until_ms = self._unclaimed_until_ms or now_ms + settings.session_timeout_ms_max
            if now_ms >= self._unclaimed_until_ms:
                self._kept |= self._unclaimed
                self._unclaimed = {}
        while self._back_since_ms:
            session, since_ms = next(iter(self._back_since_ms.items()))
            if now_ms - since_ms < settings.client_silence_ms:
                break
            del self._back_since_ms[session]
            self._context.alone.do(self._await_no_more(session))
        if (self._kept or self._early) and not self._is_ending:
            self._is_ending = True
            self._begin(self._end_all())

    def _begin(self, work: Iterator[int]) -> None:
        self._context.pieces.begin(work)
        self._context.pieces.go_on()

    def _end_all(self) -> Iterator[int]:
        yield from self._end_early()
        yield from self._end_kept(list(self._kept))
        self._is_ending = False

    def _end_early(self) -> Iterator[int]:
        """Those before whose ends all is done now, in steps that say what they cost. Others have their turn between: what is
        there is looked for anew behind each step.
        """
        for session in list(self._early):
            while early := self._early.get(session):
                queue_id, number = next(iter(early.items()))
                known = self._context.state.sessions.get(session)
                if known is not None and known.next_number <= number:
                    break
                del early[queue_id]
                yield from self._release((queue_id,))
            if not early:
                self._early.pop(session, None)
            yield 1

    def _end_kept(self, queues: Iterable[QueueId]) -> Iterator[int]:
        """Those of these that nothing keeps any more, in steps that say what they cost."""
        for queue_id in queues:
            if queue_id in self._kept and not self._must_stay(queue_id):
                del self._kept[queue_id]
                self._delete_unused(queue_id)
                yield _DELETE_COST
            yield 1

    def _delete_unused(self, queue_id: QueueId) -> None:
        context = self._context
        queue = context.state.queues.by_id.get(queue_id)
        if queue is None or not self._is_unused(queue):
            return
        if self._must_stay(queue_id):
            self._kept[queue_id] = None
        else:
            context.writer.append(DeleteQueue(None, queue_id), queue.is_durable)

    def _is_unused(self, queue: Queue) -> bool:
        if self._has_lost_owner(queue):
            return True
        if not queue.definition.is_auto_delete or self._context.dispatch.consumer(queue.id):
            return False
        return not self._waits[queue.id]

    def _has_lost_owner(self, queue: Queue) -> bool:
        """An exclusive queue whose session is over: nobody can consume it any more."""
        owner = queue.definition.exclusive_session
        return bool(owner) and self._context.state.sessions.get(owner) is None

    def _must_stay(self, queue_id: QueueId) -> bool:
        """Whether a prepared branch may still do something to it, or what is dead would go with it."""
        if not self._is_all_found and queue_id <= self._earlier_to:
            return True
        return self._context.state.transactions.is_touched(queue_id) or self._context.letters.has(queue_id)
