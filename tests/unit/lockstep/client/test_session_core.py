"""One session through everything that can happen to its stream, its primary and its set."""

import pytest
from msgspec.structs import replace

from lockstep.client import session_events as e
from lockstep.client.session_line import State
from lockstep.client.session_settings import SessionSettings
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, LogIndex
from tests.unit.lockstep.client.session_bench import Bench, begun, bodies, publish, transaction_of


def hear_begin(bench: Bench) -> None:
    """The primary has heard of it, and answers nothing."""
    bench.submit("begin", c.BeginCommand(0))
    bench.write()
    assert bench.primary is not None
    bench.primary.hear(bench.to_primary.pop())


def test_a_session_attaches_and_its_commands_are_numbered_and_done() -> None:
    bench = Bench().start()
    for text in "abc":
        bench.submit(text, publish(text))
    bench.exchange()
    assert bodies(bench.world.executed()) == ["a", "b", "c"]
    assert [m.number for m in bench.sent if isinstance(m, c.PublishCommand)] == [1, 2, 3]
    assert [bench.outcomes(text) for text in "abc"] == [[e.CommandDone(text, 0)] for text in "abc"]
    assert bench.core.window.heard == 3


def test_what_is_submitted_during_a_write_goes_with_the_next_one() -> None:
    bench = Bench().start()
    bench.submit("a", publish("a"))
    for text in "bcd":
        bench.submit(text, publish(text))
    assert bodies(list(bench.to_primary)) == ["a"]  # type: ignore[arg-type]
    bench.write()
    assert bodies(list(bench.to_primary)) == ["a", "b", "c", "d"]  # type: ignore[arg-type]


def test_no_more_than_the_kept_answers_are_in_flight() -> None:
    bench = Bench(settings=SessionSettings(send_commands_max=4096)).start()
    for number in range(c.ANSWERS_KEPT + 5):
        bench.submit(number, publish("x"))
    bench.write()
    assert len(bench.to_primary) == c.ANSWERS_KEPT
    bench.exchange()
    assert bench.core.window.heard == c.ANSWERS_KEPT + 5


@pytest.mark.parametrize("is_read", [False, True])
def test_a_command_whose_stream_broke_takes_effect_once(is_read: bool) -> None:
    bench = Bench().start()
    bench.submit("a", publish("a"))
    bench.write()
    if is_read:
        bench.to_primary, messages = [], bench.to_primary
        assert bench.primary is not None
        for message in messages:
            bench.primary.hear(message)
    bench.lose()
    bench.exchange()
    assert bodies(bench.world.executed()) == ["a"]
    assert bench.outcomes("a") == [e.CommandDone("a", 0)]


def test_after_a_failover_only_what_the_new_primary_lacks_is_sent_again() -> None:
    bench = Bench().start()
    for text in "abc":
        bench.submit(text, publish(text))
    bench.write()
    bench.read(commit=False)
    bench.world.fail_over(keep=2)
    bench.sent.clear()
    bench.lose()
    bench.exchange()
    assert bodies([m for m in bench.sent if isinstance(m, c.PublishCommand)]) == ["c"]
    assert bodies(bench.world.executed()) == ["a", "b", "c"]


def test_commands_that_a_forgotten_session_may_have_done_are_in_doubt_and_the_others_did_not_happen() -> None:
    bench = Bench().start()
    bench.submit("sent", publish("sent"))
    bench.submit("unsent", publish("unsent"))
    bench.read(commit=False)
    bench.world.restart()
    bench.lose()
    bench.exchange()
    assert bench.outcomes("sent") == [
        e.CommandInDoubt("sent", ErrorCode.UNKNOWN_SESSION, "no such session", None)
    ]
    assert bench.outcomes("unsent") == [
        e.CommandRejected("unsent", ErrorCode.UNKNOWN_SESSION, "no such session")
    ]
    assert bench.of(e.SessionLost) == [e.SessionLost(ErrorCode.UNKNOWN_SESSION, "no such session")]
    assert bench.core.session_id == "session-2"
    bench.submit("next", publish("next"))
    bench.exchange()
    assert bench.outcomes("next") == [e.CommandDone("next", 0)]


def test_a_new_session_asks_what_the_forgotten_one_was_not_answered() -> None:
    bench = Bench().start()
    bench.world.restart()
    bench.lose()
    bench.feed(e.Ask("how", rq.Describe(0)))
    bench.exchange()
    assert len(bench.of(e.SessionLost)) == 1
    (answer,) = bench.outcomes("how")
    assert isinstance(answer, e.QuestionAnswered)


