"""A link to the transaction coordinator: declare and discharge (AMQP 1.0, 4.3 and 4.5).

Law: what was said before a discharge on any link of the connection is part of the transaction; its answer is the outcome, and
if nobody can tell that, the connection ends without one. A link that is lost rolls back what it declared, and so does one that is
ended for a request that came settled (4.2, 4.3).
"""

from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol

from proton import Described, Link, Message, Receiver

from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from services.proxy.amqp_transaction import AmqpTransaction
from services.proxy.core.conditions import (
    DECODE_ERROR,
    NOT_ALLOWED,
    TRANSACTION_TIMEOUT,
    UNKNOWN_TRANSACTION,
    Condition,
    condition_of,
)
from services.proxy.delivery_states import reject
from services.proxy.engine_path import path
from services.proxy.engine_words import UNREADABLE, Handle, declared
from services.proxy.traffic import End, Traffic

CREDIT = 16
"""Declares and discharges that a client may pipeline."""
_MESSAGE_BYTES_MAX = 4_096
_DECLARE = (0x31, "amqp:declare:list")
_DISCHARGE = (0x32, "amqp:discharge:list")


class Declare(NamedTuple):
    """`global_id` None: a local transaction."""

    global_id: bytes | None


class Discharge(NamedTuple):
    transaction: bytes
    is_failed: bool
    """Roll it back."""


class Owner(Protocol):
    """What a coordinator link needs of its connection."""

    traffic: Traffic

    def declare(self, declare: Declare) -> AmqpTransaction: ...
    def transaction(self, name: bytes) -> AmqpTransaction | None: ...
    def forget(self, transaction: AmqpTransaction) -> None: ...
    def flush_links(self) -> None: ...
    def wrote(self) -> None: ...
    def give_up(self, error: LockstepError) -> None: ...
    def run(self, work: Coroutine[Any, Any, None]) -> None: ...
    def end_link(self, link: Link, condition: Condition) -> None: ...


def parse(data: bytes) -> Declare | Discharge:
    """The request in a message. Raises `ValueError` for what is none."""
    message = Message()
    try:
        message.decode(data)
        body = message.body
    except UNREADABLE as error:
        raise ValueError(f"no AMQP message: {error}") from error
    if not isinstance(body, Described) or not isinstance(body.value, list):
        raise ValueError("neither declare nor discharge")
    fields = body.value
    if _is(body, _DECLARE):
        return Declare(_binary(fields[0]) if fields and fields[0] is not None else None)
    if _is(body, _DISCHARGE):
        if not fields:
            raise ValueError("a discharge names its transaction")
        return Discharge(_binary(fields[0]), len(fields) > 1 and fields[1] is True)
    raise ValueError("neither declare nor discharge")


def _is(body: Described, names: tuple[int, str]) -> bool:
    return body.descriptor in names


def _binary(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError("an id that is not binary")
    return bytes(value)


class CoordinatorLink:
    """Lives from its attach to its end; driven by its connection."""

    def __init__(self, owner: Owner, link: Receiver) -> None:
        self._owner = owner
        self._link = link
        self._handle = path.handle_of(link)
        self._declared: dict[bytes, AmqpTransaction] = {}
        self._parts: list[bytes] = []
        self._is_over = False

    def open(self) -> None:
        path.grant(self._handle, CREDIT)

    def end(self) -> None:
        """The link is gone: what it declared and did not discharge is rolled back."""
        self._is_over = True
        path.drop_received(self._handle)
        for transaction in list(self._declared.values()):
            self._owner.forget(transaction)
            self._owner.run(transaction.rollback())
        self._owner.traffic.transactions[End.REFUSED] += len(self._declared)
        self._declared.clear()

    def flush(self) -> None:
        """Nothing of it waits for the end of a turn."""

    def receive(self) -> None:
        """Takes what came of the one request that the engine has told of: between it and the next one other links may have
        said what belongs to a transaction that the next one ends."""
        got = None if self._is_over else path.receive(self._handle)
        if got is None:
            return
        if got.is_aborted:
            self._parts = []
            path.grant(self._handle, 1)
            return
        self._parts.append(got.data)
        if sum(map(len, self._parts)) > _MESSAGE_BYTES_MAX:
            self._owner.end_link(self._link, Condition(DECODE_ERROR, "no request is as long"))
            return
        if got.is_partial:
            return
        data, self._parts = b"".join(self._parts), []
        path.grant(self._handle, 1)
        self._take(got.delivery, data, got.is_settled)

    def _take(self, delivery: Handle, data: bytes, is_settled: bool) -> None:
        if is_settled:
            path.settle(delivery)
            text = "a request to the coordinator that is sent settled: nobody would hear its outcome"
            self._owner.end_link(self._link, Condition(NOT_ALLOWED, text))
            return
        try:
            request = parse(data)
        except ValueError as error:
            self._reject(delivery, Condition(DECODE_ERROR, str(error)))
            return
        if isinstance(request, Declare):
            self._declare(delivery, request)
        else:
            self._owner.flush_links()
            self._discharge(delivery, request)

    def _declare(self, delivery: Handle, request: Declare) -> None:
        try:
            transaction = self._owner.declare(request)
        except Rejected as rejected:
            self._reject(delivery, condition_of(rejected))
            return
        self._declared[transaction.name] = transaction
        path.update(delivery, declared(transaction.name))
        path.settle(delivery)
        self._owner.wrote()

    def _discharge(self, delivery: Handle, request: Discharge) -> None:
        transaction = self._declared.pop(request.transaction, None)
        if transaction is None:
            self._reject(delivery, Condition(UNKNOWN_TRANSACTION, "no such transaction"))
            return
        self._owner.forget(transaction)
        self._owner.run(self._finish(delivery, transaction, is_commit=not request.is_failed))

    async def _finish(self, delivery: Handle, transaction: AmqpTransaction, *, is_commit: bool) -> None:
        ends = self._owner.traffic.transactions
        try:
            await (transaction.commit() if is_commit else transaction.rollback())
        except Rejected as rejected:
            ends[End.REFUSED] += 1
            condition = condition_of(rejected)
            if rejected.code is ErrorCode.ROLLED_BACK and transaction.is_late:
                condition = Condition(TRANSACTION_TIMEOUT, rejected.message)
            self._reject(delivery, condition)
        except InDoubt as doubt:
            ends[End.IN_DOUBT] += 1
            self._owner.give_up(doubt)
        else:
            ends[End.DONE if is_commit else End.REFUSED] += 1
            if not self._is_over:
                path.accept(delivery)
                self._owner.wrote()

    def _reject(self, delivery: Handle, condition: Condition) -> None:
        if not self._is_over:
            reject(delivery, condition)
            self._owner.wrote()
