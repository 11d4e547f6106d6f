"""A set without a primary keeps no command from what the other sets say."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from lockstep.cli.main import app
from lockstep.cli.set_answers import ask_sets
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.server_messages import BranchDescription
from lockstep.core.xa import BranchState
from lockstep.core.xid import Xid
from tests.unit.lockstep.cli.served_broker import ServedBroker, queue_named, serving

XID = Xid(1, b"\xaa\xbb", b"\x01")
runner = CliRunner()


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    """West has everything, and neither east, which comes before it, nor zenith answers."""
    broker = ServedBroker("east", "west", "zenith")
    broker.without_primary = {"east", "zenith"}
    broker.directory["orders"] = "west"
    broker.queues["west"] = (queue_named("orders"),)
    broker.exchanges["west"] = (("news", "topic", True),)
    branch = BranchDescription(XID.encode(), (5, 1), BranchState.PREPARED, 1, 1, ())  # type: ignore[arg-type]
    broker.branches["west"] = (branch,)
    with serving(broker):
        yield broker


def test_a_branch_is_ended_although_other_sets_do_not_answer(broker: ServedBroker) -> None:
    began = time.monotonic()
    result = runner.invoke(app, ["tx", "rollback", str(XID), "--heuristic", "-b", broker.address])
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        f"Branch {XID} in west: heuristically rolled back.\n",
        "",
    )
    assert time.monotonic() - began < 5


async def test_what_there_is_is_shown_and_the_silent_are_named(broker: ServedBroker) -> None:
    commands = {
        "xid": ["tx", "list"],
        "operations": ["tx", "show", str(XID)],
        "queue": ["queue", "list"],
        "exchange": ["exchange", "list"],
    }
    answers = await asyncio.gather(
        *(lockstep(*words, "--json", "-b", broker.address) for words in commands.values()),
        lockstep("tx", "commit", "7:00:00", "--heuristic", "-b", broker.address),
        lockstep("queue", "list", "--set", "east", "-b", broker.address),
    )
    silence = (
        "resource sets east, zenith did not answer:"
        " no primary of east answered for 10 s; no primary of zenith answered for 10 s\n"
    )
    for key, (status, out, err) in zip(commands, answers, strict=False):
        assert (status, err) == (1, f"lockstep: {silence}")
        (shown,) = json.loads(out)
        assert (shown["set"], key in shown) == ("west", True)
    assert answers[-2:] == [
        (1, "", f"lockstep: no resource set that answers has a branch 7:00:00; {silence}"),
        (1, "", "lockstep: no primary of east answered for 10 s\n"),
    ]


async def lockstep(*words: str) -> tuple[int | None, str, str]:
    """A process of its own for each: they wait at the same time."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lockstep.cli", *words, stdout=pipe, stderr=pipe
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


def test_the_length_of_a_queue_is_asked_of_its_own_set(broker: ServedBroker) -> None:
    began = time.monotonic()
    result = runner.invoke(app, ["transfer", "orders", "orders", "--json", "-b", broker.address])
    assert (result.exit_code, json.loads(result.stdout)["messages"]) == (0, 0)
    assert time.monotonic() - began < 5


async def test_answers_come_in_the_order_of_the_names() -> None:
    async def ask(name: str) -> str:
        await asyncio.sleep({"a": 0.02, "b": 0.01}.get(name, 0))
        if name == "c":
            raise Rejected(ErrorCode.UNAVAILABLE, "no c")
        return name.upper()

    answers = await ask_sets("abcd", ask)
    assert list(answers.said.items()) == [("a", "A"), ("b", "B"), ("d", "D")]
    assert answers.silence == "resource set c did not answer: no c"


async def test_one_that_is_asked_alone_says_itself_why_it_does_not_answer() -> None:
    async def ask(name: str) -> None:
        raise Rejected(ErrorCode.UNKNOWN_SET, f"no resource set {name!r}")

    with pytest.raises(Rejected, match=r"^no resource set 'a'$"):
        await ask_sets("a", ask)