def test_what_a_commit_brings_is_its_last_operation_and_is_counted_by_its_size() -> None:
    bench = Bench().start()
    key = begun(bench)
    bench.submit("a", publish("a", transaction=key))
    before = bench.core.window.bytes
    last = publish("b" * 1_000, transaction=key)
    bench.submit("commit", c.CommitCommand(0, key, 0, 0, last))
    assert bench.core.window.bytes - before > 1_000
    bench.exchange()
    (commit,) = [m for m in bench.sent if isinstance(m, c.CommitCommand)]
    assert commit.operations == 2
    assert commit.last_publish is not None
    assert (commit.last_publish.number, commit.last_publish.sequence) == (commit.number, 2)


def test_operations_and_commit_get_their_sequence_and_count() -> None:
    bench = Bench().start()
    key = begun(bench)
    for text in "ab":
        bench.submit(text, publish(text, transaction=key))
    bench.submit("commit", c.CommitCommand(0, key, 0))
    bench.exchange()
    operations = [m for m in bench.sent if isinstance(m, c.PublishCommand)]
    assert [operation.sequence for operation in operations] == [1, 2]
    assert [m.operations for m in bench.sent if isinstance(m, c.CommitCommand)] == [2]
    assert bench.outcomes("commit") == [e.CommandDone("commit", 0)]


def test_a_failover_aborts_an_open_transaction_and_the_client_is_told() -> None:
    bench = Bench().start()
    key = begun(bench)
    bench.world.fail_over(keep=0)
    bench.lose()
    bench.exchange()
    assert bench.of(e.TransactionAborted) == [e.TransactionAborted(key)]
    bench.submit("late", publish("late", transaction=key))
    bench.submit("commit", c.CommitCommand(0, key, 1))
    bench.exchange()
    for ticket in ("late", "commit"):
        (outcome,) = bench.outcomes(ticket)
        assert isinstance(outcome, e.CommandRejected)
        assert outcome.code is ErrorCode.ROLLED_BACK


def test_a_transaction_goes_on_where_the_set_was_handed_over() -> None:
    bench = Bench().start()
    key = begun(bench)
    bench.submit("one", publish("one", transaction=key))
    bench.exchange()
    bench.world.hand_over()
    bench.lose()
    bench.feed(e.Learn(bench.world.epoch, ()))
    bench.submit("two", publish("two", transaction=key))
    bench.submit("commit", c.CommitCommand(0, key, 0))
    bench.exchange()
    assert bench.of(e.TransactionAborted) == []
    for ticket in ("one", "two", "commit"):
        assert bench.outcomes(ticket) == [e.CommandDone(ticket, 0)]
    operations = [m for m in bench.world.executed() if isinstance(m, c.PublishCommand)]
    assert [operation.sequence for operation in operations] == [1, 2]
    assert [m.operations for m in bench.world.executed() if isinstance(m, c.CommitCommand)] == [2]


def test_a_begin_that_is_heard_of_after_its_epoch_was_handed_over_is_done() -> None:
    bench = Bench().start()
    hear_begin(bench)
    bench.world.hand_over()
    bench.lose()
    bench.exchange()
    assert transaction_of(bench, "begin")[1] == 1


def handed_over(bench: Bench) -> None:
    bench.world.hand_over()
    bench.lose()
    bench.exchange()


def test_a_transaction_keeps_its_name_where_it_becomes_a_branch_behind_a_hand_over() -> None:
    bench = Bench().start()
    key = begun(bench)
    bench.submit("one", publish("one", transaction=key))
    bench.exchange()
    handed_over(bench)
    bench.submit("start", c.StartCommand(0, b"xid", transaction=key))
    bench.exchange()
    assert bench.outcomes("start") == [e.CommandDone("start", key[0], key)]
    bench.submit("end", c.EndCommand(0, b"xid", 0))
    bench.exchange()
    assert [m.operations for m in bench.world.executed() if isinstance(m, c.EndCommand)] == [1]


