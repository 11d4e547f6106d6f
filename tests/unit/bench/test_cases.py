"""Cases are told apart by their titles, and connections share queues as a case says."""

from dataclasses import fields

from bench import cases
from bench.cases import Case
from bench.load import Order, queue_names
from bench.musts import GOALS, GROWTHS, MUSTS


def order(operation: str, connections: int, queues: int = 0) -> Order:
    return Order(operation, [], ["bench1"], "p", connections, 10, 1024, 0, 0.0, 1.0, queues=queues)


def names(case: Order) -> list[list[str]]:
    return [queue_names(case, number) for number in range(case.connections)]


def every_own() -> list[Case]:
    """All cases through the SDK of the longest run."""
    scaled = [case for some in cases.W7.values() for case in some]
    return [*cases.W1, *cases.W2, *cases.W3, *cases.W4_XA, *cases.W4_COORDINATED_FULL, *scaled]


def test_no_two_cases_of_a_run_have_one_key() -> None:
    for several in (every_own(), cases.W4_COORDINATED, cases.AMQP, cases.AMQP_FULL, cases.W7_AMQP):
        keys = [case.key for case in several]
        assert len(set(keys)) == len(keys), keys


def test_every_must_and_goal_is_of_a_case_that_is_measured() -> None:
    wanted = [one.case for one in (*MUSTS, *GOALS)]
    wanted += [case for growth in GROWTHS for case in (growth.first, growth.last)]
    assert {case.key for case in wanted} <= {case.key for case in every_own()}


def test_what_a_short_run_measures_a_full_one_does_too() -> None:
    assert {case.key for case in cases.W4_COORDINATED} <= {case.key for case in every_own()}
    assert {case.key for case in cases.AMQP} <= {case.key for case in cases.AMQP_FULL}


def test_cases_of_a_dimension_differ_in_that_only() -> None:
    for first, *others in cases.W7.values():
        for other in others:
            differing = {
                field.name
                for field in fields(Case)
                if getattr(first, field.name) != getattr(other, field.name)
            }
            assert differing - {"ring"} == {first.varied} == {other.varied}


def test_a_title_says_what_differs_from_the_usual() -> None:
    assert Case("W1", "publish", 10, 1).title == "tx of 10, 1 client"
    assert Case("W7", "publish", 10, 4, body_bytes=100, queues=1, depth=10_000).title == (
        "tx of 10, 4 clients, bodies of 100, queues: 1, depth 10,000"
    )
    assert Case("W7", "publish", 10, 4, varied="brokers").title == "tx of 10, 4 clients, brokers: 3"
    assert Case("W6", "publish", 1, 4, rate=1200.0).title == "tx of 1, 4 clients, at 1,200 tx/s"


def test_messages_of_a_transaction_are_those_of_all_its_queues() -> None:
    found = [Case("W1", operation, 10, 1).messages for operation in ("publish", "move", "sets", "postgres")]
    assert found == [10, 20, 20, 10]


def test_each_connection_has_a_queue_of_its_own_or_two_to_move_between() -> None:
    assert names(order("publish", 2)) == [["p-0"], ["p-1"]]
    assert names(order("move", 2)) == [["p-0-a", "p-0-b"], ["p-1-a", "p-1-b"]]


def test_queues_are_shared_out_and_shared_where_there_are_fewer() -> None:
    assert names(order("publish", 2, queues=5)) == [["p-q0", "p-q2", "p-q4"], ["p-q1", "p-q3"]]
    assert names(order("publish", 3, queues=2)) == [["p-q0"], ["p-q1"], ["p-q0"]]
