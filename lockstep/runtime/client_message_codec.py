"""One message of a client on the wire: a command or a request.

A publish or settle is one protobuf object with columns, however many messages it carries.

Law: what is refused as it comes in is refused on its way out, by the same words: nothing that was encoded ends its stream.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, lt
from typing import TypeVar, assert_never

from msgspec.structs import replace

from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.ids import Epoch, QueuePosition, SessionId, SessionKey, SetName, TransactionKey
from lockstep.core.priority_levels import PRIORITY_DEFAULT, PRIORITY_MAX
from lockstep.runtime.bodies_apart import MUCH_BYTES, fill_bodies, messages_with_bodies, put_back
from lockstep.runtime.branch_message_codec import (
    DECODE_REQUEST,
    DECODE_VERB,
    encode_branch_request,
    encode_branch_verb,
)
from lockstep.runtime.columns import expand, pack
from lockstep.runtime.transaction_name_codec import decode_name, encode_name, fill_name
from lockstep.wire.v1 import session_pb2 as pb

COUNT_MAX = 20_000
"""Messages or positions of one command: twice what sets take, so that their limit is met first, by name. The same for all lists
of what takes long to make: queues, names, and pairs."""
HEADERS_MAX = 60_000
"""Of one publish, of all its messages: six for each where they are as many as sets take."""
_OF_HEADERS = "headers, each of three fields,"
_Wire = pb.ClientMessage
_NAME_AND_VALUE = attrgetter("name", "value")
Headers = tuple[tuple[str, str], ...]
_Positions = TypeVar("_Positions", bound=Sequence[QueuePosition])

SPAN_MS_MAX = c.SPAN_MS_MAX


def encode_client_message(message: rq.ClientMessage, wire: pb.ClientMessage) -> Sequence[bytes] | None:
    """Fills `wire`, which is new; returns the bodies that it is left without, if they are big. Raises `ValueError` for numbers
    that the wire has no room for, and `Rejected` for what is no message of a client.

    What is common is filled in where it stands: what is built apart is copied, bodies and all, when it is put there.
    """
    if isinstance(message, c.Command) and not message.number:
        raise invalid(f"{type(message).__name__} has no number")
    match message:
        case c.CommitCommand():
            return _fill_commit(message, wire)
        case c.PublishCommand():
            return _fill_publish_command(message, wire)
        case c.SettleCommand():
            wire.number = message.number
            _fill_settle(message, wire.settle)
            return None
        case c.BeginCommand(number, timeout_ms):
            wire.number = number
            wire.begin.timeout_ms = span(timeout_ms)
            return None
        case c.RollbackCommand(number, transaction):
            built = _Wire(number=number, rollback=_Wire.Rollback(transaction=encode_name(transaction)))
        case c.DeclareExchangeCommand(number, name, kind, is_durable):
            exchange = _Wire.DeclareExchange(name=name, kind=kind, is_durable=is_durable)
            built = _Wire(number=number, declare_exchange=exchange)
        case c.DeleteExchangeCommand(number, name, if_unused):
            built = _Wire(number=number, delete_exchange=_Wire.DeleteExchange(name=name, if_unused=if_unused))
        case c.DeclareQueueCommand(number, name, options):
            built = _Wire(number=number, declare_queue=_declare_queue(name, options))
        case c.DeleteQueueCommand(number, name, if_unused, if_empty):
            delete_queue = _Wire.DeleteQueue(name=name, if_unused=if_unused, if_empty=if_empty)
            built = _Wire(number=number, delete_queue=delete_queue)
        case c.PurgeQueueCommand(number, name):
            built = _Wire(number=number, purge_queue=_Wire.PurgeQueue(name=name))
        case c.BindCommand(number, exchange, queue, key, arguments, is_unbind):
            check_count(len(arguments), COUNT_MAX, "arguments of a binding")
            bind = _Wire.Bind(
                exchange=exchange, queue=queue, key=key, arguments=_pairs(arguments), is_unbind=is_unbind
            )
            built = _Wire(number=number, bind=bind)
        case (
            c.SelectDtxCommand()
            | c.StartCommand()
            | c.EndCommand()
            | c.PrepareBranchCommand()
            | c.CommitBranchCommand()
            | c.RollbackBranchCommand()
            | c.ForgetBranchCommand()
            | c.SetTimeoutCommand()
            | c.EndHeuristicallyCommand()
        ):
            built = encode_branch_verb(message)
        case _:
            built = _encode_request(message)
    wire.MergeFrom(built)
    return None


def _fill_publish_command(command: c.PublishCommand, wire: pb.ClientMessage) -> Sequence[bytes] | None:
    wire.number = command.number
    publish = wire.publish
    apart = _fill_publish(command, publish)
    if command.transaction is not None:
        fill_name(command.transaction, publish.transaction)
    publish.sequence = command.sequence
    return apart


def _fill_commit(command: c.CommitCommand, wire: pb.ClientMessage) -> Sequence[bytes] | None:
    wire.number = command.number
    commit = wire.commit
    fill_name(command.transaction, commit.transaction)
    commit.operations = command.operations
    if command.begins:
        commit.begins = command.begins
    if command.last_publish is not None:
        return _fill_publish(command.last_publish, commit.last_publish)
    return None


def _encode_request(message: rq.AnyRequest) -> pb.ClientMessage:
    match message:
        case rq.Heartbeat():
            return _Wire(heartbeat=_Wire.Heartbeat())
        case rq.GrantCredit(consumer, credit):
            return _Wire(grant_credit=_Wire.GrantCredit(consumer=consumer, credit=credit))
        case rq.AttachSession(
            _, session_id, session, session_epoch, timeout_ms, heard, held, outlives, settling
        ):
            check_count(len(held), COUNT_MAX, "queues of held deliveries")
            check_count(len(settling), COUNT_MAX, "unanswered settles")
            attach = _Wire.Attach(
                session_id=session_id,
                session=session,
                session_epoch=session_epoch,
                timeout_ms=span(timeout_ms),
                heard=heard,
                held=[
                    _Wire.Held(queue=h.queue, epoch=h.epoch, positions=_distinct(h.positions)) for h in held
                ],
                outlives_hand_over=outlives,
                settling=[
                    _Wire.UnansweredSettle(number=s.number, queue=s.queue, positions=_distinct(s.positions))
                    for s in settling
                ],
            )
            return _Wire(attach=attach)
        case rq.DetachSession():
            return _Wire(detach=_Wire.Detach())
        case rq.OpenConsumer():
            return _Wire(open_consumer=_open_consumer(message))
        case rq.DrainConsumer(consumer):
            return _Wire(drain_consumer=_Wire.DrainConsumer(consumer=consumer))
        case rq.CloseConsumer(consumer):
            return _Wire(close_consumer=_Wire.CloseConsumer(consumer=consumer))
        case rq.Browse(request, queue, after, limit):
            return _Wire(browse=_Wire.Browse(request=request, queue=queue, after=after, limit=limit))
        case rq.GetOutcome(request, transaction, fence, sessions):
            check_count(len(sessions), COUNT_MAX, "sessions")
            ask = _Wire.AskOutcome(
                request=request, transaction=encode_name(transaction), fence=fence, session_ids=sessions
            )
            return _Wire(ask_outcome=ask)
        case rq.Describe(request, with_state_hash, page_size, page_token):
            describe = _Wire.Describe(
                request=request, with_state_hash=with_state_hash, page_size=page_size, page_token=page_token
            )
            return _Wire(describe=describe)
        case rq.DescribeQueue(request, queue):
            return _Wire(describe_queue=_Wire.DescribeQueue(request=request, queue=queue))
        case rq.DescribeExchange(request, exchange):
            return _Wire(describe_exchange=_Wire.DescribeExchange(request=request, exchange=exchange))
        case rq.Recover() | rq.GetTimeout():
            return encode_branch_request(message)
        case _:
            assert_never(message)


def _fill_publish(command: c.PublishCommand, publish: pb.ClientMessage.Publish) -> Sequence[bytes] | None:
    """All but its place in a transaction, and the bodies that are returned, if they are big."""
    messages = command.messages
    publish.exchange = command.exchange
    publish.routing_key = command.routing_key
    if isinstance(messages, AlikeMessages):
        bodies = messages.bodies
        _check_publish(len(bodies), messages.ttl_ms)
        size, apart = messages.content_bytes, None
        if size is not None and size < MUCH_BYTES:
            publish.bodies.extend(bodies)
        else:
            apart = fill_bodies(bodies, publish.bodies)
        if messages.properties:
            publish.properties.append(messages.properties)
        if messages.is_durable:
            publish.are_durable.append(True)
        if messages.ttl_ms:
            publish.ttls_ms.append(messages.ttl_ms)
        if messages.headers:
            check_count(len(messages.headers), HEADERS_MAX, _OF_HEADERS)
            publish.headers.add(pairs=_pairs(messages.headers))
        if messages.priority != PRIORITY_DEFAULT:
            publish.priorities = _checked_priorities((messages.priority,))
        return apart
    ttls_ms = pack([message.ttl_ms for message in messages], 0)
    _check_publish(len(messages), max(ttls_ms, default=0))
    priorities = pack([message.priority for message in messages], PRIORITY_DEFAULT)
    if priorities:
        publish.priorities = _checked_priorities(priorities)
    apart = fill_bodies([message.body for message in messages], publish.bodies)
    publish.properties.extend(pack([message.properties for message in messages], b""))
    publish.are_durable.extend(pack([message.is_durable for message in messages], False))
    publish.ttls_ms.extend(ttls_ms)
    if packed := pack([message.headers for message in messages], ()):
        check_count(sum(map(len, packed)), HEADERS_MAX, _OF_HEADERS)
        for headers in packed:
            publish.headers.add(pairs=_pairs(headers))
    return apart


def _fill_settle(command: c.SettleCommand, settle: pb.ClientMessage.Settle) -> None:
    check_count(len(command.positions), COUNT_MAX, "positions of a settle")
    _check_settle(command.positions, command.disposition, command.transaction is not None)
    settle.queue = command.queue
    settle.delivery_epoch = command.delivery_epoch
    settle.positions.extend(command.positions)
    settle.disposition = command.disposition
    if command.transaction is not None:
        fill_name(command.transaction, settle.transaction)
    settle.sequence = command.sequence
    settle.excluded_consumer = command.excluded_consumer
    if command.annotations:
        settle.annotations = command.annotations
    if command.may_be_partial:
        settle.may_be_partial = True


def _open_consumer(request: rq.OpenConsumer) -> pb.ClientMessage.OpenConsumer:
    return _Wire.OpenConsumer(
        consumer=request.consumer,
        queue=request.queue,
        credit=request.credit,
        is_exclusive=request.is_exclusive,
        selector=request.selector,
        is_browser=request.is_browser,
        after=request.after,
    )


def _declare_queue(name: str, options: c.QueueOptions) -> pb.ClientMessage.DeclareQueue:
    return _Wire.DeclareQueue(
        name=name,
        is_durable=options.is_durable,
        is_exclusive=options.is_exclusive,
        is_auto_delete=options.is_auto_delete,
        length_max=options.length_max,
        bytes_max=options.bytes_max,
        is_evicting=options.is_evicting,
        message_ttl_ms=span(options.message_ttl_ms),
        dead_letter_exchange=options.dead_letter_exchange,
        dead_letter_key=options.dead_letter_key,
        delivery_count_max=options.delivery_count_max,
    )


def _pairs(pairs: Headers) -> list[pb.Pair]:
    return [pb.Pair(name=name, value=value) for name, value in pairs]


# --- what is no message of a client, in either direction -----------------------------------------------------------------


def invalid(text: str) -> Rejected:
    return Rejected(ErrorCode.INVALID_ARGUMENT, text)


def span(milliseconds: int) -> int:
    """A time span as it is; raises `Rejected` above `SPAN_MS_MAX`."""
    if milliseconds > SPAN_MS_MAX:
        raise invalid(f"a time span of {milliseconds} ms is above {SPAN_MS_MAX} ms")
    return milliseconds


def check_count(count: int, count_max: int, what: str) -> None:
    """Raises `LimitReached` TOO_LARGE for more than one step takes: asked before anything is made of them."""
    if count > count_max:
        text = f"{count} {what} in one message, at most {count_max}"
        raise LimitReached("count_max", ErrorCode.TOO_LARGE, text)


def checked_priority(priority: int) -> int:
    """A message's priority as it is; raises `Rejected` if it is none."""
    if not 0 <= priority <= PRIORITY_MAX:
        raise invalid(f"a priority of {priority}: not between 0 and {PRIORITY_MAX}")
    return priority