def test_a_suspended_branch_keeps_its_name_where_it_is_resumed_behind_a_hand_over() -> None:
    bench = Bench().start()
    bench.submit("start", c.StartCommand(0, b"xid"))
    bench.exchange()
    (done,) = bench.outcomes("start")
    assert isinstance(done, e.CommandDone) and done.transaction is not None
    bench.submit("one", publish("one", transaction=done.transaction))
    bench.submit("suspend", c.EndCommand(0, b"xid", 0, is_suspended=True))
    bench.exchange()
    handed_over(bench)
    bench.submit("resume", c.StartCommand(0, b"xid", is_resume=True))
    bench.exchange()
    assert bench.outcomes("resume") == [e.CommandDone("resume", done.value, done.transaction)]
    bench.submit("end", c.EndCommand(0, b"xid", 0))
    bench.exchange()
    assert [m.operations for m in bench.world.executed() if isinstance(m, c.EndCommand)] == [1, 1]


def test_a_branch_that_is_joined_behind_a_hand_over_has_the_name_that_the_answer_says() -> None:
    bench = Bench().start()
    bench.submit("start", c.StartCommand(0, b"xid"))
    bench.submit("end", c.EndCommand(0, b"xid", 0))
    bench.exchange()
    (done,) = bench.outcomes("start")
    assert isinstance(done, e.CommandDone)
    handed_over(bench)
    bench.submit("join", c.StartCommand(0, b"xid", is_join=True))
    bench.exchange()
    assert bench.outcomes("join") == [e.CommandDone("join", done.value, done.transaction)]


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_a_commit_whose_answer_was_lost_is_resolved_by_the_resumption(keep: int) -> None:
    bench = Bench().start()
    bench.submit("begin", c.BeginCommand(0))
    bench.write()
    bench.read(commit=False)
    key = transaction_of(bench, "begin")
    bench.submit("op", publish("op", transaction=key))
    bench.write()
    bench.submit("commit", c.CommitCommand(0, key, 0))
    bench.write()
    bench.read(commit=False)
    bench.world.fail_over(keep)
    bench.lose()
    bench.exchange()
    (commit,) = bench.outcomes("commit")
    if keep == 3:
        assert commit == e.CommandDone("commit", 0)
    else:
        assert isinstance(commit, e.CommandRejected)
        assert commit.code is ErrorCode.ROLLED_BACK
    assert len(bench.outcomes("op")) == 1


def test_a_begin_that_was_answered_and_then_dropped_opens_no_second_transaction() -> None:
    bench = Bench().start()
    bench.submit("begin", c.BeginCommand(0))
    bench.write()
    bench.read(commit=False)
    answered, key = bench.outcomes("begin"), transaction_of(bench, "begin")
    bench.world.fail_over(keep=0)
    bench.lose()
    bench.exchange()
    assert bench.of(e.TransactionAborted) == [e.TransactionAborted(key)]
    assert [m for m in bench.world.executed() if isinstance(m, c.BeginCommand)] == []
    assert bench.sent[-1] == c.RollbackCommand(1, key)
    assert bench.outcomes("begin") == answered
    assert begun(bench, "again")[1] == 2


def test_a_begin_that_is_heard_of_only_after_its_epoch_is_rejected() -> None:
    bench = Bench().start()
    hear_begin(bench)
    bench.world.fail_over(keep=1)
    bench.lose()
    bench.exchange()
    (outcome,) = bench.outcomes("begin")
    assert isinstance(outcome, e.CommandRejected)
    assert outcome.code is ErrorCode.ROLLED_BACK


def test_a_commit_in_doubt_names_its_transaction() -> None:
    bench = Bench().start()
    key = begun(bench)
    bench.submit("commit", c.CommitCommand(0, key, 0))
    bench.write()
    bench.world.restart()
    bench.lose()
    bench.exchange()
    assert bench.outcomes("commit") == [
        e.CommandInDoubt("commit", ErrorCode.UNKNOWN_SESSION, "no such session", key)
    ]


def test_nothing_of_a_lower_epoch_is_believed() -> None:
    bench = Bench().start()
    bench.submit("a", publish("a"))
    bench.write()
    bench.feed(e.Learn(Epoch(2)))
    old_stream = bench.stream - 1
    bench.feed(
        e.Received(
            old_stream, (sm.Answers(Epoch(1), LogIndex(9), (sm.CommandAnswered(1, ErrorCode.NONE, "", 0),)),)
        )
    )
    bench.say(sm.SessionAttached(Epoch(1), LogIndex(9), bench.core.session, Epoch(1), 2, ()))
    assert bench.core.state is not State.ATTACHED
    assert bench.outcomes("a") == []
    bench.world.fail_over(keep=0)
    bench.lose()
    bench.wait(60)
    bench.exchange()
    assert bench.outcomes("a") == [e.CommandDone("a", 0)]


