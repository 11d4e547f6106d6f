"""The blocking façade: the same client, from a thread without an event loop."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lockstep.client import ErrorCode, Rejected, TransactionState, blocking
from lockstep.core import commands as c
from lockstep.core.xa import XaStatus
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.session_bench import bodies


def use(address: str) -> None:
    with blocking.connect(address) as client, client.session() as session:
        session.publish("q", [b"1", b"2"])
        with session.transaction() as transaction:
            transaction.publish("q", b"3")
        assert transaction.state is TransactionState.COMMITTED
        assert client.get_outcome(transaction.id or "").state.name == "COMMITTED"
        with session.consume("q") as consumer:
            assert consumer.next(0.01) is None
        with pytest.raises(Rejected, match="no nowhere"):
            session.publish("nowhere", b"")


async def test_a_thread_uses_it_while_others_have_loops() -> None:
    async with FakeBroker("one") as broker:
        broker.directory["q"] = "one"
        await asyncio.to_thread(use, broker.address)
        assert bodies(broker.worlds["one"].executed()) == ["1", "2", "3"]
        assert isinstance(broker.worlds["one"].executed()[-1], c.CommitCommand)


FORKING = """
import os, sys
from lockstep.client import ErrorCode, Rejected, blocking

def use(body):
    with blocking.connect(sys.argv[1]) as client, client.session() as session:
        session.publish("q", body)

use(b"1")
with blocking.connect(sys.argv[1]) as client, client.session() as session:
    session.publish("q", b"2")
    child = os.fork()
    if not child:
        try:
            session.publish("q", b"of the parent's session")
        except Rejected as rejected:
            assert rejected.code is ErrorCode.ILLEGAL_STATE
            use(b"3")
            sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    session.publish("q", b"4")
"""


async def test_a_child_of_the_process_has_a_loop_of_its_own() -> None:
    async with FakeBroker("one") as broker:
        broker.directory["q"] = "one"
        forking = [sys.executable, "-c", FORKING, broker.address]
        done = await asyncio.to_thread(subprocess.run, forking, timeout=30, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        assert bodies(broker.worlds["one"].executed()) == ["1", "2", "3", "4"]


CLEANING = """
import atexit, sys

def clean_up():
    try:
        opened.close()
    except Rejected as rejected:
        print(rejected.code.name)

atexit.register(clean_up)  # Before there is a client: so it runs when that has ended.
from lockstep.client import Rejected, blocking

opened = blocking.connect(sys.argv[1])
"""


async def test_a_clean_up_behind_the_end_of_all_clients_is_refused_and_does_not_hang() -> None:
    async with FakeBroker("one") as broker:
        cleaning = [sys.executable, "-c", CLEANING, broker.address]
        done = await asyncio.to_thread(subprocess.run, cleaning, timeout=30, capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"ILLEGAL_STATE\n", b"")


class Interruption(BaseException):
    """As of the keyboard."""


@contextmanager
def interrupted(after_seconds: float) -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after_seconds)
    try:
        with pytest.raises(Interruption):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """Of set "one", with queue "q", on the blocking client's own loop."""

    async def made() -> FakeBroker:
        return await FakeBroker("one").__aenter__()

    running = blocking._loop.run(made())
    running.directory["q"] = "one"
    yield running
    blocking._loop.run(running.__aexit__())


@pytest.fixture
def consumer(broker: FakeBroker) -> Iterator[blocking.Consumer]:
    with (
        blocking.connect(broker.address) as client,
        client.session() as session,
        session.consume("q", credit=4) as opened,
    ):
        assert opened.next(0.05) is None
        yield opened


@pytest.mark.parametrize("is_iterating", [False, True])
def test_who_is_interrupted_as_he_waits_takes_no_message(
    broker: FakeBroker, consumer: blocking.Consumer, is_iterating: bool
) -> None:
    with interrupted(0.1):
        next(iter(consumer)) if is_iterating else consumer.next(60)
    blocking._loop.run(broker.deliver("one", 1, "q", 1))
    message = consumer.next(5)
    assert message is not None and message.position == 1 and not message.is_void
    message.accept()


def test_a_message_that_came_as_its_caller_was_interrupted_is_the_next_one_again(
    broker: FakeBroker, consumer: blocking.Consumer
) -> None:
    blocking._loop.run(broker.deliver("one", 1, "q", 1, 2))
    inner = consumer._inner
    call = blocking._Call(blocking._loop._running(), inner.__anext__(), inner.put_back)
    assert call.answer.result(5).position == 1
    call.give_up()
    call.give_up()
    taken = [consumer.next(5), consumer.next(5)]
    assert [message and message.position for message in taken] == [1, 2]
    assert consumer.next(0.01) is None


def test_a_consumer_that_is_opened_as_its_caller_is_interrupted_is_closed(broker: FakeBroker) -> None:
    with blocking.connect(broker.address) as client, client.session() as session:
        opening = session._inner.consume("q")
        loop = blocking._loop._running()
        call = blocking._Call(loop, opening, lambda made: asyncio.ensure_future(made.close()))
        opened = call.answer.result(5)
        call.give_up()
        with pytest.raises(StopIteration):
            next(iter(blocking.Consumer(opened)))


def test_what_makes_bodies_runs_in_its_callers_thread(broker: FakeBroker) -> None:
    threads = set()

    def rows() -> Iterator[bytes]:
        for row in (b"1", b"2"):
            threads.add(threading.current_thread())
            yield row

    with blocking.connect(broker.address) as client, client.session() as session:
        session.publish("q", rows())
        with session.transaction() as transaction:
            transaction.publish("q", rows())
        assert session.distributed_transaction().heuristic is XaStatus.OK
    assert threads == {threading.current_thread()}
    assert bodies(broker.worlds["one"].executed()) == ["1", "2", "1", "2"]


def test_a_connection_in_autocommit_mode_is_not_enlisted(broker: FakeBroker) -> None:
    class Autocommit:
        autocommit = True

        def execute(self, query: bytes, /) -> object:
            raise AssertionError(query)

        def rollback(self) -> None:
            raise AssertionError("what it does would stay")

    with blocking.connect(broker.address) as client, client.session() as session:
        transaction = session.distributed_transaction()
        with pytest.raises(Rejected, match="autocommit"):
            transaction.enlist_postgres(Autocommit(), "grpc://127.0.0.1:1/rows")


def test_a_finalizer_in_the_clients_own_thread_does_not_wait_for_itself(broker: FakeBroker) -> None:
    with blocking.connect(broker.address) as client:
        session = client.session()
        session.publish("q", b"1")

        def finalize() -> None:
            with pytest.raises(Rejected) as refused:
                session.publish("q", b"2")
            assert refused.value.code is ErrorCode.ILLEGAL_STATE
            session.close()

        async def ended() -> None:
            await eventually(lambda: broker.worlds["one"].ended)

        blocking._loop.call(finalize)
        blocking._loop.run(ended())
        assert bodies(broker.worlds["one"].executed()) == ["1"]
