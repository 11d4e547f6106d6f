"""`lockstep status`: brokers, resource sets, and how far each replica is."""

import asyncio
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from lockstep.cli.connection import (
    DEFAULT_BROKERS,
    Brokers,
    Json,
    console,
    print_json,
    show_table,
    table,
    with_client,
)
from lockstep.client import Client
from lockstep.client.administration import ClusterStatus
from lockstep.core.counted import counted
from lockstep.core.errors import LockstepError
from lockstep.wire.v1 import cluster_pb2 as pb

ROLES = {
    pb.ROLE_UNSPECIFIED: "undecided",
    pb.ROLE_PRIMARY: "primary",
    pb.ROLE_BACKUP: "backup",
    pb.ROLE_LEARNER: "learner",
    pb.ROLE_PROMOTING: "promoting",
    pb.ROLE_STOPPED: "stopped",
}

COORDINATORS_SECONDS = 2.0
"""The rest of the status is worth showing without them."""


def status(
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
    state_hash: Annotated[
        bool, typer.Option("--hash", help="Compute each replica's state hash (walks its whole state).")
    ] = False,
) -> None:
    """Brokers, resource sets, epochs, who is in sync, lag, and open and prepared transactions."""

    async def command(client: Client) -> None:
        found = await client.administration.status(with_state_hash=state_hash)
        coordinators = await _coordinators(client)
        if json:
            print_json(as_json(found) | {"coordinators": coordinators})
        else:
            show(found, state_hash)
            if coordinators is None:
                console.print("etcd does not say which coordinators there are", style="red")
            elif coordinators:
                console.print(f"Coordinators: {', '.join(coordinators)}")

    with_client(brokers, command)


async def _coordinators(client: Client) -> list[str] | None:
    """Their addresses; None: nobody can tell now, for brokers have to ask etcd."""
    try:
        async with asyncio.timeout(COORDINATORS_SECONDS):
            return await client.administration.coordinators()
    except (LockstepError, TimeoutError):
        return None


def lost_sets(status: ClusterStatus) -> dict[str, list[str]]:
    """Sets that brokers have on their disks and etcd does not know, and those brokers."""
    lost: dict[str, list[str]] = {}
    for broker, answer in sorted(status.brokers.items()):
        for name in answer.lost_sets if answer is not None else ():
            lost.setdefault(name, []).append(broker)
    return dict(sorted(lost.items()))


def as_json(status: ClusterStatus) -> dict[str, Any]:
    """Everything, by broker and by set."""
    return {
        "cluster": status.view.cluster,
        "generation": status.view.generation,
        "lost_sets": lost_sets(status),
        "silent_witnesses": list(status.view.silent_witnesses),
        "view_age_ms": status.view.view_age_ms,
        "brokers": [
            {
                "broker": member.broker,
                "address": member.address,
                "runs": bool(member.incarnation),
                "answers": status.brokers.get(member.broker) is not None,
                "etcd_silent_ms": _etcd_silent_ms(status, member.broker),
            }
            for member in status.view.members
        ],
        "sets": [
            {
                "set": entry.name,
                "epoch": entry.epoch,
                "primary": entry.primary,
                "is_led": entry.is_led,
                "brokers": list(entry.brokers),
                "in_sync": list(entry.in_sync),
                "learners": list(entry.learners),
                "min_in_sync": entry.min_in_sync,
                "replicas": [
                    _replica_as_json(broker, replica)
                    for broker in entry.brokers
                    if (replica := status.replica(broker, entry.name)) is not None
                ],
            }
            for entry in status.view.sets
        ],
    }


def _etcd_silent_ms(status: ClusterStatus, broker: str) -> int:
    """For how long a broker that answers has not heard of etcd."""
    answer = status.brokers.get(broker)
    return answer.view_age_ms if answer is not None else 0


def _replica_as_json(broker: str, replica: pb.Replica) -> dict[str, Any]:
    return {
        "broker": broker,
        "role": ROLES.get(replica.role, "unknown"),
        "trouble": replica.trouble,
        "epoch": replica.epoch,
        "commit_index": replica.commit_index,
        "log_end": replica.log_end,
        "age_ms": replica.age_ms,
        "lease_ms": replica.lease_ms,
        "state_index": replica.state_index,
        "state_hash": replica.state_hash,
        "open_transactions": replica.open_transactions,
        "prepared_transactions": replica.prepared_transactions,
        "sessions": replica.sessions,
        "tx_queue_bytes": replica.tx_queue_bytes,
        "queues": replica.queues,
        "messages": replica.messages,
    }


