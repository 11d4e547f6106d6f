"""`lockstep tx`: branches of distributed transactions, and what operators do with those that are in doubt."""

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from lockstep.cli.connection import (
    DEFAULT_BROKERS,
    Brokers,
    Json,
    console,
    print_json,
    run,
    show_table,
    table,
    with_client,
)
from lockstep.client import Client, ErrorCode, Rejected, connect
from lockstep.client.resource_manager import ResourceManager
from lockstep.core.branch_names import branch_name
from lockstep.core.server_messages import BranchDescription
from lockstep.core.xa import BranchState
from lockstep.core.xid import Xid
from lockstep.wire.v1 import coordinator_pb2 as pb

app = typer.Typer(no_args_is_help=True)
XidText = Annotated[str, typer.Argument(help="A branch, as `tx list` shows it: format:global:branch.")]
Heuristic = Annotated[
    bool,
    typer.Option(
        "--heuristic",
        help="Decide in the coordinator's place. Others may end otherwise; there is no way back.",
    ),
]
CoordinatorList = Annotated[
    str,
    typer.Option(
        "--coordinators",
        envvar="LOCKSTEP_COORDINATORS",
        help="Addresses of coordinators, host:port, separated by commas; none: those that the brokers know.",
    ),
]
CALL_SECONDS = 5.0
_Decided = dict[bytes, pb.ListDistributedResponse.Transaction]
"""By global id."""
_Found = list[tuple[str, BranchDescription]]
"""(set, branch)."""


@app.command("list")
def list_branches(
    everything: Annotated[bool, typer.Option("--all", help="Open branches too.")] = False,
    coordinators: CoordinatorList = "",
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Branches that are prepared or were ended heuristically, the oldest first, and what was decided."""

    async def command(client: Client) -> None:
        found = sorted(await _branches(client, with_open=everything), key=lambda each: each[1].since_ms)
        decided = await _decided(client)
        if json:
            print_json([_as_json(set_name, branch, decided) for set_name, branch in found])
            return
        made = table("xid", "set", "state", "decision", "#age", "#operations", "sessions")
        for set_name, branch in found:
            age = f"{_age_seconds(branch):.0f} s" if branch.since_ms else "?"
            entry = decided.get(Xid.decode(branch.xid).global_id)
            made.add_row(
                str(Xid.decode(branch.xid)),
                set_name,
                _state(branch),
                _decision(entry) if entry is not None else "",
                age,
                str(branch.operations),
                ", ".join(branch.sessions),
            )
        show_table(made)

    _with_coordinators(brokers, coordinators, command)


@app.command("show")
def show(
    xid: XidText, coordinators: CoordinatorList = "", brokers: Brokers = DEFAULT_BROKERS, json: Json = False
) -> None:
    """One branch, and the others of its transaction: participants, votes and decision, as a coordinator knows them."""

    async def command(client: Client) -> None:
        wanted = _parse(xid)
        decided = await _decided(client)
        found = [
            (set_name, branch)
            for set_name, branch in await _branches(client, with_open=True)
            if Xid.decode(branch.xid)[:2] == wanted[:2]
        ]
        if not any(Xid.decode(branch.xid) == wanted for _, branch in found):
            raise _unknown(wanted)
        shown = [_as_json(set_name, branch, decided) for set_name, branch in found]
        if json:
            print_json(shown)
            return
        for each in shown:
            made = table("", "")
            for name, value in each.items():
                made.add_row(name, str(value))
            show_table(made)

    _with_coordinators(brokers, coordinators, command)


@app.command("commit")
def commit(
    xid: XidText, heuristic: Heuristic = False, brokers: Brokers = DEFAULT_BROKERS, json: Json = False
) -> None:
    """Commit a prepared branch by an operator's decision, which is kept until `tx forget`."""
    _end(xid, heuristic, brokers, json, is_commit=True)


@app.command("rollback")
def rollback(
    xid: XidText, heuristic: Heuristic = False, brokers: Brokers = DEFAULT_BROKERS, json: Json = False
) -> None:
    """Roll a branch back by an operator's decision, which is kept until `tx forget`."""
    _end(xid, heuristic, brokers, json, is_commit=False)


@app.command("forget")
def forget(xid: XidText, brokers: Brokers = DEFAULT_BROKERS, json: Json = False) -> None:
    """Forget that a branch was ended by an operator."""

    async def command(client: Client) -> None:
        wanted = _parse(xid)
        set_name, manager, _ = await _locate(client, wanted)
        await manager.forget(wanted)
        _say(json, {"xid": str(wanted), "set": set_name, "state": "forgotten"})

    with_client(brokers, command)


@app.command("recover")
def recover(
    coordinators: CoordinatorList = "", brokers: Brokers = DEFAULT_BROKERS, json: Json = False
) -> None:
    """Have a coordinator look at once for transactions that nobody ends; it does so by itself every second."""

    async def command(client: Client) -> None:
        response = await client.coordinators.call(
            "Recover", pb.RecoverDistributedRequest(), pb.RecoverDistributedResponse(), CALL_SECONDS
        )
        taken = [transaction.hex() for transaction in response.transaction_ids]
        if json:
            print_json({"taken_up": taken})
        else:
            console.print(f"{len(taken)} transactions taken up." + "".join(f"\n  {each}" for each in taken))

    _with_coordinators(brokers, coordinators, command)


def _end(xid: str, heuristic: bool, brokers: str, json: bool, *, is_commit: bool) -> None:
    verb = "commit" if is_commit else "rollback"

    async def command(client: Client) -> None:
        wanted = _parse(xid)
        if not heuristic:
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT,
                f"{verb} of {wanted} in its coordinator's place: say so with --heuristic",
            )
        set_name, manager, _ = await _locate(client, wanted)
        await manager.end_heuristically(wanted, commit=is_commit)
        state = "heuristically committed" if is_commit else "heuristically rolled back"
        _say(json, {"xid": str(wanted), "set": set_name, "state": state})

    with_client(brokers, command)


