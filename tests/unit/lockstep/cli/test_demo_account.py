"""The account of the demo finds what it is there to find."""

import json
from collections import Counter

from lockstep.cli.demo.account import Account, balance
from lockstep.cli.demo.data import id_of, load_rows
from lockstep.cli.demo.routes import plan_routes


def test_all_moved_is_clean() -> None:
    whole = Counter(range(3))
    account = balance(range(3), Counter(), [whole, whole])
    assert account == Account(3, 0, 6, lost=0, duplicated=0, torn=0)
    assert account.is_clean


def test_what_is_still_in_the_source_is_left_and_not_lost() -> None:
    assert balance(range(2), Counter([1]), [Counter([0]), Counter([0])]) == Account(2, 1, 2, 0, 0, 0)


def test_accounts_of_several_sets_add_up() -> None:
    total = Account(1, 2, 3, 4, 5, 6) + Account(10, 20, 30, 40, 50, 60)
    assert total == Account(11, 22, 33, 44, 55, 66)


def test_routes_share_all_messages_and_begin_at_different_brokers() -> None:
    routes = plan_routes(["B1", "B2", "B3"], load_rows(10))
    assert sorted(number for route in routes for number in route.ids) == list(range(10))
    assert [route.brokers[0] for route in routes] == ["B1", "B2", "B3"]


def test_a_message_nowhere_is_lost() -> None:
    assert balance(range(2), Counter(), [Counter([0]), Counter([0])]).lost == 1


def test_a_message_in_one_target_only_is_torn() -> None:
    assert balance(range(1), Counter(), [Counter([0]), Counter()]) == Account(1, 0, 1, 0, 0, torn=1)


def test_a_message_twice_or_in_source_and_target_is_duplicated() -> None:
    assert balance(range(1), Counter(), [Counter([0, 0]), Counter([0])]).duplicated == 1
    assert balance(range(1), Counter([0]), [Counter([0]), Counter([0])]).duplicated == 1
    assert balance(range(1), Counter([0, 0]), [Counter(), Counter()]).duplicated == 1


def test_the_data_are_rows_of_public_data_sets_with_ids() -> None:
    bodies = load_rows(25_000)
    assert [id_of(bodies[0]), id_of(bodies[-1])] == [0, 24_999]
    assert {json.loads(body)["data set"] for body in bodies} == {
        "seattle-temps",
        "sf-temps",
        "airports",
        "stocks",
    }
