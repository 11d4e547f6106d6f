"""Patterns of LIKE: what they match, by a reference that tries everything, and what matching may cost."""

from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.core.amqp.like_pattern import LikePattern
from lockstep.core.amqp.selector import compile_selector
from lockstep.core.amqp.selector_row import EVALUATION_STEPS_MAX, Row, TooCostly
from lockstep.core.errors import ErrorCode
from tests.kept_properties import kept_properties

LONG = 65_535
TEXTS = st.text(alphabet="abé", max_size=14)
PATTERNS = st.text(alphabet="ab_%é", max_size=10)


def is_like(value: str, pattern: str) -> bool:
    """What JMS says, word for word: every way to share the value among the pattern's characters."""

    @cache
    def rest(at: int, of: int) -> bool:
        if of == len(pattern):
            return at == len(value)
        if pattern[of] == "%":
            return rest(at, of + 1) or (at < len(value) and rest(at + 1, of))
        return at < len(value) and pattern[of] in ("_", value[at]) and rest(at + 1, of + 1)

    return rest(0, 0)


@given(TEXTS, PATTERNS)
@example("abab", "%a_a%b%")
@example("aab", "%a_%b")
@example("ba", "%_a%")
@example("", "%%")
def test_a_pattern_matches_what_it_says(value: str, pattern: str) -> None:
    assert LikePattern(pattern, "").matches(value, Row(0)) is is_like(value, pattern)


@given(
    st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=4),
    st.lists(st.text(alphabet="ab_", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_long_runs_are_found_wherever_they_are(words: list[str], pieces: list[str]) -> None:
    value, pattern = "".join(words) * 3, "%" + "%".join(pieces) + "%"
    assert LikePattern(pattern, "").matches(value, Row(0)) is is_like(value, pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "%" + "_" * 250 + "b%",
        "%" + "a_" * 120 + "b%",
        "%" + "a" * 120 + "b" + "a" * 120 + "%",
        "%a" * 120 + "%b",
        "%foo%",
    ],
)
def test_what_is_not_there_is_passed_once(pattern: str) -> None:
    row = Row(0)
    assert not LikePattern(pattern, "").matches("a" * LONG, row)
    assert EVALUATION_STEPS_MAX - row.left <= 2 * LONG * (len(pattern) + 2) // 512


def test_a_pattern_that_nearly_fits_everywhere_is_given_up() -> None:
    with pytest.raises(TooCostly) as caught:
        LikePattern("%" + "a_" * 120 + "b%", "").matches("ab" * (LONG // 2), Row(0))
    assert caught.value.code is ErrorCode.TOO_LARGE


def test_many_patterns_together_cost_no_more_than_one_evaluation_may() -> None:
    one = "p LIKE '%" + "a_" * 60 + "b%'"
    selector = compile_selector(" OR ".join([one] * 60))
    with pytest.raises(TooCostly):
        selector.ask(kept_properties(p="ab" * 120))
    assert selector.ask(kept_properties(p="ab" * 10)).steps < 1000


def test_a_usual_selector_takes_some_ten_steps() -> None:
    selector = compile_selector("colour = 'red' AND name LIKE 'order-%' AND weight > 2")
    asked = selector.ask(kept_properties(colour="red", name="order-7"))
    assert not asked.is_selected and asked.steps < 50
