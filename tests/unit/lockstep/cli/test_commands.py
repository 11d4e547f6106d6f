"""The command line against a fake broker: what it prints, and how it fails."""

import ast
import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockstep.cli import messages, status, tx
from lockstep.cli.connection import run, show_table, table
from lockstep.cli.main import app
from lockstep.cli.messages import check_published
from lockstep.client import ErrorCode, InDoubt, Rejected
from lockstep.client.administration import ClusterStatus
from lockstep.core.commands import DeclareQueueCommand, PublishCommand
from lockstep.core.ids import place
from lockstep.wire.v1 import cluster_pb2 as pb
from tests.unit.lockstep.cli.served_broker import ServedBroker, queue_named, serving
from tests.unit.lockstep.client.session_bench import bodies

runner = CliRunner()


# Markup, emoji and colours of the terminal to whoever prints them as such.
NAMES = ["plain", "jobs[eu]", "a[/b]", ":100:", "[red]", "5\\[x]"]


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    broker = ServedBroker("one")
    broker.directory |= dict.fromkeys(("q", *NAMES), "one")
    broker.queues["one"] = tuple(map(queue_named, NAMES))
    broker.exchanges["one"] = tuple((name, "topic", True) for name in NAMES)
    with serving(broker):
        yield broker


def test_publish_says_what_it_did(broker: ServedBroker) -> None:
    result = runner.invoke(app, ["publish", "q", "a", "b", "-b", broker.address])
    assert (result.exit_code, result.stdout) == (0, "Published 2 messages to q.\n")
    assert bodies(broker.worlds["one"].executed())[-2:] == ["a", "b"]


@pytest.mark.parametrize("is_in_doubt", [False, True])
@pytest.mark.parametrize("if_absent", [False, True])
def test_a_set_that_is_there_is_taken_as_it_is_if_that_is_wanted(
    broker: ServedBroker, is_in_doubt: bool, if_absent: bool
) -> None:
    lost = InDoubt(ErrorCode.UNAVAILABLE, "the answer was lost")
    exists = Rejected(ErrorCode.ALREADY_EXISTS, "set 'one' exists")
    broker.creations = [lost] * is_in_doubt + [exists]
    arguments = ["set", "create", "one", "--brokers", "B1", "--at", broker.address]
    result = runner.invoke(app, arguments + ["--if-absent"] * if_absent)
    if if_absent:
        assert (result.exit_code, result.stdout) == (0, "Set one is there.\n")
    else:
        doubt = "in doubt: an earlier try may have done it: " if is_in_doubt else ""
        assert (result.exit_code, result.stderr) == (1, f"lockstep: {doubt}set 'one' exists\n")


def test_json_is_json_and_nothing_else(broker: ServedBroker) -> None:
    result = runner.invoke(
        app, ["publish", "q", "--file", "-", "--json", "-b", broker.address], input="1\n2\n3\n"
    )
    assert json.loads(result.stdout) == {"target": "q", "messages": 3}


