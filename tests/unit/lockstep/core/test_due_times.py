"""Which of many are due."""

from lockstep.core.due_times import DueTimes


def test_those_come_first_that_have_been_due_for_longest_and_by_key_where_that_is_the_same() -> None:
    times: DueTimes[str] = DueTimes()
    for key, due_ms in (("d", 5), ("c", 3), ("b", 5), ("a", 9)):
        times.set(key, due_ms)
    assert times.take(2, 10) == []
    assert times.take(8, 2) == ["c", "b"]
    assert times.take(8, 2) == ["d"]
    assert times.take(9, 2) == ["a"]
    assert times.take(9, 2) == []


def test_only_the_last_due_time_of_a_key_counts() -> None:
    times: DueTimes[str] = DueTimes()
    times.set("later", 1)
    times.set("later", 7)
    times.set("sooner", 7)
    times.set("sooner", 1)
    times.set("twice", 1)
    times.set("twice", 1)
    times.set("dropped", 1)
    times.drop("dropped")
    times.drop("never there")
    assert times.take(6, 10) == ["sooner", "twice"]
    assert times.take(7, 10) == ["later"]
    assert times.take(100, 10) == []


def test_what_is_dropped_before_it_is_due_takes_no_room() -> None:
    times: DueTimes[int] = DueTimes()
    times.set(-1, 50)
    for key in range(10_000):
        times.set(key, 100)
        times.drop(key)
    assert len(times._heap) < 2_000
    assert times.take(100, 10) == [-1]