def _checked_priorities(priorities: Sequence[int]) -> bytes:
    """A column of them, of at least one."""
    for priority in (min(priorities), max(priorities)):
        checked_priority(priority)
    return bytes(priorities)


def _check_publish(count: int, ttl_ms_max: int) -> None:
    """`count`: of its messages."""
    if not 0 < count <= COUNT_MAX:
        check_count(count, COUNT_MAX, "messages of a publish")
        raise invalid("a publish without messages")
    if ttl_ms_max > SPAN_MS_MAX:
        raise invalid(f"a message's time to live is above {SPAN_MS_MAX} ms")


def _check_settle(positions: Sequence[QueuePosition], disposition: int, is_in_transaction: bool) -> None:
    if not _distinct(positions):
        raise invalid("a settle without positions")
    if not c.Disposition.ACCEPT <= disposition <= c.Disposition.REJECT:
        raise invalid(f"disposition {disposition} is not known here")
    if is_in_transaction and disposition != c.Disposition.ACCEPT:
        raise invalid("only an accept can be part of a transaction")


def _distinct(positions: _Positions) -> _Positions:
    """Positions as they are; raises `Rejected` if one is named twice."""
    # They mostly ascend; a set of them costs thrice as much as to see that.
    if not all(map(lt, positions, positions[1:])) and len(set(positions)) != len(positions):
        raise invalid("a position is named twice")
    return positions


