"""Looking into replicas: their state for the checkers, and whether a whole world is at rest.

Law: as all readers, this takes nothing that is half done for a state, and ends nothing that goes on in pieces by looking at it.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from lockstep.client.session_line import State
from lockstep.core.ids import LogIndex, QueueId, QueuePosition, SessionKey, SetName
from lockstep.core.log_copy import LogCopy
from lockstep.core.set_state import SetState
from lockstep.core.state_hash import state_hash
from lockstep.core.transaction_states import TransactionState
from tests.simulation.checkers.record import ReplicaView

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.world import World

_COMMITTED = (TransactionState.COMMITTED, TransactionState.HEURISTICALLY_COMMITTED)


def state_of(process: "Broker", set_name: SetName) -> SetState | None:
    """The replica's state, None while it has no whole one, or what it does is half done."""
    replica = process.replicas[set_name]
    if replica.is_half_done:
        return None
    if replica.primary is not None:
        return replica.primary.context.state
    backup = replica.backup
    copy: LogCopy | None = backup.copy if backup is not None else None
    if backup is None or copy is None or not backup.can_stand_unrestarted:
        return None
    return copy.state


def view_of(process: "Broker", set_name: SetName, now_us: int, is_hashed: bool = True) -> ReplicaView | None:
    """What the replica holds now, None while it has no whole state; without `is_hashed` its hash is left out, which clears what
    deleted queues held.
    """
    state = state_of(process, set_name)
    if state is None or (is_hashed and state.clearing.queues):
        return None
    primary = process.replicas[set_name].primary
    tx_queues = primary.context.tx_queues if primary is not None else None
    return ReplicaView(
        now_us,
        process.broker,
        set_name,
        state.applied,
        state.epoch,
        state_hash(state) if is_hashed else "",
        {queue_id: tuple(queue.positions()) for queue_id, queue in sorted(state.queues.by_id.items())},
        {
            key: "committed" if outcome.state in _COMMITTED else "rolled back"
            for key, outcome in state.outcomes.all()
        },
        tuple(buffer.key for buffer in state.transactions.prepared()),
        primary is not None,
        len(state.transactions.open()),
        tx_queues.bytes if tx_queues is not None else 0,
        len(tx_queues.by_key) if tx_queues is not None else 0,
    )


def at_rest(world: "World") -> list[str]:
    """What still moves, or stands still where it should not; empty when the world is at rest and whole."""
    found = []
    for set_map in world.set_maps():
        set_name = set_map.set_name
        process = world.brokers.get(set_map.primary)
        replica = process.replicas[set_name] if process is not None and process.is_alive else None
        primary = replica.primary if replica is not None else None
        if replica is None or primary is None or not primary.is_serving or primary.epoch != set_map.epoch:
            found.append(
                f"{set_name}: no primary serves (the map has {set_map.primary} in epoch {set_map.epoch})"
            )
            continue
        missing = sorted(set(set_map.brokers) - {member.broker for member in set_map.in_sync})
        if missing:
            found.append(f"{set_name}: {', '.join(missing)} not in sync with {set_map.primary}")
        is_astray = set_map.primary != set_map.brokers[0] and not replica.is_chosen
        if world.options.give_back_ms and is_astray:
            found.append(f"{set_name}: {set_map.primary} leads it, and {set_map.brokers[0]} is to")
        end: LogIndex = primary.log_end
        if primary.commit_index != end:
            found.append(f"{set_name}: commit index {primary.commit_index} behind the log's end {end}")
        for broker in world.broker_ids:
            state = state_of(world.brokers[broker], set_name)
            if state is None or state.applied != end:
                applied = state.applied if state is not None else "nothing"
                found.append(f"{set_name}: {broker} has applied {applied}, the log ends at {end}")
            elif state.clearing.queues:
                found.append(f"{set_name}: {broker} has deleted queues to clear")
    return found


def transactions_left(world: "World") -> list[str]:
    """Those that are not ended: open ones wait for their time-out, or that of a session whose client has left without a word;
    prepared ones for their decision.
    """
    found = []
    for set_map in world.set_maps():
        process = world.brokers.get(set_map.primary)
        state = state_of(process, set_map.set_name) if process is not None and process.is_alive else None
        transactions = state.transactions if state is not None else None
        waiting = [*transactions.open(), *transactions.prepared()] if transactions is not None else []
        if waiting:
            found.append(f"{set_map.set_name} has {len(waiting)} open or prepared transactions")
    return found


def hands_apart(world: "World") -> list[str]:
    """Sessions that are said to hold what their clients, who are attached, do not have in hand; empty when there are none.

    The other way round it may be: of a queue that was deleted.
    """
    found = []
    for set_map in world.set_maps():
        process = world.brokers.get(set_map.primary)
        primary = (
            process.replicas[set_map.set_name].primary if process is not None and process.is_alive else None
        )
        if primary is None or not primary.is_serving:
            continue
        names = {queue.id: queue.name for queue in primary.context.state.queues.by_id.values()}
        held: dict[SessionKey, dict[QueueId, Collection[QueuePosition]]] = {}
        for holder, queue, positions in primary.context.dispatch.held():
            held.setdefault(holder, {})[queue] = positions
        for session in world.sessions():
            core = session.core
            if session.set_name != set_map.set_name or core.state is not State.ATTACHED:
                continue
            in_hand = core.line.held.by_queue()
            for queue, positions in held.get(core.session, {}).items():
                missing = sorted(set(positions) - in_hand.get(names[queue], set()))
                if missing:
                    found.append(f"{session.client.name}: {core!r} does not know that it holds {missing}")
    return found


def names_astray(world: "World") -> list[str]:
    """How the cluster's directory differs from what the sets have; empty when each name is where its queue or exchange is."""
    prefix = world.keys.directory("", "").removesuffix("/")
    listed = {
        (*key.removeprefix(prefix).partition("/")[::2], entry.value.decode())
        for key, entry in world.etcd.prefix(prefix)
    }
    declared = set()
    for set_map in world.set_maps():
        process = world.brokers.get(set_map.primary)
        state = state_of(process, set_map.set_name) if process is not None and process.is_alive else None
        if state is not None:
            declared |= {("queue", name, set_map.set_name) for name in state.queues.by_name}
            declared |= {("exchange", name, set_map.set_name) for name in state.exchanges.by_name}
    unused = [
        f"{owner}: the directory has {kind} {name!r}, which is not there"
        for kind, name, owner in sorted(listed - declared)
    ]
    missing = [
        f"{owner}: {kind} {name!r} is not in the directory" for kind, name, owner in sorted(declared - listed)
    ]
    return unused + missing
