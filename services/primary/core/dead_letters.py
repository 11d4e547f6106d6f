"""Dead letters: what is rejected, has expired or failed too often is moved to the dead-letter target of its queue.

Law: what there is little of is moved at once. Everything else is moved in parts, and a part in steps between which nothing comes.
Where they go is found anew for each part, behind which others have their turn. What waits for its part (`Waiting`) is on its way
out and offered to nobody; a successor finds it again, by its time or because it is worn out.
"""

from collections.abc import Iterator, Sequence

from lockstep.core.ids import QueuePosition
from lockstep.core.queues import Queue
from services.primary.core.context import Context
from services.primary.core.dead_letter_parts import bodies_away, fitting, move_part
from services.primary.core.dead_letter_routes import NOWHERE, find_routes, routes_at_once
from services.primary.core.read_back import Found
from services.primary.core.removing import end_part
from services.primary.core.waiting_letters import Waiting, WaitingLetters


def dead_letter(context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int) -> None:
    """Move messages to the queue's dead-letter target, between two commands: at once if they are few, and nobody waits; otherwise
    they are on their way out from now on, and `move_waiting` moves them. Those that are so already wait no second time: moved
    twice, a message would be doubled.
    """
    there, letters = context.dispatch.not_leaving(queue.id, queue.present(positions)), context.letters
    if not there:
        return
    is_first = not letters.ready and not letters.is_reading(queue, reason)
    if is_first and are_few(context, queue, there, reason, context.settings.frame_bytes_max):
        move_few(context, queue, there, reason)
        end_part(context)
        return
    context.dispatch.begin_leaving(queue.id, there)
    letters.add(queue, there, reason)


def are_few(
    context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int, bytes_max: int
) -> bool:
    """Whether these messages, which are there, may be moved at once: where they go is found in no time, there is little to be
    moved, and if bodies are needed, they are here and not more than so many bytes.
    """
    routes = routes_at_once(context, queue, reason)
    if routes is None or len(positions) * routes.cost > context.letters.left(context.now):
        return False
    is_whole = fitting(context, queue, positions, routes, bytes_max) == len(positions)
    return is_whole and not bodies_away(context, queue, positions, routes)


def move_few(context: Context, queue: Queue, positions: Sequence[QueuePosition], reason: int) -> None:
    """Move messages in the frame that it is in: none, or some that right now `are_few`."""
    routes = routes_at_once(context, queue, reason) if positions else NOWHERE
    assert routes is not None, f"{queue}: its dead letters are not moved at once"
    context.letters.pay(len(positions) * routes.cost)
    for _ in move_part(context, queue, positions, routes, reason):
        pass


def may_move(context: Context) -> bool:
    """Whether a part of what waits may be moved now. If the time for that is used up, another turn is asked for."""
    if context.alone.works or context.writer.log.uncommitted_bytes > context.settings.uncommitted_bytes_max:
        return False
    letters, now = context.letters, context.now
    if letters.left(now) > 0 and letters.ask_share(context.selectors.has_share(now)):
        return True
    ask_for_turn(context)
    return False


def ask_for_turn(context: Context) -> None:
    """What waits goes on with it."""
    context.effects += context.alone.ask(context.state.set_name, context.now)


def move_waiting(context: Context) -> None:
    """Go on with what waits, as much as leaves others their turn: a part of one queue, then of the next."""
    letters = context.letters
    while letters.ready and may_move(context):
        context.alone.do(_move_next(context, letters))


def _move_next(context: Context, letters: WaitingLetters) -> Iterator[int]:
    """A part of what waits first, or what has to be read for it."""
    letters.are_before_rejects = False
    waiting = letters.take()
    queue = waiting.queue
    if context.state.queues.by_id.get(queue.id) is not queue:
        return
    routes = yield from find_routes(context, queue, waiting.reason)
    some = waiting.positions[waiting.done : waiting.done + routes.part_max]
    free = [
        position
        for position in queue.present(some)
        if position not in queue.locks and not context.dispatch.is_held(queue.id, position)
    ]
    count = fitting(context, queue, free, routes, context.settings.frame_bytes_max)
    away = [each for each in bodies_away(context, queue, free[:count], routes) if each not in waiting.found]
    if away:
        first = queue.message_ids(free).index(away[0])
        if not first:
            letters.begin_reading(waiting)
            context.read_back.ask(
                lambda: context.read_back.select(away), lambda found: _came(context, waiting, found)
            )
            return
        count = first  # Those before it need not wait.
    if count < len(free):
        some = some[: some.index(free[count])]
        del free[count:]
    context.bodies.bring_back(waiting.found)
    waiting.found = {}
    context.dispatch.end_leaving(queue.id, some)
    if waiting.went(len(some)):
        letters.put_back(waiting)
    else:
        letters.through.append(queue.id)
    letters.pay(len(some) * routes.cost)
    yield from move_part(context, queue, free, routes, waiting.reason)
    end_part(context)


def _came(context: Context, waiting: Waiting, found: Found) -> None:
    waiting.found.update(found)
    context.letters.end_reading(waiting)
    ask_for_turn(context)
