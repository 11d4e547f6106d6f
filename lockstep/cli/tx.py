"""`lockstep tx`: branches of distributed transactions, and what operators do with those that are in doubt."""

import asyncio
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
from lockstep.cli.decided import (
    CALL_SECONDS,
    LATE_MS,
    Decided,
    decided,
    forget,
    give_up,
    heuristic_as_json,
    parse_global_id,
    participants_as_json,
    state_name,
    unended_as_json,
)
from lockstep.cli.set_answers import SetAnswers, ask_sets
from lockstep.client import Client, ErrorCode, Rejected, connect
from lockstep.client.resource_manager import ResourceManager
from lockstep.core.branch_names import FORMAT_ID, branch_name
from lockstep.core.counted import counted
from lockstep.core.server_messages import BranchDescription
from lockstep.core.wire_numbers import known
from lockstep.core.xa import BranchState
from lockstep.core.xid import Xid
from lockstep.wire.v1 import coordinator_pb2 as pb

app = typer.Typer(no_args_is_help=True)
XidText = Annotated[str, typer.Argument(help="A branch, as `tx list` shows it: format:global:branch.")]
XidOrTransaction = Annotated[
    str,
    typer.Argument(
        help="A branch, as `tx list` shows it, or the id of a distributed transaction (32 hexadecimal digits)."
    ),
]
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
_Branches = SetAnswers[list[BranchDescription]]