# --- decoding ---------------------------------------------------------------------------------------------------------


def decode_client_message(set_name: SetName, message: pb.ClientMessage) -> rq.ClientMessage:
    """Raises `Rejected` (INVALID_ARGUMENT) for what is no message of a client. `set_name` is the request's."""
    kind = message.WhichOneof("message")
    if kind is None:
        raise invalid("a message of a kind that is not known here")
    if (decode_command := _COMMANDS.get(kind)) is not None:
        if message.number == 0:
            raise invalid(f"command {kind} has no number")
        return decode_command(message.number, message)
    if message.number != 0:
        raise invalid(f"request {kind} has a command number")
    if kind == "attach":
        return _decode_attach(set_name, message.attach)
    return _REQUESTS[kind](message)


def _decode_publish(number: int, wire: pb.ClientMessage) -> c.PublishCommand:
    publish = wire.publish
    transaction = decode_name(publish.transaction) if publish.HasField("transaction") else None
    return _made_publish(number, publish, transaction, publish.sequence)


def _made_publish(
    number: int, publish: pb.ClientMessage.Publish, transaction: TransactionKey | None, sequence: int
) -> c.PublishCommand:
    messages = _made_messages(publish)
    return c.PublishCommand(number, publish.exchange, publish.routing_key, messages, transaction, sequence)


