"""The command line against a fake broker: what it prints, and how it fails."""

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from lockstep.cli.main import app
from lockstep.core.commands import DeclareQueueCommand
from tests.unit.lockstep.client.fake_broker import FakeBroker
from tests.unit.lockstep.client.session_bench import bodies

runner = CliRunner()


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    """On an event loop of its own: a command runs one itself."""
    ready = threading.Event()
    running: list[FakeBroker] = []
    loop = asyncio.new_event_loop()
    stopping = asyncio.Event()

    async def serve() -> None:
        async with FakeBroker("one") as served:
            served.directory["q"] = "one"
            running.append(served)
            ready.set()
            await stopping.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    yield running[0]
    loop.call_soon_threadsafe(stopping.set)
    thread.join(30)
    loop.close()


def test_publish_says_what_it_did(broker: FakeBroker) -> None:
    result = runner.invoke(app, ["publish", "q", "a", "b", "-b", broker.address])
    assert (result.exit_code, result.stdout) == (0, "Published 2 messages to q.\n")
    assert bodies(broker.worlds["one"].executed())[-2:] == ["a", "b"]


def test_json_is_json_and_nothing_else(broker: FakeBroker) -> None:
    result = runner.invoke(
        app, ["publish", "q", "--file", "-", "--json", "-b", broker.address], input="1\n2\n3\n"
    )
    assert json.loads(result.stdout) == {"target": "q", "messages": 3}


def test_a_queue_is_declared_with_its_options(broker: FakeBroker) -> None:
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
    ],
)
def test_an_error_is_one_sentence(broker: FakeBroker, arguments: list[str], sentence: str) -> None:
    result = runner.invoke(app, [*arguments, "-b", broker.address])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", sentence)