def test_a_queue_is_declared_with_its_options(broker: ServedBroker) -> None:
    arguments = [
        "queue",
        "declare",
        "new",
        "--length-max",
        "5",
        "--evict",
        "--set",
        "one",
        "-b",
        broker.address,
    ]
    result = runner.invoke(app, arguments)
    assert result.stdout == "Declared queue new.\n"
    declared = broker.worlds["one"].executed()[-1]
    assert isinstance(declared, DeclareQueueCommand)
    assert (declared.options.length_max, declared.options.is_evicting, declared.options.is_durable) == (
        5,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["publish", "nowhere", "x"], "lockstep: no nowhere\n"),
        (["publish", "q"], "lockstep: nothing to publish: give bodies, or --file\n"),
        (
            ["publish", "q", "-f", "/nonexistent"],
            "lockstep: cannot read /nonexistent: No such file or directory\n",
        ),
        (["outcome", "nonsense"], "lockstep: not a transaction id: 'nonsense'\n"),
        (["exchange", "bind", "e", "q", "-a", "x"], "lockstep: an argument is name=value, not 'x'\n"),
        (
            ["cluster", "recover", "s", "B1"],
            "lockstep: starting s from the disk of B1 loses what only other disks had: say so with --accept-data-loss\n",
        ),
        (["publish", "\udcff", "x"], "lockstep: '\\udcff' cannot be said in utf-8\n"),
        (["outcome", ":100:"], "lockstep: not a transaction id: ':100:'\n"),
        (
            ["tx", "commit", "a[/b]"],
            "lockstep: an xid is format:global:branch, the ids in hexadecimal, not 'a[/b]'\n",
        ),
        (["events", "open", "\udcff"], "lockstep: '\\udcff' cannot be said in utf-8\n"),
        (
            ["events", "tail", "one", "--behind", "99999999999999999999.1"],
            "lockstep: --behind takes index.epoch, such as 1200.3, not '99999999999999999999.1'\n",
        ),
        (
            ["events", "tail", "one", "--behind", "9" * 5000 + ".1"],
            f"lockstep: --behind takes index.epoch, such as 1200.3, not '{'9' * 80}'\n",
        ),
        (
            ["events", "tail", "one", "--behind", "a[/b]"],
            "lockstep: --behind takes index.epoch, such as 1200.3, not 'a[/b]'\n",
        ),
    ],
)
def test_an_error_is_one_sentence(broker: ServedBroker, arguments: list[str], sentence: str) -> None:
    result = runner.invoke(app, [*arguments, "-b", broker.address])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["up", "--port", "70000"], "port 70000 is not between 0 and 65535"),
        (["up", "--port", "-1"], "port -1 is not between 0 and 65535"),
        (["up", "--port", "65534", "--brokers", "3"], "port 65536 is not between 0 and 65535"),
        (["up", "--amqp-port", "70000"], "port 70000 is not between 0 and 65535"),
        (["up", "--data", "/proc/nope"], "/proc/nope: No such file or directory"),
        (["up", "--data", "/dev/null"], "/dev/null: File exists"),
        (["demo", "--data", "/proc/nope", "--no-pipeline"], "/proc/nope: No such file or directory"),
        (["events", "groups", "-b", ""], "no address of a broker"),
        (["status", "-b", ""], "no address of a broker"),
        (["health", "\udcff"], r"'\udcff' cannot be said in utf-8"),
        (["step-down", "\udcff"], r"'\udcff' cannot be said in utf-8"),
    ],
)
def test_so_is_one_that_needs_no_cluster(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    if arguments[0] == "up" and "--data" not in arguments:
        arguments = [*arguments, "--data", str(tmp_path / "data")]
    result = runner.invoke(app, arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"lockstep: {sentence}\n")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["publish", "q", "x"], ["queue", "declare", "q", "--set", "one"]])