def _made_messages(publish: pb.ClientMessage.Publish) -> Sequence[c.OutgoingMessage]:
    """Raises `Rejected` for what is none, and for too many."""
    properties, are_durable, ttls_ms = publish.properties, publish.are_durable, publish.ttls_ms
    pairs, priorities, count = publish.headers, publish.priorities, len(publish.bodies)
    is_alike = len(properties) <= 1 and len(are_durable) <= 1 and len(ttls_ms) <= 1 and len(pairs) <= 1
    if not is_alike:
        for column in (properties, are_durable, ttls_ms, pairs):
            check_count(len(column), COUNT_MAX, "messages of a publish")
    _check_publish(count, max(ttls_ms) if ttls_ms else 0)
    bodies = tuple(publish.bodies)
    headers = _decode_headers(pairs) if pairs else []
    if priorities:
        _checked_priorities(priorities)
    if is_alike and len(priorities) <= 1:
        return AlikeMessages(
            bodies,
            properties[0] if properties else b"",
            are_durable[0] if are_durable else False,
            ttls_ms[0] if ttls_ms else 0,
            headers[0] if headers else (),
            priorities[0] if priorities else PRIORITY_DEFAULT,
        )
    return tuple(
        map(
            c.OutgoingMessage,
            expand(properties, count, b"", "properties"),
            bodies,
            expand(are_durable, count, False, "are_durable"),
            expand(ttls_ms, count, 0, "ttls_ms"),
            expand(headers, count, (), "headers"),
            expand(priorities, count, PRIORITY_DEFAULT, "priorities"),
        )
    )