def test_an_answer_of_another_epoch_on_an_open_stream_ends_it() -> None:
    bench = Bench().start()
    bench.submit("a", publish("a"))
    bench.say(sm.Answers(Epoch(7), LogIndex(9), (sm.CommandAnswered(1, ErrorCode.NONE, "", 0),)))
    assert bench.outcomes("a") == []
    assert bench.core.state is State.ATTACHING
    assert bench.core.epoch == 7


def test_a_refusal_names_the_primary_and_it_is_tried_next() -> None:
    bench = Bench()
    bench.feed(e.Start())
    assert bench.address == "b3"
    bench.say(sm.AttachRefused(Epoch(0), LogIndex(0), ErrorCode.NOT_PRIMARY, "", ("b2", "b1", "b3")))
    assert bench.address == "b2"
    bench.exchange()
    assert bench.core.state is State.ATTACHED


def test_candidates_that_come_on_the_open_stream_are_tried_when_it_is_lost() -> None:
    bench = Bench().start()
    bench.say(sm.CandidatesChanged(Epoch(1), LogIndex(1), ("b8", "b9")))
    assert bench.core.state is State.ATTACHED
    tried = []
    for _ in range(4):
        bench.lose()
        tried.append(bench.address)
    assert sorted(tried) == ["b1", "b2", "b8", "b9"], "the one that was lost is not tried again at once"


def test_candidates_that_come_before_the_session_is_attached_are_tried_too() -> None:
    bench = Bench()
    bench.feed(e.Start())
    stream = bench.stream
    bench.say(sm.CandidatesChanged(Epoch(1), LogIndex(1), ("b9",)))
    assert bench.core.state is State.ATTACHING and bench.stream == stream
    tried = [bench.address]
    for _ in range(3):
        bench.lose()
        tried.append(bench.address)
    assert sorted(tried) == ["b1", "b2", "b3", "b9"]


def test_candidates_are_tried_once_a_round_and_then_there_is_a_pause() -> None:
    bench = Bench()
    bench.feed(e.Start())
    tried = []
    for _ in range(3):
        tried.append(bench.address)
        bench.lose()
    assert sorted(tried) == ["b1", "b2", "b3"]
    assert repr(bench.core.state) == "<State.WAITING: 'waiting'>"
    assert bench.timer is not None
    assert 25 <= bench.timer - bench.now <= 50
    bench.wait(50)
    assert bench.core.state is State.ATTACHING


def test_a_silent_primary_is_given_up() -> None:
    bench = Bench().start()
    bench.submit("a", publish("a"))
    bench.write()
    stream = bench.stream
    bench.wait(900)
    assert bench.stream == stream
    bench.wait(200)
    assert bench.stream != stream
    bench.exchange()
    assert bench.outcomes("a") == [e.CommandDone("a", 0)]


def test_heartbeats_come_as_seldom_as_the_primary_wants_and_its_silence_may_last_as_much_longer() -> None:
    bench = Bench().start()
    stream = bench.stream
    bench.exchange()
    bench.say(sm.HeartbeatAnswered(Epoch(1), LogIndex(1), pause_ms=2000))
    bench.wait(250)
    bench.write()
    bench.say(sm.HeartbeatAnswered(Epoch(1), LogIndex(1), pause_ms=2000))
    bench.to_primary.clear()
    bench.wait(1900)
    bench.write()
    assert bench.to_primary == []
    bench.wait(200)
    bench.write()
    assert bench.to_primary == [rq.Heartbeat()]
    bench.wait(5700)
    assert bench.stream == stream
    bench.wait(400)
    assert bench.stream != stream, "four heartbeats of its own"


def test_a_client_that_was_stopped_itself_reads_before_it_gives_the_primary_up() -> None:
    bench = Bench().start()
    stream = bench.stream
    bench.now += 60_000
    bench.timer = None
    bench.feed(e.Tick())
    assert bench.stream == stream
    bench.say(sm.HeartbeatAnswered(Epoch(1), LogIndex(1)))
    bench.wait(400)
    assert bench.stream == stream


