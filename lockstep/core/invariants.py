"""Invariants of a state, for tests and the simulator.

Law: `check_invariants` holds between any two records. It recomputes what the state keeps beside its items and compares.
"""

from lockstep.core.content import size_of
from lockstep.core.ids import MessageId, QueueId, TransactionKey
from lockstep.core.outcomes import Outcomes
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.records import Message
from lockstep.core.set_state import SetState
from lockstep.core.transaction_states import LIVE, TransactionState
from lockstep.core.tx_buffer import DequeueOperation


def check_invariants(state: SetState) -> None:
    """Raises `AssertionError` with what is wrong."""
    _check_wiring(state)
    _check_queues(state)
    _check_references(state)
    _check_transactions(state)
    _check_sessions(state)
    _check_outcomes(state.outcomes)


def _check_wiring(state: SetState) -> None:
    queues, exchanges = state.queues, state.exchanges
    for name, queue in queues.by_name.items():
        assert queue.name == name and queues.by_id.get(queue.id) is queue, f"name {name!r} of {queue}"
    assert len(queues.by_id) == len(queues.by_name), "two queues of one name"
    for exchange_name, exchange in exchanges.by_name.items():
        assert exchange.name == exchange_name and exchanges.by_id.get(exchange.id) is exchange, exchange
    assert len(exchanges.by_id) == len(exchanges.by_name), "two exchanges of one name"
    for exchange in exchanges.by_id.values():
        for binding, is_durable in exchange.bindings.items():
            bound = queues.by_id.get(binding.queue)
            assert bound is not None and binding.exchange == exchange.id, f"{binding} binds nothing"
            assert not is_durable or (exchange.is_durable and bound.is_durable), f"{binding} is durable"
            assert binding in exchanges.bindings_of(binding.queue), f"{binding} is not known to its queue"


def _check_queues(state: SetState) -> None:
    contents = dict(state.contents.items())
    sizes = {message_id: size_of(content) for message_id, content in contents.items()}
    for queue in state.queues.by_id.values():
        entries = [position for position, _ in queue.items()]
        assert entries == sorted(entries), f"{queue}: entries out of order"
        assert queue.positions() == entries, f"{queue}: order list and entries differ"
        assert queue.head() == (entries[0] if entries else None), f"{queue}: wrong head"
        assert queue.length == len(entries), f"{queue}: {queue.length} entries are {len(entries)}"
        size = sum([sizes[message_id] for _, message_id in queue.items()])
        assert queue.bytes == size, f"{queue}: {queue.bytes} bytes are {size}"
        for name in ("delivery_counts", "expiries", "deaths", "annotations", "locks", "transient_positions"):
            strangers = [position for position in sorted(getattr(queue, name)) if position not in queue]
            assert not strangers, f"{queue}: {name} of {strangers}, which are not there"
        levels = {position: contents[message_id].priority for position, message_id in queue.items()}
        others = {position: level for position, level in levels.items() if level != PRIORITY_DEFAULT}
        kept = dict(queue.priorities.items()) if queue.priorities is not None else {}
        assert kept == others and (kept or queue.priorities is None), (
            f"{queue}: priorities {kept} are {others}"
        )
        assert all(queue.delivery_counts.values()), f"{queue}: a delivery count of 0 is kept"
        assert queue.is_durable or not queue.transient_positions, (
            f"{queue}: marks transients in a transient queue"
        )