def with_bodies(command: rq.ClientMessage, bodies: Mapping[int, bytes]) -> rq.ClientMessage:
    """The same publish, or commit with its last publish, with these bodies at their places among its messages."""
    if isinstance(command, c.CommitCommand) and command.last_publish is not None:
        return replace(command, last_publish=with_bodies(command.last_publish, bodies))
    assert isinstance(command, c.PublishCommand), f"{type(command).__name__} has no bodies"
    messages = command.messages
    if isinstance(messages, AlikeMessages):
        return replace(command, messages=AlikeMessages(put_back(messages.bodies, bodies), *messages.kind))
    return replace(command, messages=messages_with_bodies(messages, bodies))


def _decode_settle(number: int, wire: pb.ClientMessage) -> c.SettleCommand:
    settle = wire.settle
    named = settle.positions
    check_count(len(named), COUNT_MAX, "positions of a settle")
    positions = _decode_positions(named)
    transaction = decode_name(settle.transaction) if settle.HasField("transaction") else None
    _check_settle(positions, settle.disposition, transaction is not None)
    return c.SettleCommand(
        number,
        settle.queue,
        Epoch(settle.delivery_epoch),
        positions,
        settle.disposition,
        transaction,
        settle.sequence,
        settle.excluded_consumer,
        settle.annotations,
        settle.may_be_partial,
    )


def _decode_commit(number: int, wire: pb.ClientMessage) -> c.CommitCommand:
    commit = wire.commit
    key, operations, last_publish = decode_name(commit.transaction), commit.operations, None
    if commit.HasField("last_publish"):
        last_publish = _made_publish(number, commit.last_publish, key, operations)
    return c.CommitCommand(number, key, operations, commit.begins, last_publish)


def _decode_declare_queue(number: int, wire: pb.ClientMessage) -> c.DeclareQueueCommand:
    queue = wire.declare_queue
    options = c.QueueOptions(
        is_durable=queue.is_durable,
        is_exclusive=queue.is_exclusive,
        is_auto_delete=queue.is_auto_delete,
        length_max=queue.length_max,
        bytes_max=queue.bytes_max,
        is_evicting=queue.is_evicting,
        message_ttl_ms=span(queue.message_ttl_ms),
        dead_letter_exchange=queue.dead_letter_exchange if queue.HasField("dead_letter_exchange") else None,
        dead_letter_key=queue.dead_letter_key,
        delivery_count_max=queue.delivery_count_max,
    )
    return c.DeclareQueueCommand(number, queue.name, options)


def _decode_bind(number: int, wire: pb.ClientMessage) -> c.BindCommand:
    bind = wire.bind
    check_count(len(bind.arguments), COUNT_MAX, "arguments of a binding")
    return c.BindCommand(
        number, bind.exchange, bind.queue, bind.key, _decode_pairs(bind.arguments), bind.is_unbind
    )


def _decode_attach(set_name: SetName, attach: pb.ClientMessage.Attach) -> rq.AttachSession:
    check_count(len(attach.held), COUNT_MAX, "queues of held deliveries")
    check_count(len(attach.settling), COUNT_MAX, "unanswered settles")
    return rq.AttachSession(
        set_name,
        SessionId(attach.session_id),
        SessionKey(attach.session),
        Epoch(attach.session_epoch),
        span(attach.timeout_ms),
        attach.heard,
        tuple(
            rq.HeldDeliveries(held.queue, Epoch(held.epoch), _distinct(_decode_positions(held.positions)))
            for held in attach.held
        ),
        attach.outlives_hand_over,
        tuple(
            rq.UnansweredSettle(settle.number, settle.queue, _distinct(_decode_positions(settle.positions)))
            for settle in attach.settling
        ),
    )