def test_what_was_pushed_back_is_sent_again_later_in_order() -> None:
    bench = Bench().start()
    assert bench.primary is not None
    bench.primary.pushes_back = True
    for text in "abc":
        bench.submit(text, publish(text))
    bench.exchange()
    assert bench.world.executed() == []
    bench.primary.pushes_back = False
    bench.wait(600)
    bench.exchange()
    assert bodies(bench.world.executed()) == ["a", "b", "c"]
    assert [len(bench.outcomes(text)) for text in "abc"] == [1, 1, 1]


def test_a_consumer_is_opened_again_with_the_credit_it_has_left() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10))
    bench.exchange()
    assert bench.primary is not None
    bench.say(bench.primary.deliver(1, "q", 5, 6, 7))
    bench.core.grant(1, 1)
    bench.submit("accept", c.SettleCommand(0, "q", Epoch(1), (5,)))  # type: ignore[arg-type]
    bench.lose()
    bench.exchange()
    assert bench.primary.requests == [
        rq.AttachSession(
            "s",  # type: ignore[arg-type]
            "session-1",  # type: ignore[arg-type]
            2,  # type: ignore[arg-type]
            1,  # type: ignore[arg-type]
            30_000,
            0,
            (rq.HeldDeliveries("q", 1, (5, 6, 7)),),  # type: ignore[arg-type]
            True,
            (rq.UnansweredSettle(1, "q", (5,)),),  # type: ignore[arg-type]
        ),
        rq.OpenConsumer(1, "q", 8),
    ]
    assert bench.of(e.DeliveriesVoided) == []


def test_what_was_delivered_again_is_not_said_to_be_settled() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10))
    bench.exchange()
    assert bench.primary is not None
    bench.say(bench.primary.deliver(1, "q", 5, 6))
    bench.submit("release", c.SettleCommand(0, "q", Epoch(1), (5, 6), c.Disposition.RELEASE))  # type: ignore[arg-type]
    bench.say(bench.primary.deliver(1, "q", 6))
    bench.lose()
    bench.exchange()
    attach = bench.primary.requests[0]
    assert isinstance(attach, rq.AttachSession)
    assert attach.held == (rq.HeldDeliveries("q", Epoch(1), (5, 6)),)  # type: ignore[arg-type]
    assert attach.settling == (rq.UnansweredSettle(1, "q", (5,)),)  # type: ignore[arg-type]


def test_what_a_partial_settle_has_left_is_in_hand_again() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10))
    bench.exchange()
    assert bench.primary is not None
    bench.say(bench.primary.deliver(1, "q", 5, 6, 7))
    bench.world.settled_max = 1
    reject = c.SettleCommand(
        0,
        "q",
        Epoch(1),
        (5, 6, 7),  # type: ignore[arg-type]
        c.Disposition.REJECT,
        may_be_partial=True,
    )
    bench.submit("reject", reject)
    bench.exchange()
    assert bench.of(e.CommandDone) == [e.CommandDone("reject", 1)]
    bench.lose()
    bench.exchange()
    attach = bench.primary.requests[0]
    assert isinstance(attach, rq.AttachSession)
    assert attach.held == (rq.HeldDeliveries("q", Epoch(1), (6, 7)),)  # type: ignore[arg-type]
    bench.world.settled_max = 2
    bench.submit("rest", replace(reject, positions=(6, 7)))
    bench.exchange()
    bench.lose()
    bench.exchange()
    attach = bench.primary.requests[0]
    assert isinstance(attach, rq.AttachSession) and not attach.held


def test_deliveries_of_an_epoch_that_is_over_are_void_and_their_credit_comes_back() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10))
    bench.exchange()
    assert bench.primary is not None
    bench.say(bench.primary.deliver(1, "q", 5, 6, 7))
    bench.submit("accept", c.SettleCommand(0, "q", Epoch(1), (5,)))  # type: ignore[arg-type]
    bench.exchange()
    bench.world.fail_over(keep=0)
    bench.lose()
    bench.exchange()
    assert bench.of(e.DeliveriesVoided) == [e.DeliveriesVoided(1, "q", Epoch(1), (6, 7))]  # type: ignore[arg-type]
    assert bench.primary.requests[-1] == rq.OpenConsumer(1, "q", 9)


