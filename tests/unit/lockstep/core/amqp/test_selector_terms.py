"""What selectors say of values, against another evaluation of the same texts: SQLite, where SQL and JMS agree."""

import sqlite3
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Message

from lockstep.core.amqp.sections import split
from lockstep.core.amqp.selector import compile_selector
from lockstep.core.amqp.selector_terms import LIKE_CHARS_MAX
from tests.unit.lockstep.core.amqp.amqp_messages import encoded

Row = dict[str, object]
Evaluate = Callable[[str, Row], bool | None]

INTEGERS = st.integers(-20, 20)
REALS = st.integers(-80, 80).map(lambda quarters: quarters / 4)
STRINGS = st.text(alphabet="aAb%_\\é'", max_size=5)
ROWS = st.fixed_dictionaries(
    {
        "n": st.none() | INTEGERS,
        "m": st.none() | INTEGERS,
        "x": st.none() | REALS,
        "s": st.none() | STRINGS,
        "t": st.none() | STRINGS,
        "b": st.none() | st.booleans(),
    }
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def is_whole(pattern: str) -> bool:
    """No escape character at its end, which JMS and SQL refuse and SQLite does not."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 0


def joined(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(" ".join)


def constant(*texts: str) -> st.SearchStrategy[str]:
    return st.sampled_from(texts)


LITERALS = STRINGS.map(quoted)
NUMBERS = st.recursive(
    constant("n", "m", "x") | INTEGERS.map(str) | REALS.map(str) | constant("0x1F", "7.", "0.5e1", ".25"),
    lambda numbers: (
        joined(numbers, constant("+", "-", "*", "/"), numbers)
        | joined(constant("("), numbers, constant(")"))
        | joined(constant("-", "+"), numbers)
    ),
    max_leaves=4,
)
NOT = constant("", "NOT", "not")
TESTS = st.one_of(
    joined(NUMBERS, constant("=", "<>", "<", "<=", ">", ">="), NUMBERS),
    joined(constant("s", "t"), constant("=", "<>"), constant("s", "t") | LITERALS),
    joined(constant("b"), constant("=", "<>"), constant("b", "TRUE", "false")),
    constant("b", "TRUE", "False"),
    joined(NUMBERS, NOT, constant("BETWEEN", "between"), NUMBERS, constant("AND"), NUMBERS),
    joined(
        constant("s"),
        NOT,
        constant("IN"),
        st.lists(LITERALS, min_size=1, max_size=3).map(lambda some: f"({','.join(some)})"),
    ),
    joined(constant("s"), NOT, constant("LIKE"), LITERALS),
    joined(
        constant("s"), NOT, constant("LIKE"), STRINGS.filter(is_whole).map(quoted), constant("ESCAPE '\\'")
    ),
    joined(constant("n", "x", "s", "b", "absent"), constant("IS"), NOT, constant("NULL", "null")),
)
CONDITIONS = st.recursive(
    TESTS,
    lambda conditions: (
        joined(conditions, constant("AND", "OR", "and", "Or"), conditions)
        | joined(constant("NOT"), conditions)
        | joined(constant("("), conditions, constant(")"))
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module", name="sqlite")
def started_sqlite() -> Iterator[Evaluate]:
    """Evaluates a text over a row in which `absent` is NULL."""
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA case_sensitive_like = ON")

    def evaluate(text: str, row: Row) -> bool | None:
        columns = ", ".join(f"? AS {name}" for name in [*row, "absent"])
        (found,) = connection.execute(
            f"SELECT {text} FROM (SELECT {columns})", [*row.values(), None]
        ).fetchone()
        return None if found is None else bool(found)

    yield evaluate
    connection.close()


def kept(row: Row) -> bytes:
    """The properties of a message whose application properties are what a row has."""
    return split(
        encoded(Message(properties={name: value for name, value in row.items() if value is not None}))
    ).properties


def selects(text: str, row: Row) -> bool | None:
    """What a selector says, with unknown told from false by the negation, which is true of false alone."""
    properties = kept(row)
    if compile_selector(text).matches(properties):
        return True
    return False if compile_selector(f"NOT ({text})").matches(properties) else None


@pytest.mark.fuzz
@given(CONDITIONS, ROWS)
def test_a_selector_says_what_sqlite_says(sqlite: Evaluate, text: str, row: Row) -> None:
    assert selects(text, row) is sqlite(text, row)


ROW: Row = {"n": 7, "m": -2, "x": 2.5, "s": "it's 50%", "t": "", "b": True}


@pytest.mark.parametrize(
    "text",
    [
        "n = 7",
        "n = 7.0",
        "n <> 7",
        "n / m = -3",
        "n / 2 = 3",
        "n / 2.0 = 3.5",
        "n / 0 = 1",
        "2 + 3 * n = 23",
        "(2 + 3) * n = 35",
        "10 - 3 - 2 = 5",
        "- n = -7",
        "- -n = 7",
        "n BETWEEN 1 AND 7",
        "n BETWEEN m AND x",
        "n NOT BETWEEN 8 AND 9",
        "n NOT BETWEEN 7 AND 9",
        "n NOT BETWEEN 1 AND 7",
        "n BETWEEN 7 AND 9",
        "n NOT BETWEEN 1 AND 6",
        "n NOT BETWEEN absent AND 3",
        "n BETWEEN 8 AND absent",
        "n = 1 OR n = 7 AND x = 2",
        "(n = 1 OR n = 7) AND x = 2.5",
        "NOT n = 1 AND b",
        "NOT (n = 1 AND b)",
        "absent = 1 OR b",
        "absent = 1 AND NOT b",
        "NOT absent = 1",
        "absent IS NULL AND n IS NOT NULL",
        "s = 'it''s 50%'",
        "s LIKE 'it''s%'",
        "s LIKE '%50!%' ESCAPE '!'",
        "s LIKE '%51!%' ESCAPE '!'",
        "s LIKE '__''_ ___'",
        "s LIKE 'IT%'",
        "s LIKE 'it''s 5%50!%' ESCAPE '!'",
        "s LIKE 'it%it%'",
        "s LIKE '%50!%%50!%' ESCAPE '!'",
        "s NOT LIKE '%x%'",
        "t LIKE ''",
        "t LIKE '%'",
        "t LIKE '_%'",
        "t LIKE '%%'",
        "s LIKE '%5%0%'",
        "s LIKE '%0%5%'",
        "absent LIKE '%'",
        "absent NOT IN ('a')",
        "s IN ('a', 'it''s 50%')",
        "t NOT IN ('a', 'b')",
        "b = TRUE",
        "b <> true",
        "FALSE OR TRUE",
    ],
)
def test_each_operator_says_what_sqlite_says(sqlite: Evaluate, text: str) -> None:
    assert selects(text, ROW) is sqlite(text, ROW)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s = 7", False),  # JMS 2.0, 3.8.1.2: what is not alike compares as false, either way
        ("s <> 7", False),
        ("b = 1", False),
        ("n = 'a'", False),
        ("n = TRUE", False),
        ("s > n", False),
        ("b < n", False),
        ("n LIKE '7'", False),
        ("n NOT LIKE '7'", True),
        ("n IN ('7')", False),
        ("n NOT IN ('7')", True),
        ("s BETWEEN 1 AND 2", False),
        ("s NOT BETWEEN 1 AND 2", False),
        ("n", None),  # a condition that is not boolean
        ("s + 1 = 2", None),
        ("b * 1 = 1", None),
        ("9223372036854775807 + n > 0", None),  # beyond long
        ("-9223372036854775808 < n", True),
        ("9007199254740993 = 9007199254740992.0", False),
        ("010 = 8", True),
        ("0X1fL = 31", True),
        ("1.5F = 1.5d", True),
    ],
)
def test_where_jms_is_not_sqlite(text: str, said: bool | None) -> None:
    assert selects(text, ROW) is said


def test_of_longer_values_like_says_nothing() -> None:
    assert selects("s LIKE 'a%'", {"s": "a" * LIKE_CHARS_MAX}) is True
    assert selects("s LIKE 'a%'", {"s": "a" * (LIKE_CHARS_MAX + 1)}) is None


def test_like_takes_no_longer_with_many_percents() -> None:
    """By backtracking it would be some 10^40 steps."""
    pattern = "%a" * 40 + "%b"
    assert not compile_selector(f"s LIKE '{pattern}'").matches(kept({"s": "a" * 2000}))