@app.command("list")
def list_branches(
    everything: Annotated[bool, typer.Option("--all", help="Open branches too.")] = False,
    coordinators: CoordinatorList = "",
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Branches that are prepared or were ended heuristically, the oldest first, and what was decided; and transactions that wait
    for others than resource sets, once they are late."""

    async def command(client: Client) -> None:
        answers, known = await asyncio.gather(_branches(client, with_open=everything), decided(client))
        found = sorted(_by_set(answers), key=lambda each: each[1].since_ms)
        seen = {Xid.decode(branch.xid).global_id for _, branch in found}
        late = known.without_branches(seen, 0 if everything else LATE_MS)
        kept = [heuristic_as_json(one) for one in known.heuristics.values()]
        kept += [unended_as_json(one) for one in late]
        if json:
            print_json([_as_json(set_name, branch, known) for set_name, branch in found] + kept)
            answers.check()
            known.check()
            return
        made = table("XID OR TRANSACTION", "SET", "STATE", "DECISION", "#AGE", "#OPERATIONS", "SESSIONS")
        for set_name, branch in found:
            age = f"{_age_seconds(branch):.0f} s" if branch.since_ms else "?"
            made.add_row(
                str(Xid.decode(branch.xid)),
                set_name,
                _state(branch),
                known.decision(Xid.decode(branch.xid).global_id),
                age,
                str(branch.operations),
                ", ".join(branch.sessions),
            )
        for one in kept:
            name, age = one["distributed_transaction"], f"{one['age_seconds']:.0f} s"
            made.add_row(name, "", one["state"], one["decision"], age, "", "")
        show_table(made)
        answers.check()
        known.check()

    _with_coordinators(brokers, coordinators, command)


@app.command("show")
def show(
    xid: XidOrTransaction,
    coordinators: CoordinatorList = "",
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """One branch, and the others of its transaction: participants, votes and decision, as a coordinator knows them."""

    async def command(client: Client) -> None:
        transaction = parse_global_id(xid)
        wanted = _parse(xid) if transaction is None else None
        answers, known = await asyncio.gather(_branches(client, with_open=True), decided(client))
        family = (wanted.format_id, wanted.global_id) if wanted is not None else (FORMAT_ID, transaction)
        found = [
            (set_name, branch)
            for set_name, branch in _by_set(answers)
            if Xid.decode(branch.xid)[:2] == family
        ]
        kept = known.heuristics.get(family[1] or b"")
        unended = known.transactions.get(family[1] or b"") if not found and transaction is not None else None
        is_there = any(wanted in (None, Xid.decode(branch.xid)) for _, branch in found)
        if not is_there and kept is None and unended is None:
            known.check()
            raise _unknown(xid, answers)
        shown = [_as_json(set_name, branch, known) for set_name, branch in found]
        shown += [heuristic_as_json(kept)] if kept is not None else []
        shown += [unended_as_json(unended)] if unended is not None else []
        if json:
            print_json(shown)
            answers.check()
            known.check()
            return
        for place, each in enumerate(shown):
            if place:
                console.print()
            _show(each)
        answers.check()
        known.check()

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
def forget_heuristic(
    xid: XidOrTransaction,
    coordinators: CoordinatorList = "",
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Forget that a branch was ended by an operator, or that a transaction did not end everywhere as decided."""

    async def command(client: Client) -> None:
        transaction = parse_global_id(xid)
        if transaction is not None:
            await forget(client, transaction)
            _print(
                json,
                {"distributed_transaction": transaction.hex(), "state": "forgotten"},
                f"Transaction {transaction.hex()}: forgotten.",
            )
            return
        wanted = _parse(xid)
        set_name, manager = await _locate(client, wanted)
        await manager.forget(wanted)
        _say(json, {"xid": str(wanted), "set": set_name, "state": "forgotten"})

    _with_coordinators(brokers, coordinators, command)


@app.command("give-up")
def give_up_participant(
    transaction: Annotated[
        str, typer.Argument(help="Id of the distributed transaction (32 hexadecimal digits).")
    ],
    participant: Annotated[
        str, typer.Argument(help="Which service, as it was enlisted: grpc://host:port/name.")
    ],
    coordinators: CoordinatorList = "",
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Tell a participant no more how its transaction ended: one that is gone for good, or that never was. Of a commit that leaves
    a hazard, which is kept until `tx forget`."""

    async def command(client: Client) -> None:
        global_id = parse_global_id(transaction)
        if global_id is None:
            text = f"a distributed transaction has 32 hexadecimal digits, not {transaction[:80]!r}"
            raise Rejected(ErrorCode.INVALID_ARGUMENT, text)
        decision = await give_up(client, global_id, participant)
        shown = {
            "distributed_transaction": global_id.hex(),
            "participant": participant,
            "decision": decision,
        }
        text = f"Transaction {global_id.hex()}, which was {decision}: {participant} is told no more."
        _print(json, shown, text)

    _with_coordinators(brokers, coordinators, command)


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
            console.print(
                f"{counted(len(taken), 'transaction')} taken up." + "".join(f"\n  {each}" for each in taken)
            )

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
        set_name, manager = await _locate(client, wanted)
        await manager.end_heuristically(wanted, commit=is_commit)
        state = "heuristically committed" if is_commit else "heuristically rolled back"
        _say(json, {"xid": str(wanted), "set": set_name, "state": state})

    with_client(brokers, command)


def _with_coordinators(brokers: str, coordinators: str, command: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await connect(brokers, coordinators=coordinators) as client:
            await command(client)

    run(main())


async def _branches(client: Client, *, with_open: bool) -> _Branches:
    session = client.session()

    async def recover(set_name: str) -> list[BranchDescription]:
        return await (await session.resource_manager(set_name)).recover(with_open=with_open)

    return await ask_sets(await _set_names(client), recover)


async def _set_names(client: Client) -> list[str]:
    status = await client.administration.status()
    return [one.name for one in status.view.sets]


def _by_set(answers: _Branches) -> list[tuple[str, BranchDescription]]:
    return [(set_name, branch) for set_name, branches in answers.said.items() for branch in branches]


async def _locate(client: Client, wanted: Xid) -> tuple[str, ResourceManager]:
    """The set that has a branch, whether or not the others answer; raises `Rejected` where none does."""
    session = client.session()

    async def find(set_name: str) -> ResourceManager | None:
        manager = await session.resource_manager(set_name)
        xids = [Xid.decode(branch.xid) for branch in await manager.recover(with_open=True)]
        return manager if wanted in xids else None

    answers = await ask_sets(await _set_names(client), find, is_enough=lambda found: found is not None)
    for set_name, manager in answers.said.items():
        if manager is not None:
            return set_name, manager
    raise _unknown(str(wanted), answers)


def _unknown(xid: str, answers: SetAnswers[Any]) -> Rejected:
    if answers.silent:
        text = f"no resource set that answers has a branch {xid}; {answers.silence}"
        return Rejected(ErrorCode.UNAVAILABLE, text, xid=xid)
    return Rejected(ErrorCode.NOT_FOUND, f"no resource set has a branch {xid}", xid=xid)


def _parse(text: str) -> Xid:
    try:
        return Xid.parse(text)
    except ValueError as error:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, str(error)) from error


def _state(branch: BranchDescription) -> str:
    return known(BranchState, branch.state, BranchState.UNKNOWN).name.lower().replace("_", " ")


def _age_seconds(branch: BranchDescription) -> float:
    return max(0.0, time.time() - branch.since_ms / 1000)


def _as_json(set_name: str, branch: BranchDescription, known: Decided) -> dict[str, Any]:
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
    if (entry := known.transactions.get(xid.global_id)) is not None:
        shown["decision"] = state_name(entry.state)
        shown["participants"] = participants_as_json(entry)
    return shown


def _show(found: dict[str, Any]) -> None:
    """One branch, or a transaction without any, for people: what is known of it, and then its participants."""
    facts = table("", "")
    for name, value in found.items():
        match name, value:
            case "participants", _:
                continue
            case "age_seconds", float():
                facts.add_row("AGE", f"{value:.0f} s")
            case _, list():
                facts.add_row(_heading(name), ", ".join(value) or "-")
            case _:
                facts.add_row(_heading(name), "-" if value in (None, "") else str(value))
    facts.show_header = False
    show_table(facts)
    if found.get("participants"):
        participants = table("PARTICIPANT", "VOTE", "ENDED")
        for one in found["participants"]:
            participants.add_row(one["participant"], one["vote"] or "-", one["ended"] or "-")
        show_table(participants)


def _heading(name: str) -> str:
    return name.removesuffix("_seconds").replace("_", " ").upper()


def _say(json: bool, done: dict[str, str]) -> None:
    _print(json, done, f"Branch {done['xid']} in {done['set']}: {done['state']}.")


def _print(json: bool, done: dict[str, str], text: str) -> None:
    if json:
        print_json(done)
    else:
        console.print(text)