def test_deliveries_stay_in_hand_where_the_set_was_handed_over_and_are_void_when_it_fails() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10))
    bench.exchange()
    assert bench.primary is not None
    bench.say(bench.primary.deliver(1, "q", 5, 6, 7))
    bench.world.hand_over()
    bench.lose()
    bench.exchange()
    assert bench.of(e.DeliveriesVoided) == []
    assert bench.primary.requests[-1] == rq.OpenConsumer(1, "q", 7)
    bench.say(bench.primary.deliver(1, "q", 8))
    bench.submit("accept", c.SettleCommand(0, "q", Epoch(1), (5,)))  # type: ignore[arg-type]
    bench.exchange()
    bench.lose()
    bench.exchange()
    attach = bench.primary.requests[0]
    assert isinstance(attach, rq.AttachSession)
    assert attach.held == (rq.HeldDeliveries("q", Epoch(2), (6, 7, 8)),)  # type: ignore[arg-type]
    bench.world.fail_over(keep=0)
    bench.lose()
    bench.exchange()
    assert bench.of(e.DeliveriesVoided) == [
        e.DeliveriesVoided(1, "q", Epoch(1), (6, 7)),  # type: ignore[arg-type]
        e.DeliveriesVoided(1, "q", Epoch(2), (8,)),  # type: ignore[arg-type]
    ]


def test_deliveries_for_a_consumer_that_has_stopped_are_released() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10))
    bench.exchange()
    bench.feed(e.StopConsuming(1))
    assert bench.primary is not None
    bench.say(bench.primary.deliver(1, "q", 5))
    bench.exchange()
    assert bench.world.executed() == [
        c.SettleCommand(1, "q", Epoch(1), (5,), c.Disposition.RELEASE)  # type: ignore[arg-type]
    ]
    assert bench.of(e.Delivered) == []


def test_many_consumers_are_opened_again_in_several_writes_and_commands_come_behind_them() -> None:
    bench = Bench(settings=SessionSettings(send_requests_max=4)).start()
    for number in range(1, 11):
        bench.feed(e.StartConsuming(number, f"q{number}", 10))
        bench.exchange()
    writes: list[list[type]] = []
    perform = bench._perform

    def recorded(effects: list[e.Effect]) -> None:
        sends = [effect for effect in effects if isinstance(effect, e.Send)]
        writes.extend([type(message) for message in send.messages] for send in sends)
        perform(effects)

    bench._perform = recorded  # type: ignore[method-assign]
    bench.lose()
    bench.submit("a", publish("a"))
    bench.exchange()
    said = [[kind for kind in written if kind is not rq.Heartbeat] for written in writes]
    opening = [rq.OpenConsumer]
    assert [written for written in said if written] == [
        [rq.AttachSession],
        4 * opening,
        4 * opening,
        [*(2 * opening), c.PublishCommand],
    ]
    assert len(bench.outcomes("a")) == 1


def test_a_consumer_is_opened_again_with_its_selector() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10, selector="colour = 'red'"))
    bench.exchange()
    bench.lose()
    bench.exchange()
    assert bench.primary is not None
    assert bench.primary.requests[-1] == rq.OpenConsumer(1, "q", 10, selector="colour = 'red'")


def test_a_browser_goes_on_behind_what_it_was_shown_and_holds_nothing() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10, is_browser=True))
    bench.exchange()
    assert bench.primary is not None
    bench.say(bench.primary.deliver(1, "q", 5, 6, are_copies=True))
    assert len(bench.of(e.Delivered)) == 1
    bench.world.fail_over(keep=0)
    bench.lose()
    bench.exchange()
    assert bench.primary.requests[0] == rq.AttachSession("s", "session-1", 2, 1, 30_000, 0, (), True)  # type: ignore[arg-type]
    assert bench.primary.requests[-1] == rq.OpenConsumer(1, "q", 8, is_browser=True, after=6)  # type: ignore[arg-type]
    assert bench.of(e.DeliveriesVoided) == []


def test_what_is_shown_to_a_browser_that_has_stopped_is_not_released() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10, is_browser=True))
    bench.exchange()
    bench.feed(e.StopConsuming(1))
    assert bench.primary is not None
    bench.say(bench.primary.deliver(1, "q", 5, are_copies=True))
    bench.exchange()
    assert bench.world.executed() == [] and bench.of(e.Delivered) == []