def test_a_time_to_live_that_cannot_be_said_is_refused(broker: ServedBroker, command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--ttl-ms", "99999999999999", "-b", broker.address])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith("lockstep: ")


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_they_are(broker: ServedBroker, name: str) -> None:
    for arguments, said in (
        (["publish", name, "x"], f"Published 1 message to {name}."),
        (["queue", "declare", name, "--set", "one"], f"Declared queue {name}."),
        (["queue", "purge", name], f"Removed 0 messages from queue {name}."),
        (["queue", "delete", name], f"Deleted queue {name} and 0 messages in it."),
    ):
        broker.directory[name] = "one"
        result = runner.invoke(app, [*arguments, "-b", broker.address])
        assert (result.exit_code, result.stderr) == (0, ""), result.exception
        assert result.stdout == f"{said}\n"


def test_so_they_are_where_something_was_moved(broker: ServedBroker) -> None:
    result = runner.invoke(app, ["transfer", "a[/b]", "jobs[eu]", ":100:", "-b", broker.address])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Moved 0 messages from a[/b] to jobs[eu], :100: in 0 transactions")


def test_tables_have_names_as_they_are(broker: ServedBroker) -> None:
    for group in ("queue", "exchange"):
        result = runner.invoke(app, [group, "list", "-b", broker.address])
        assert (result.exit_code, result.stderr) == (0, "")
        assert [line.split()[1] for line in result.stdout.splitlines()[1:]] == NAMES


def test_a_long_name_leaves_room_for_what_is_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["n" * 255, "\u6f22\u5b57" * 40, "q"]
    made = table("SET", "QUEUE", "#MESSAGES")
    for name in names:
        made.add_row("one", name, "1234567890")
    show_table(made)
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.split() == ["SET", "QUEUE", "MESSAGES"]
    assert [row.split() for row in rows] == [["one", name, "1234567890"] for name in names]


def test_all_tables_of_all_commands_have_headings_of_one_style() -> None:
    found = [
        heading.value
        for path in sorted(Path(messages.__file__).parent.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "table"
        for heading in call.args
        if isinstance(heading, ast.Constant) and isinstance(heading.value, str)
    ]
    assert "XID OR TRANSACTION" in found
    assert [heading for heading in found if heading != heading.upper()] == []


def test_a_transaction_is_shown_in_words_and_its_participants_as_a_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tx._show(
        {
            "xid": "1:aa:01",
            "set": "",
            "age_seconds": 12.3,
            "sessions": ["s1", "s2"],
            "distributed_transaction": "aa",
            "decision": "commit",
            "participants": [{"participant": "grpc://h:1/p", "vote": "", "ended": "hazard"}],
        }
    )
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["XID", "1:aa:01"],
        ["SET", "-"],
        ["AGE", "12", "s"],
        ["SESSIONS", "s1,", "s2"],
        ["DISTRIBUTED", "TRANSACTION", "aa"],
        ["DECISION", "commit"],
        ["PARTICIPANT", "VOTE", "ENDED"],
        ["grpc://h:1/p", "-", "hazard"],
    ]


def test_a_table_is_no_wider_than_what_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    made = table("", "")
    show_table(made)
    made.add_row("x", "y")
    show_table(made)
    assert max(map(len, capsys.readouterr().out.splitlines())) < 10


def test_what_is_red_is_said_without_markup(capsys: pytest.CaptureFixture[str]) -> None:
    answer = pb.GetClusterStatusResponse(broker="B1", lost_sets=["a[/b]"], silent_witnesses=["B2", "B[3]"])
    replica = answer.replicas.add(resource_set="jobs[eu]", role=pb.ROLE_PRIMARY, trouble="[/x] :100:")
    answer.sets.add(name=replica.resource_set, primary="B1", is_led=True, brokers=["B1"])
    answer.members.add(broker="B1", address="[::1]:1")
    status.show(ClusterStatus(answer, {"B1": answer}), with_hash=False)
    said = capsys.readouterr().out
    for text in (
        "[::1]:1  up",
        "jobs[eu]",
        "primary",
        "[/x] :100:",
        "Set a[/b] is on the disks of B1",
        "down: B2, B[3].",
    ):
        assert text in said


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["queue", "declare", "new", option, "-1"]
            for option in ("--length-max", "--bytes-max", "--ttl-ms")
        ),
        ["queue", "declare", "new", "--delivery-count-max", "-1"],
        ["publish", "q", "a", "--ttl-ms", "-1"],
        ["consume", "q", "--credit", "0"],
        ["consume", "q", "--count", "-1"],
        ["browse", "q", "--limit", "-1"],
        ["transfer", "q", "q", "--count", "-1"],
    ],
)
def test_a_number_below_its_range_is_named_with_its_option(broker: ServedBroker, words: list[str]) -> None:
    result = runner.invoke(app, [*words, "-b", broker.address])
    assert (result.exit_code, f"Invalid value for '{words[-2]}'" in result.stderr.replace(" / '-n'", "")) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("is_led", "second", "said"),
    [
        (True, pb.ROLE_BACKUP, []),
        (True, None, ["Set east needs 2 brokers in sync. Answers come here from 1 broker in sync:"]),
        (
            True,
            pb.ROLE_STOPPED,
            ["Set east needs 2 brokers in sync. Answers come here from 1 broker in sync:"],
        ),
        (False, pb.ROLE_BACKUP, ["Set east has no primary now:"]),
    ],
)
def test_a_set_that_completes_nothing_is_named(
    capsys: pytest.CaptureFixture[str], is_led: bool, second: pb.Role | None, said: list[str]
) -> None:
    answers: dict[str, pb.GetClusterStatusResponse | None] = {"B3": None}
    for broker, role in (("B1", pb.ROLE_PRIMARY), ("B2", second)):
        answers[broker] = None if role is None else pb.GetClusterStatusResponse(broker=broker)
        if (answer := answers[broker]) is not None:
            answer.replicas.add(resource_set="east", role=role)
    view = pb.GetClusterStatusResponse()
    brokers = ["B1", "B2", "B3"]
    view.sets.add(
        name="east", primary="B1", is_led=is_led, brokers=brokers, in_sync=["B1", "B2"], min_in_sync=2
    )
    status.show(ClusterStatus(view, answers), with_hash=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] + ":" for line in lines if line.startswith("Set ")] == said


