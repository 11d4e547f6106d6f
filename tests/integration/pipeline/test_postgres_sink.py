"""The PostgreSQL sink among others of its kind, and with an executor that does not go on. No JVM."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructField, StructType

from services.pipeline.checkpoint import NONE
from services.pipeline.sinks.postgres import insert_once, last_batch
from tests.integration.postgres_process import PostgresProcess

STEP_SECONDS = 20.0
Stage = Callable[[Iterator[Row]], None]


def row_of(*values: Any) -> Row:
    """Of Spark."""
    return Row(*values)


class Frame:
    """What the sink uses of Spark's: one partition. `before`: an attempt at it before the good one."""

    schema = StructType([StructField("name", StringType()), StructField("n", LongType())])
    columns = ("name", "n")

    def __init__(self, *rows: tuple[str, int], before: Callable[[Stage], None] | None = None) -> None:
        self.rows = [row_of(*row) for row in rows]
        self._before = before

    def persist(self) -> None: ...

    def unpersist(self) -> None: ...

    def count(self) -> int:
        return len(self.rows)

    def foreachPartition(self, stage: Stage) -> None:  # noqa: N802 - as Spark has it
        if self._before is not None:
            self._before(stage)
        stage(iter(self.rows))


@pytest.fixture
def url(postgres: PostgresProcess, request: pytest.FixtureRequest) -> str:
    """Of a database that has nothing yet."""
    name = request.node.name.lower()[:60]
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return make_conninfo(postgres.dsn, dbname=name)


def insert(url: str, frame: Frame, number: int, table: str = "t", checkpoint: str = "q/1") -> None:
    rows: Any = frame
    insert_once(url, table, checkpoint)(rows, number)


def query(url: str, text: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        statement: Any = text
        return connection.execute(statement).fetchall()


def test_an_attempt_that_is_stuck_keeps_nobody_waiting_and_adds_nothing(url: str) -> None:
    may_go_on = threading.Event()
    stuck: list[threading.Thread] = []

    def slowly() -> Iterator[Row]:
        yield row_of("a", 1)
        may_go_on.wait(3 * STEP_SECONDS)
        yield row_of("b", 2)

    def attempt(stage: Stage) -> None:
        stuck.append(threading.Thread(target=stage, args=(slowly(),), daemon=True))
        stuck[0].start()

    frame = Frame(("a", 1), ("b", 2), before=attempt)
    batch = threading.Thread(target=insert, args=(url, frame, 0), daemon=True)
    batch.start()
    batch.join(STEP_SECONDS)
    is_done = not batch.is_alive()
    may_go_on.set()
    stuck[0].join(STEP_SECONDS)
    assert is_done
    insert(url, Frame(("c", 3)), 1)
    assert query(url, "SELECT name, n FROM t ORDER BY name") == [("a", 1), ("b", 2), ("c", 3)]
    assert query(url, "SELECT * FROM t_staging") == []


def test_of_two_attempts_at_a_partition_that_end_one_counts(url: str) -> None:
    frame = Frame(("a", 1), ("b", 2), before=lambda stage: stage(iter([row_of("a", 1), row_of("b", 2)])))
    insert(url, frame, 0)
    assert query(url, "SELECT name, n FROM t ORDER BY name") == [("a", 1), ("b", 2)]


def test_queries_may_begin_at_the_same_time_with_an_empty_database(url: str) -> None:
    gate = threading.Barrier(4)
    failures: list[Exception] = []

    def begin(name: str) -> None:
        gate.wait()
        try:
            insert(url, Frame((name, 1)), 0, name, f"q.{name}")
        except psycopg.Error as error:
            failures.append(error)

    queries = [threading.Thread(target=begin, args=(name,)) for name in ("ta", "tb", "tc", "td")]
    for one in queries:
        one.start()
    for one in queries:
        one.join()
    assert failures == []


def test_batches_of_two_checkpoints_are_both_taken(url: str) -> None:
    assert last_batch(url, "q/1") == NONE
    for number in range(3):
        insert(url, Frame(("old", number)), number)
    for number in range(2):
        insert(url, Frame(("new", number)), number, checkpoint="q/2")
    found = query(url, "SELECT name, n FROM t ORDER BY name, n")
    assert found == [("new", 0), ("new", 1), ("old", 0), ("old", 1), ("old", 2)]
    assert (last_batch(url, "q/1"), last_batch(url, "q/2"), last_batch(url, "q/3")) == (2, 1, NONE)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"host=127.0.0.1 port={silent.getsockname()[1]} user=nobody"
        failures: list[Exception] = []

        def ask() -> None:
            try:
                last_batch(url, "q/1")
            except psycopg.OperationalError as error:
                failures.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(STEP_SECONDS)
        assert len(failures) == 1


def test_waits_have_limits_and_those_of_a_url_are_right(url: str) -> None:
    """What a session of the sink has is written down by a trigger of its table."""
    insert(url, Frame(("a", 1)), 0)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE seen (name text, setting text)")
        connection.execute(
            "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen"
            " SELECT name, setting FROM pg_settings WHERE name ~ ''^(tcp_keep|tcp_user|search_path)''; RETURN NEW; END'"
        )
        connection.execute("CREATE TRIGGER looking BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION look()")
    given = make_conninfo(url, options="-c tcp_keepalives_idle=77 -c search_path=public")
    insert(given, Frame(("b", 2)), 1)
    assert dict(query(url, "SELECT * FROM seen")) == {
        "search_path": "public",
        "tcp_keepalives_count": "3",
        "tcp_keepalives_idle": "77",
        "tcp_keepalives_interval": "5",
        "tcp_user_timeout": "25000",
    }
