"""`lockstep events`: committed events, and the groups that read them."""

from collections.abc import Callable
from typing import Annotated

import typer

from lockstep.cli.connection import (
    DEFAULT_BROKERS,
    Brokers,
    Json,
    console,
    fail,
    one_sentence,
    print_json,
    print_json_line,
    show_table,
    table,
)
from lockstep.client.event_offsets import EventOffset, Offsets
from lockstep.client.event_rows import Event, events_in
from lockstep.client.events import EventsClient, Start
from lockstep.core.errors import ErrorCode, Rejected

app = typer.Typer(no_args_is_help=True)

Group = Annotated[str, typer.Argument(help="Name of the group.")]


@app.command("groups")
def groups(brokers: Brokers = DEFAULT_BROKERS, json: Json = False) -> None:
    """List groups and what they have acknowledged. Close one that was left behind, and have its reader open it anew."""

    def command(client: EventsClient) -> None:
        found, left_behind = client.subscriptions(), client.left_behind()
        if json:
            notes = {name: {"left_behind": set_names} for name, set_names in left_behind.items()}
            print_json({name: _plain(offsets) | notes.get(name, {}) for name, offsets in found.items()})
            return
        made = table("GROUP", "SET", "#ACKNOWLEDGED", "#EPOCH", "")
        for name, offsets in found.items():
            for set_name, offset in offsets.items():
                note = "left behind" if set_name in left_behind.get(name, ()) else ""
                made.add_row(name, set_name, str(offset.index), str(offset.epoch), note)
        show_table(made)

    _with_events(brokers, command)


@app.command("open")
def open_group(
    group: Group,
    earliest: Annotated[bool, typer.Option("--earliest", help="Begin with what is kept for others.")] = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Open a group: what is committed from now on is kept until it acknowledges that. Or show where it stands."""

    def command(client: EventsClient) -> None:
        start = Start.START_EARLIEST if earliest else Start.START_LATEST
        subscription = client.open_subscription(group, start)
        if json:
            print_json({"group": group, "is_new": subscription.is_new, **_plain(subscription.offsets)})
            return
        console.print(f"{'Opened' if subscription.is_new else 'Found'} group {group}.")

    _with_events(brokers, command)


@app.command("close")
def close_group(group: Group, brokers: Brokers = DEFAULT_BROKERS, json: Json = False) -> None:
    """End a group: nothing is kept for it any more."""

    def command(client: EventsClient) -> None:
        client.close_subscription(group)
        print_json({"group": group}) if json else console.print(f"Closed group {group}.")

    _with_events(brokers, command)


@app.command("tail")
def tail(
    set_name: Annotated[str, typer.Argument(metavar="SET", help="Resource set.")],
    behind: Annotated[str, typer.Option(help="index.epoch to begin behind; from now on without it.")] = "",
    brokers: Brokers = DEFAULT_BROKERS,
    json: Json = False,
) -> None:
    """Print what a resource set commits, as it does so, until interrupted."""
    begin = _offset(behind) if behind else None

    def command(client: EventsClient) -> None:
        position = begin
        while True:
            for batch in client.tail(set_name, position):
                for event in events_in(batch):
                    print_json_line(_as_json(event)) if json else console.print(_line(event))
                position = EventOffset.of(batch.end)

    _with_events(brokers, command)


def _with_events(brokers: str, command: Callable[[EventsClient], None]) -> None:
    with one_sentence(), _client(brokers) as client:
        command(client)


def _client(brokers: str) -> EventsClient:
    try:
        return EventsClient(brokers)
    except ValueError as error:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, str(error)) from error


def _offset(text: str) -> EventOffset:
    index, _, epoch = text.partition(".")
    if not (_is_number(index) and _is_number(epoch)):
        sentence = f"--behind takes index.epoch, such as 1200.3, not {text[:80]!r}"
        fail(Rejected(ErrorCode.INVALID_ARGUMENT, sentence))
    return EventOffset(int(index), int(epoch))


def _is_number(text: str) -> bool:
    """As the wire has room for."""
    return text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 1 << 64


def _plain(offsets: Offsets) -> dict[str, str]:
    return {name: f"{offset.index}.{offset.epoch}" for name, offset in offsets.items()}


def _as_json(event: Event) -> dict[str, object]:
    return {
        "resource_set": event.resource_set,
        "index": event.index,
        "commit_time": event.commit_time.isoformat(timespec="milliseconds"),
        "transaction": event.transaction,
        "xid": event.xid,
        "place": event.place,
        "events": event.events,
        "kind": event.kind,
        "resource": event.resource,
        "position": list(event.position),
        "source": list(event.source),
        "body": event.body,
    }


def _line(event: Event) -> str:
    time = event.commit_time.strftime("%H:%M:%S.%f")[:-3]
    what = f"{event.kind} {event.resource}".rstrip()
    which = f" {event.position[0]}.{event.position[1]}" if event.position != (0, 0) else ""
    body = f"  {event.body[:60]!r}" if event.body else ""
    of = f"{event.place + 1}/{event.events} {event.transaction}".rstrip()
    return f"{time}  {event.index:>10}  {of}  {what}{which}{body}"