def _decode_outcome(wire: pb.ClientMessage) -> rq.GetOutcome:
    ask = wire.ask_outcome
    check_count(len(ask.session_ids), COUNT_MAX, "sessions")
    sessions = tuple(SessionId(name) for name in ask.session_ids)
    return rq.GetOutcome(ask.request, decode_name(ask.transaction), ask.fence, sessions)


def _decode_browse(wire: pb.ClientMessage) -> rq.Browse:
    browse = wire.browse
    return rq.Browse(browse.request, browse.queue, QueuePosition(browse.after), browse.limit)


def _decode_open_consumer(wire: pb.ClientMessage) -> rq.OpenConsumer:
    opened = wire.open_consumer
    return rq.OpenConsumer(
        opened.consumer,
        opened.queue,
        opened.credit,
        opened.is_exclusive,
        opened.selector,
        opened.is_browser,
        QueuePosition(opened.after),
    )


def _decode_headers(columns: Iterable[pb.Pairs]) -> list[Headers]:
    """Of a publish; raises `Rejected` for too many before anything is made of them."""
    of_messages = [column.pairs for column in columns]
    check_count(sum(map(len, of_messages)), HEADERS_MAX, _OF_HEADERS)
    return [tuple(map(_NAME_AND_VALUE, pairs)) for pairs in of_messages]


def _decode_pairs(pairs: Iterable[pb.Pair]) -> Headers:
    return tuple(map(_NAME_AND_VALUE, pairs))


def _decode_positions(positions: Iterable[int]) -> tuple[QueuePosition, ...]:
    return tuple(positions)  # type: ignore[arg-type]


_COMMANDS: dict[str, Callable[[int, pb.ClientMessage], rq.ClientMessage]] = {
    "publish": _decode_publish,
    "settle": _decode_settle,
    "begin": lambda number, wire: c.BeginCommand(number, span(wire.begin.timeout_ms)),
    "commit": _decode_commit,
    "rollback": lambda number, wire: c.RollbackCommand(number, decode_name(wire.rollback.transaction)),
    "declare_exchange": lambda number, wire: c.DeclareExchangeCommand(
        number, wire.declare_exchange.name, wire.declare_exchange.kind, wire.declare_exchange.is_durable
    ),
    "delete_exchange": lambda number, wire: c.DeleteExchangeCommand(
        number, wire.delete_exchange.name, wire.delete_exchange.if_unused
    ),
    "declare_queue": _decode_declare_queue,
    "delete_queue": lambda number, wire: c.DeleteQueueCommand(
        number, wire.delete_queue.name, wire.delete_queue.if_unused, wire.delete_queue.if_empty
    ),
    "purge_queue": lambda number, wire: c.PurgeQueueCommand(number, wire.purge_queue.name),
    "bind": _decode_bind,
    **DECODE_VERB,
}

_REQUESTS: dict[str, Callable[[pb.ClientMessage], rq.ClientMessage]] = {
    "detach": lambda wire: rq.DetachSession(),
    "open_consumer": _decode_open_consumer,
    "grant_credit": lambda wire: rq.GrantCredit(wire.grant_credit.consumer, wire.grant_credit.credit),
    "drain_consumer": lambda wire: rq.DrainConsumer(wire.drain_consumer.consumer),
    "close_consumer": lambda wire: rq.CloseConsumer(wire.close_consumer.consumer),
    "browse": _decode_browse,
    "ask_outcome": _decode_outcome,
    "describe": lambda wire: rq.Describe(
        wire.describe.request,
        wire.describe.with_state_hash,
        wire.describe.page_size,
        wire.describe.page_token,
    ),
    "describe_queue": lambda wire: rq.DescribeQueue(wire.describe_queue.request, wire.describe_queue.queue),
    "describe_exchange": lambda wire: rq.DescribeExchange(
        wire.describe_exchange.request, wire.describe_exchange.exchange
    ),
    "heartbeat": lambda wire: rq.Heartbeat(),
    **DECODE_REQUEST,
}