def test_a_drained_consumer_keeps_what_it_was_granted_behind_the_drain() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10))
    bench.feed(e.Drain(1))
    bench.feed(e.Drain(2))
    bench.exchange()
    assert bench.primary is not None
    assert bench.primary.requests[-2:] == [rq.OpenConsumer(1, "q", 10), rq.DrainConsumer(1)]
    bench.say(bench.primary.deliver(1, "q", 5))
    bench.core.grant(1, 2)
    bench.say(bench.primary.drained(1, 9))
    assert bench.of(e.ConsumerDrained) == [e.ConsumerDrained(1)]
    bench.lose()
    bench.exchange()
    assert bench.primary.requests[-1] == rq.OpenConsumer(1, "q", 2)


def test_a_drain_that_was_not_answered_is_asked_for_again() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10))
    bench.feed(e.Drain(1))
    bench.exchange()
    bench.lose()
    bench.exchange()
    assert bench.primary is not None
    assert bench.primary.requests[-2:] == [rq.OpenConsumer(1, "q", 10), rq.DrainConsumer(1)]
    bench.say(bench.primary.drained(1, 10))
    bench.say(bench.primary.drained(1, 0))
    assert bench.of(e.ConsumerDrained) == [e.ConsumerDrained(1)]


def test_a_question_is_asked_again_after_a_resumption() -> None:
    bench = Bench().start()
    bench.feed(e.Ask("how", rq.Describe(0)))
    bench.lose()
    bench.exchange()
    (answer,) = bench.outcomes("how")
    assert isinstance(answer, e.QuestionAnswered)


def test_without_a_primary_for_too_long_everything_is_answered() -> None:
    bench = Bench(settings=SessionSettings(give_up_ms=5_000)).start()
    bench.submit("sent", publish("sent"))
    bench.submit("unsent", publish("unsent"))
    bench.feed(e.Ask("how", rq.Describe(0)))
    for _ in range(400):
        if bench.primary is not None:
            bench.lose()
        bench.wait(25)
    assert [type(bench.outcomes(t)[0]).__name__ for t in ("sent", "unsent", "how")] == [
        "CommandInDoubt",
        "CommandRejected",
        "CommandRejected",
    ]
    assert bench.core.session_id != "session-1"


def test_closing_waits_for_what_is_in_flight_and_ends_the_session() -> None:
    bench = Bench().start()
    bench.submit("a", publish("a"))
    bench.feed(e.Close())
    bench.submit("late", publish("late"))
    assert bench.of(e.Closed) == []
    bench.exchange()
    assert bench.of(e.Closed) == [e.Closed(ErrorCode.NONE, "")]
    assert bench.outcomes("a") == [e.CommandDone("a", 0)]
    assert isinstance(bench.outcomes("late")[0], e.CommandRejected)
    assert bench.world.ended == {bench.core.session}


def test_a_session_that_was_never_opened_closes_at_once() -> None:
    bench = Bench()
    bench.feed(e.Close())
    assert bench.of(e.Closed) == [e.Closed(ErrorCode.NONE, "")]


def test_a_next_number_that_contradicts_what_was_heard_ends_the_session() -> None:
    bench = Bench().start()
    bench.submit("a", publish("a"))
    bench.exchange()
    bench.lose()
    bench.say(sm.SessionAttached(Epoch(1), LogIndex(9), bench.core.session, Epoch(1), 1, ()))
    assert bench.of(e.SessionLost) == [
        e.SessionLost(ErrorCode.ILLEGAL_STATE, "the set expects command 1, and 2..1 are in flight")
    ]


def test_credit_is_said_in_one_write_with_what_is_submitted_behind_it() -> None:
    bench = Bench().start()
    bench.feed(e.StartConsuming(1, "q", 10))
    bench.exchange()
    assert bench.primary is not None
    bench.say(bench.primary.deliver(1, "q", 5))
    said = len(bench.sent)
    bench.core.grant(1, 1)
    bench.core.grant(2, 1)
    assert bench.sent[said:] == []
    bench.submit("accept", c.SettleCommand(0, "q", Epoch(1), (5,)))  # type: ignore[arg-type]
    assert bench.sent[said] == rq.GrantCredit(1, 1)
    assert isinstance(bench.sent[said + 1], c.SettleCommand)
    assert not bench.core.written(bench.stream + 1), "of another stream"
    bench.submit("more", publish("more"))
    assert len(bench.sent) == said + 2, "the last write is not taken yet"
    assert bench.core.written(bench.stream), "something waits for it"
    bench.feed(e.Turn())
    assert len(bench.sent) == said + 3
    assert not bench.core.written(bench.stream)
