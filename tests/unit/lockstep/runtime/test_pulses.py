"""Pulses: who beats, who falls silent, and who is not blamed for our own sleep."""

from lockstep.runtime.pulses import MISSES_MAX, Pulse, Pulses


def make() -> tuple[Pulses, Pulse, list[str]]:
    events: list[str] = []
    pulses = Pulses()
    pulse = Pulse(lambda: events.append("beat"), lambda: events.append("silent"))
    pulses.add(pulse)
    return pulses, pulse, events


def test_a_stream_that_sent_nothing_beats() -> None:
    pulses, pulse, events = make()
    pulse.has_heard = True
    pulses.round(is_late=False)
    assert events == ["beat"]


def test_a_stream_that_sent_something_does_not_beat() -> None:
    pulses, pulse, events = make()
    pulse.has_sent = pulse.has_heard = True
    pulses.round(is_late=False)
    assert events == []


def test_three_silent_rounds_end_a_stream_once() -> None:
    pulses, pulse, events = make()
    for _ in range(MISSES_MAX + 2):
        pulse.has_sent = True
        pulses.round(is_late=False)
    assert events == ["silent"]


def test_a_word_in_time_starts_the_count_anew() -> None:
    pulses, pulse, events = make()
    for heard in (False, False, True, False, False):
        pulse.has_sent, pulse.has_heard = True, heard
        pulses.round(is_late=False)
    assert events == []


def test_rounds_that_come_late_blame_nobody() -> None:
    pulses, pulse, events = make()
    for _ in range(10):
        pulse.has_sent = True
        pulses.round(is_late=True)
    assert events == []