def _with_coordinators(brokers: str, coordinators: str, command: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await connect(brokers, coordinators=coordinators) as client:
            await command(client)

    run(main())


async def _decided(client: Client) -> _Decided:
    """What a coordinator knows of every transaction that is not ended; nothing, if the cluster has none."""
    if not await client.coordinators.are_known():
        return {}
    response = await client.coordinators.call(
        "List", pb.ListDistributedRequest(), pb.ListDistributedResponse(), CALL_SECONDS
    )
    return {transaction.transaction_id: transaction for transaction in response.transactions}


async def _managers(client: Client) -> dict[str, ResourceManager]:
    session = client.session()
    status = await client.administration.status()
    return {one.name: await session.resource_manager(one.name) for one in status.view.sets}


async def _branches(client: Client, *, with_open: bool) -> _Found:
    found: _Found = []
    for set_name, manager in (await _managers(client)).items():
        found += [(set_name, branch) for branch in await manager.recover(with_open=with_open)]
    return found


async def _locate(client: Client, wanted: Xid) -> tuple[str, ResourceManager, BranchDescription]:
    for set_name, manager in (await _managers(client)).items():
        for branch in await manager.recover(with_open=True):
            if Xid.decode(branch.xid) == wanted:
                return set_name, manager, branch
    raise _unknown(wanted)


def _unknown(xid: Xid) -> Rejected:
    return Rejected(ErrorCode.NOT_FOUND, f"no resource set has a branch {xid}", xid=str(xid))


def _parse(text: str) -> Xid:
    try:
        return Xid.parse(text)
    except ValueError as error:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, str(error)) from error


def _state(branch: BranchDescription) -> str:
    return BranchState(branch.state).name.lower().replace("_", " ")


def _age_seconds(branch: BranchDescription) -> float:
    return max(0.0, time.time() - branch.since_ms / 1000)


def _decision(entry: pb.ListDistributedResponse.Transaction) -> str:
    return pb.DistributedState.Name(entry.state).removeprefix("DISTRIBUTED_STATE_").lower().replace("_", " ")


def _as_json(set_name: str, branch: BranchDescription, decided: _Decided) -> dict[str, Any]:
    xid = Xid.decode(branch.xid)
    shown: dict[str, Any] = {
        "xid": str(xid),
        "set": set_name,
        "state": _state(branch),
        "age_seconds": round(_age_seconds(branch), 1) if branch.since_ms else None,
        "operations": branch.operations,
        "sessions": list(branch.sessions),
        "transaction": f"{set_name}/{branch.transaction[0]}.{branch.transaction[1]}",
    }
    try:
        shown["distributed_transaction"] = branch_name(xid).global_id.hex()
    except ValueError:
        return shown  # Another transaction manager's.
    if (entry := decided.get(xid.global_id)) is not None:
        shown["decision"] = _decision(entry)
        shown["participants"] = [
            {"participant": each.participant, "vote": each.vote, "ended": each.ended}
            for each in entry.branches
        ]
    return shown


def _say(json: bool, done: dict[str, str]) -> None:
    if json:
        print_json(done)
    else:
        console.print(f"Branch {done['xid']} in {done['set']}: {done['state']}.")
