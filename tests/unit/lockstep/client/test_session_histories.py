"""Any history of losses: every command is answered once, and what is answered is so (P2, P4, histories 8 and 25)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.client import session_events as e
from lockstep.client.session_settings import SessionSettings
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import LogIndex
from tests.unit.lockstep.client.fake_primary import Entry
from tests.unit.lockstep.client.session_bench import Bench, bodies, publish

STEPS = (
    "publish", "publish", "begin", "begin and hear of it", "operate", "commit", "commit and begin two", "roll back",
    "write", "read", "read without commit", "lose", "fail over", "fail over keeping one", "fail over keeping all",
    "restart", "push back", "wait", "wait long",
)  # fmt: skip


class History:
    """Applies steps to a bench, keeping the tickets and the open transactions."""

    def __init__(self) -> None:
        self.bench = Bench(settings=SessionSettings(give_up_ms=0)).start()
        self.tickets: list[str] = []
        self.commits: dict[str, object] = {}

    def submit(self, command: c.AnyCommand) -> None:
        ticket = f"t{len(self.tickets)}"
        if isinstance(command, c.PublishCommand):
            command = publish(ticket, transaction=command.transaction)
        if isinstance(command, c.CommitCommand):
            self.commits[ticket] = command.transaction
        self.tickets.append(ticket)
        self.bench.submit(ticket, command)

    def step(self, step: str) -> None:
        bench = self.bench
        open_now = sorted(bench.core.window.operations)
        match step:
            case "publish":
                self.submit(publish(""))
            case "begin":
                self.submit(c.BeginCommand(0))
            case "begin and hear of it":
                self.submit(c.BeginCommand(0))
                bench.write()
                bench.read(commit=False)
            case "operate" if open_now:
                self.submit(publish("", transaction=open_now[0]))
            case "commit" if open_now:
                self.submit(c.CommitCommand(0, open_now[0], 0))
            case "commit and begin two" if open_now:
                self.submit(c.CommitCommand(0, open_now[0], 0, 2))
            case "roll back" if open_now:
                self.submit(c.RollbackCommand(0, open_now[-1]))
            case "write":
                bench.write()
            case "read":
                bench.read()
            case "read without commit":
                bench.read(commit=False)
            case "lose":
                bench.lose()
            case "fail over" | "fail over keeping one" | "fail over keeping all":
                bench.world.fail_over({"fail over": 0, "fail over keeping one": 1}.get(step, 1000))
                bench.lose()
            case "restart":
                bench.world.restart()
                bench.lose()
            case "push back" if bench.primary is not None:
                bench.primary.pushes_back = not bench.primary.pushes_back
            case "wait":
                bench.wait(60)
            case "wait long":
                bench.wait(1_500)

    def heal(self) -> None:
        for _ in range(50):
            if self.bench.primary is not None:
                self.bench.primary.pushes_back = False
            self.bench.exchange()
            self.bench.wait(200)


def indexes_begun(index: int, entry: Entry) -> range:
    """Of the transactions that the command answered by the record at `index` has begun."""
    match entry.command:
        case c.BeginCommand():
            return range(index, index + 1)
        case c.CommitCommand(begins=begins) if entry.code is ErrorCode.NONE:
            return range(index - begins, index)
        case _:
            return range(0)


@pytest.mark.fuzz
@settings(max_examples=max(300, settings().max_examples))
@given(st.lists(st.sampled_from(STEPS), max_size=60))
def test_every_command_is_answered_once_and_truly(steps: list[str]) -> None:
    history = History()
    for step in steps:
        history.step(step)
    history.heal()
    bench = history.bench
    executed = bodies(bench.world.executed())
    assert len(executed) == len(set(executed)), "executed twice"
    committed = {
        command.transaction for command in bench.world.executed() if isinstance(command, c.CommitCommand)
    }
    for ticket in history.tickets:
        (outcome,) = bench.outcomes(ticket)
        match outcome:
            case e.CommandDone() if ticket in history.commits:
                assert history.commits[ticket] in committed
            case e.CommandRejected() if ticket in history.commits:
                assert history.commits[ticket] not in committed
            case e.CommandRejected():
                assert ticket not in executed
    begun_in_log = [
        (LogIndex(begun), entry.epoch)
        for index, entry in enumerate(bench.world.log, 1)
        for begun in indexes_begun(index, entry)
    ]
    done = [o for o in bench.of(e.CommandDone) if isinstance(o, e.CommandDone)]
    told = {o.transaction for o in done} | {key for o in done for key in o.begun}
    assert all(key in told for key in begun_in_log if key[1] == bench.world.epoch), (
        "a transaction nobody knows"
    )
    assert all(lost.code is not ErrorCode.ILLEGAL_STATE for lost in bench.of(e.SessionLost))  # type: ignore[union-attr]
    assert bench.core.window.heard == bench.core.window.last
    assert not len(bench.core.window) or all(entry.is_answered for entry in bench.core.window._window)