def test_a_place_in_a_queue_is_given_as_it_is_shown(broker: ServedBroker) -> None:
    position = place(120, 3)
    assert [messages.position_from(text) for text in ("120.3", str(position))] == [position, position]
    for text in ("x", "1.2.3", "-1", ".1", "1.", "1.99999999", "9" * 20, "1e3"):
        result = runner.invoke(app, ["browse", "q", "--after", text, "-b", broker.address])
        assert (result.exit_code, "--after takes a position" in result.stderr) == (1, True), text


def test_what_several_tasks_fail_with_is_one_sentence_too(capsys: pytest.CaptureFixture[str]) -> None:
    async def refused() -> None:
        raise Rejected(ErrorCode.STORE_FULL, "the store is full")

    async def both() -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            outer.create_task(refused())
            inner.create_task(refused())

    with pytest.raises(SystemExit) as ended:
        run(both())
    assert (ended.value.code, capsys.readouterr().err) == (1, "lockstep: the store is full\n")


def test_a_body_need_not_be_text(broker: ServedBroker) -> None:
    result = runner.invoke(app, ["publish", "q", os.fsdecode(b"\xff\0\xc3"), "-b", broker.address])
    assert (result.exit_code, result.stderr) == (0, "")
    published = broker.worlds["one"].executed()[-1]
    assert isinstance(published, PublishCommand)
    assert published.messages[0].body == b"\xff\0\xc3"


@pytest.mark.parametrize("doubtful", [False, True])
def test_what_is_published_of_more_than_one_call_is_said_where_another_fails(
    tmp_path: Path, doubtful: bool
) -> None:
    full = Rejected(ErrorCode.QUEUE_FULL, "queue 'q' is full")
    lost = InDoubt(ErrorCode.UNAVAILABLE, "nobody could tell")
    answers = [(500, None), (500, full), (500, lost if doubtful else full), (7, None)]
    with pytest.raises(InDoubt if doubtful else Rejected) as raised:
        check_published(answers, 2007)
    said = "nobody could tell" if doubtful else "queue 'q' is full"
    unknown = ", 500 more in doubt" if doubtful else ""
    assert raised.value.message == f"{said}; published: 507 of 2,007 messages{unknown}"


def test_a_file_that_a_queue_has_no_room_for_is_counted(broker: ServedBroker, tmp_path: Path) -> None:
    broker.directory["small"] = "one"
    broker.refusals["small"] = (ErrorCode.QUEUE_FULL, 100)
    lines = tmp_path / "lines"
    lines.write_text("x\n" * 1020)
    result = runner.invoke(app, ["publish", "small", "-f", str(lines), "-b", broker.address])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "lockstep: QUEUE_FULL; published: 20 of 1,020 messages\n"
