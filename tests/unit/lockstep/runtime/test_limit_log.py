"""Refusals by limits in the log."""

import logging

import pytest

from lockstep.runtime.limit_log import LINE_SECONDS, LimitLog


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock) -> LimitLog:
    return LimitLog(logging.getLogger("test.limits"), clock)


def test_a_limit_has_one_line_a_minute_however_often_it_refuses(
    log: LimitLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1_000):
        log.refused("calls_max", "of 127.0.0.1")
        clock.now += LINE_SECONDS / 2_000
    assert caplog.messages == ["event=limit_reached limit=calls_max refusals=1 of 127.0.0.1"]


def test_a_line_counts_the_refusals_that_had_none(
    log: LimitLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1_000):
        log.refused("calls_max", "of one")
    clock.now += LINE_SECONDS
    log.refused("calls_max", "of another")
    clock.now += LINE_SECONDS
    log.refused("calls_max", "of a third")
    assert caplog.messages == [
        "event=limit_reached limit=calls_max refusals=1 of one",
        "event=limit_reached limit=calls_max refusals=1000 of another",
        "event=limit_reached limit=calls_max refusals=1 of a third",
    ]


def test_what_anybody_can_cause_has_one_line_a_minute_with_its_count(
    log: LimitLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1_000):
        log.seldom("client_error", "peer=one")
    log.refused("client_error", "a limit of that name")
    clock.now += LINE_SECONDS
    log.seldom("client_error", "peer=another")
    assert caplog.messages == [
        "event=client_error times=1 peer=one",
        "event=limit_reached limit=client_error refusals=1 a limit of that name",
        "event=client_error times=1000 peer=another",
    ]


def test_each_type_of_error_is_told_with_its_stack(log: LimitLog, caplog: pytest.LogCaptureFixture) -> None:
    for error in ValueError("one"), ValueError("another"), KeyError("third"):
        log.seldom("call_failed", "in a handler", error=error)
    told = [record.exc_info[1] for record in caplog.records if record.exc_info is not None]
    assert list(map(repr, told)) == ["ValueError('one')", "KeyError('third')"]


def raised(place: int) -> ValueError:
    try:
        if place == 1:
            raise ValueError("one")
        raise ValueError("another")
    except ValueError as error:
        return error


def test_a_fault_does_not_hide_another_one_of_its_type(
    log: LimitLog, caplog: pytest.LogCaptureFixture
) -> None:
    for place in (1, 2, 1, 2):
        log.seldom("call_failed", "in a handler", error=raised(place))
    told = [record.exc_info[1] for record in caplog.records if record.exc_info is not None]
    assert list(map(str, told)) == ["one", "another"]


def test_each_limit_has_lines_of_its_own(log: LimitLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        log.refused("calls_max", "here")
        log.refused("message_bytes_max", "there")
    assert caplog.messages == [
        "event=limit_reached limit=calls_max refusals=1 here",
        "event=limit_reached limit=message_bytes_max refusals=1 there",
    ]