def _check_references(state: SetState) -> None:
    durable: dict[MessageId, int] = {}
    transient: dict[MessageId, int] = {}
    for queue in (*state.queues.by_id.values(), *state.clearing.queues):
        for position, message_id in queue.items():
            counts = durable if queue.is_entry_durable(position) else transient
            counts[message_id] = counts.get(message_id, 0) + 1
    for buffer in state.transactions.live.values():
        for operation in buffer.publishes:
            counts = durable if operation.is_durable else transient
            for message_id in operation.message_ids:
                counts[message_id] = counts.get(message_id, 0) + 1
    held = sorted(durable.keys() | transient.keys())
    contents = state.contents
    assert sorted([message_id for message_id, _ in contents.items()]) == held and len(contents) == len(
        held
    ), "contents without a reference, or references without a content"
    resident = sum(size_of(found) for found in contents.values() if isinstance(found, Message))
    assert contents.resident_bytes == resident, f"{contents.resident_bytes} resident bytes are {resident}"
    for message_id in held:
        counted = durable.get(message_id, 0), transient.get(message_id, 0)
        kept = state.contents.references(message_id)
        assert kept == counted, f"message {message_id}: references {kept} are {counted}"


def _check_transactions(state: SetState) -> None:
    contents = dict(state.contents.items())
    reserved: dict[QueueId, list[int]] = {queue: [0, 0] for queue in state.queues.by_id}
    locked: dict[QueueId, int] = dict.fromkeys(state.queues.by_id, 0)
    for key, buffer in state.transactions.live.items():
        assert buffer.key == key and buffer.state in LIVE, f"{buffer} is not live"
        assert key not in state.outcomes, f"{key} is live and has an outcome"
        is_open_still = state.open_from <= key[1] <= state.epoch
        assert is_open_still or buffer.state is TransactionState.PREPARED, f"{key} outlived its epoch"
        assert not buffer.xid or state.transactions.find_xid(buffer.xid) is not None, (
            f"{key}: xid is not known"
        )
        assert buffer.is_durable or not any(operation.is_durable for operation in buffer.operations), key
        for operation in buffer.operations:
            if isinstance(operation, DequeueOperation):
                queue = state.queues.by_id.get(operation.queue)
                if queue is not None:
                    locked[queue.id] += len(queue.locked_by(key, operation.positions))
                continue
            for message_id in operation.message_ids:
                content = contents[message_id]
                for target in content.queues:
                    if target in reserved:
                        reserved[target][0] += 1
                        reserved[target][1] += size_of(content)
    for queue in state.queues.by_id.values():
        kept = [queue.reserved_length, queue.reserved_bytes]
        assert kept == reserved[queue.id], f"{queue}: reserved {kept} are {reserved[queue.id]}"
        owners = sorted(set(queue.locks.values()))
        assert all(owner in state.transactions.live for owner in owners), f"{queue}: locks of {owners}"
        assert len(queue.locks) == locked[queue.id], f"{queue}: a lock that no operation holds"
    _check_prepared(state)


def _check_prepared(state: SetState) -> None:
    transactions = state.transactions
    prepared = [key for key, buffer in sorted(transactions.live.items()) if buffer.is_prepared]
    assert [buffer.key for buffer in transactions.prepared()] == prepared, "those that are prepared"
    touching: dict[QueueId, list[TransactionKey]] = {}
    for key in prepared:
        for queue_id in transactions.live[key].touched:
            touching.setdefault(queue_id, []).append(key)
    for queue_id in touching.keys() | state.queues.by_id.keys():
        known = transactions.prepared_touching(queue_id)
        assert known == touching.get(queue_id, []), f"prepared transactions that touch {queue_id}: {known}"


def _check_sessions(state: SetState) -> None:
    for key, session in state.sessions.by_key.items():
        assert session.key == key, session
        assert all(number < session.next_number for number in session.answers), session
        assert list(session.answers) == sorted(session.answers), f"{session}: answers out of order"


def _check_outcomes(outcomes: Outcomes) -> None:
    heuristic = [key for key, _ in outcomes.heuristic()]
    for key, outcome in outcomes.all():
        assert outcome.index > key[0], f"{key} ended before it began"
        is_kept = outcome.xid and outcome.state is TransactionState.COMMITTED
        assert outcome.index > outcomes.floor or key in heuristic or is_kept, (
            f"{key} lies below the retention floor"
        )