def show(status: ClusterStatus, with_hash: bool) -> None:
    """Two tables for people, and what somebody has to do something about."""
    show_table(_members_table(status))
    console.print()
    for text in _warnings(status):
        console.print(text, style="red")
    if status.view.sets:
        show_table(_replicas_table(status, with_hash))
        for text in stops(status):
            console.print(text, style="red")
    elif not lost_sets(status):
        console.print("No resource sets yet: lockstep set create NAME --brokers B1,B2,B3")


def _members_table(status: ClusterStatus) -> Table:
    members = table("BROKER", "ADDRESS", "STATE")
    for member in status.view.members:
        answers = status.brokers.get(member.broker) is not None
        state = "up" if answers else "does not answer" if member.incarnation else "down"
        silent_ms = _etcd_silent_ms(status, member.broker)
        if silent_ms:
            state = f"up, without etcd for {silent_ms / 1000:.0f} s"
        is_well = answers and not silent_ms
        members.add_row(member.broker, member.address, Text(state, style="green" if is_well else "red"))
    return members


def _replicas_table(status: ClusterStatus, with_hash: bool) -> Table:
    columns = (
        "SET",
        "BROKER",
        "ROLE",
        "#EPOCH",
        "IN SYNC",
        "#COMMITTED",
        "#LAG",
        "#AGE",
        "#OPEN",
        "#PREPARED",
        "#MESSAGES",
    )
    replicas = table(*columns, *(("STATE HASH",) if with_hash else ()), "")
    for entry in status.view.sets:
        ends = [replica.log_end for replica in _replicas(status, entry)]
        for place, broker in enumerate(entry.brokers):
            replica = status.replica(broker, entry.name)
            row: list[str | Text] = [entry.name if place == 0 else "", broker]
            is_in_sync = broker in entry.in_sync
            in_sync = Text("yes" if is_in_sync else "no", style="green" if is_in_sync else "yellow")
            if replica is None:
                row += [
                    "-",
                    str(entry.epoch),
                    in_sync,
                    *("-" for _ in range(6)),
                    *([""] if with_hash else []),
                    "",
                ]
            else:
                row += [
                    _role(replica),
                    str(replica.epoch),
                    in_sync,
                    str(replica.commit_index),
                    str(max(ends) - replica.log_end),
                    f"{replica.age_ms / 1000:.1f} s",
                    str(replica.open_transactions),
                    str(replica.prepared_transactions),
                    str(replica.messages),
                    *([replica.state_hash[:16]] if with_hash else []),
                    Text(replica.trouble, style="red"),
                ]
            replicas.add_row(*row)
    return replicas


def _warnings(status: ClusterStatus) -> list[str]:
    """About the cluster as a whole; `stops` has those about sets that complete nothing."""
    view, found = status.view, list[str]()
    if view.view_age_ms:
        silent = f"has not heard of etcd for {view.view_age_ms / 1000:.0f} s"
        found.append(
            f"{view.broker}, which tells of members and sets, {silent}: they are shown as they were then."
        )
    found += [
        f"Set {name} is on the disks of {', '.join(holders)} and not in etcd:"
        " see lockstep cluster rebuild-map --dry-run"
        for name, holders in lost_sets(status).items()
    ]
    if view.silent_witnesses:
        found.append(
            f"Not back since all brokers were down: {', '.join(view.silent_witnesses)}. One of their disks may remember a"
            " decision that etcd has lost, so prepared branches wait: start them."
        )
    return found


def stops(status: ClusterStatus) -> list[str]:
    """Sets that complete nothing now, and why, as far as it can be seen from here."""
    said = []
    for entry in status.view.sets:
        if not entry.is_led:
            said.append(f"Set {entry.name} has no primary now: nothing completes in it.")
            continue
        found = (status.replica(broker, entry.name) for broker in entry.in_sync)
        count = sum(replica is not None and replica.role != pb.ROLE_STOPPED for replica in found)
        if count < entry.min_in_sync:
            said.append(
                f"Set {entry.name} needs {counted(entry.min_in_sync, 'broker')} in sync."
                f" Answers come here from {counted(count, 'broker')} in sync: nothing completes in it without the others."
            )
    return said


def _replicas(status: ClusterStatus, entry: pb.GetClusterStatusResponse.ResourceSet) -> list[pb.Replica]:
    found = (status.replica(broker, entry.name) for broker in entry.brokers)
    return [replica for replica in found if replica is not None]


def _role(replica: pb.Replica) -> Text:
    return Text(ROLES.get(replica.role, "unknown"), style="bold" if replica.role == pb.ROLE_PRIMARY else "")
